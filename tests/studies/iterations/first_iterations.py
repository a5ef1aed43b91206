"""Command lines of small models, each with a few features, for comparing the first-iteration rules with upstream.

    python first_iterations.py CHECKOUT RELEASE [--combinations N] [--seed S]

Compares each feature by itself, or N random combinations of two or three of them; what differs is printed as it is
found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.command_checks import check
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("upstream_first_iterations.py")
MACHINE = Machine(is_complete=True)
"""What the program has: neither Transformer Engine nor Apex."""
BASE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "seq_length": 64,
    "max_position_embeddings": 64,
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "train_iters": 10,
    "lr": 1e-3,
    "bf16": True,
    "transformer_impl": "local",
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "vocab_size": 128,
    "eval_interval": 1,
    "eval_iters": 1,
    "num_workers": 0,
    "no_persist_layer_norm": True,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
FEATURES: tuple[dict[str, Any], ...] = (
    {"tensor_model_parallel_size": 2},
    {"tensor_model_parallel_size": 4, "ffn_hidden_size": 250},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    {"pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1, "global_batch_size": 12},
    {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2},
    {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 3},
    {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 0},
    {"context_parallel_size": 2},
    {"no_persist_layer_norm": False},
    {"normalization": "RMSNorm"},
    {"normalization": "RMSNorm", "no_persist_layer_norm": False},
    {"apply_layernorm_1p": True},
    {"gradient_accumulation_fusion": True},
    {"masked_softmax_fusion": True},
    {"masked_softmax_fusion": True, "micro_batch_size": 4},
    {"masked_softmax_fusion": True, "num_attention_heads": 2},
    {"masked_softmax_fusion": True, "bf16": None},
    {"masked_softmax_fusion": True, "seq_length": 62},
    {"apply_rope_fusion": True, "position_embedding_type": "rope"},
    {"position_embedding_type": "rope"},
    {"position_embedding_type": "none"},
    {"position_embedding_type": "mrope", "mrope_section": [2, 1, 1]},
    {"position_embedding_type": "relative"},
    {"position_embedding_type": "yarn"},
    {"seq_length": 63},
    {"seq_length": 128},
    {"group_query_attention": True, "num_query_groups": 2},
    {"group_query_attention": True, "num_query_groups": 3},
    {"num_attention_heads": 6},
    {"kv_channels": 16},
    {"swiglu": True},
    {"squared_relu": True},
    {"swiglu": True, "bias_swiglu_fusion": False},
    {"add_bias_linear": False},
    {"add_qkv_bias": True, "add_bias_linear": False},
    {"qk_layernorm": True},
    {"untie_embeddings_and_output_weights": True},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]},
    {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    {"recompute_granularity": "selective", "recompute_modules": ["moe_act"], **EXPERTS},
    {"use_distributed_optimizer": True},
    {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True},
    {"optimizer": "sgd"},
    {"optimizer": "muon"},
    {"optimizer_cpu_offload": True, "use_distributed_optimizer": True},
    {"cross_entropy_loss_fusion": True},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"},
    EXPERTS,
    EXPERTS | {"expert_model_parallel_size": 2},
    EXPERTS | {"expert_model_parallel_size": 4, "moe_token_dispatcher_type": "alltoall"},
    EXPERTS | {"moe_token_dispatcher_type": "flex"},
    EXPERTS | {"moe_grouped_gemm": True},
    EXPERTS | {"moe_router_topk": 5},
    EXPERTS | {"moe_router_fusion": True},
    EXPERTS | {"moe_permute_fusion": True},
    EXPERTS | {"moe_router_load_balancing_type": "sinkhorn", "moe_router_topk": 1},
    EXPERTS | {"moe_router_load_balancing_type": "none"},
    EXPERTS | {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.01},
    EXPERTS | {"moe_shared_expert_intermediate_size": 33},
    EXPERTS | {"moe_shared_expert_intermediate_size": 64, "moe_shared_expert_overlap": True},
    EXPERTS | {"moe_layer_freq": "([0]*1+[1]*3)"},
    EXPERTS | {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    EXPERTS | {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    EXPERTS | {"tensor_model_parallel_size": 2},
    EXPERTS | {"moe_router_num_groups": 2, "moe_router_group_topk": 1},
    EXPERTS | {"moe_z_loss_coeff": 0.001},
    EXPERTS | {"moe_ffn_hidden_size": 48, "swiglu": True},
    {"multi_latent_attention": True, "kv_channels": 8},
    {"mtp_num_layers": 1},
    {"fp16": True, "bf16": None},
    {"bf16": None},
    {"accumulate_allreduce_grads_in_fp32": True},
    {"grad_reduce_in_bf16": True},
    {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    {"attention_softmax_in_fp32": True},
    {"apply_query_key_layer_scaling": True},
    {"calculate_per_token_loss": True},
    {"clone_scatter_output_in_embedding": False},
    {"window_size": "(16,0)"},
    {"softmax_type": "learnable"},
    {"softmax_type": "learnable", "masked_softmax_fusion": True},
    {"softmax_type": "off-by-one"},
    {"rotary_percent": 0.5, "position_embedding_type": "rope"},
    {"rotary_interleaved": True, "position_embedding_type": "rope"},
    {"no_rope_freq": 2, "position_embedding_type": "rope"},
    {"attention_output_gate": True},
    {"heterogeneous_layers_config_path": None},
    {"deterministic_mode": True},
    {"tp_comm_overlap": True, "tensor_model_parallel_size": 2, "sequence_parallel": True},
    {"cpu_offloading_num_layers": 1},
    {"eval_interval": None},
    {"eval_interval": 5},
    {"full_validation": True},
    {"eval_iters": 0},
    {"skip_train": True},
    {"rampup_batch_size": [16, 8, 100]},
    {"global_batch_size": 8},
    {"log_params_norm": True},
    {"log_num_zeros_in_grad": True},
    {"log_throughput": True},
    {"check_for_nan_in_loss_and_grad": True},
    {"create_attention_mask_in_dataloader": False},
    {"reset_position_ids": True},
    {"reset_attention_mask": True},
    {"eod_mask_loss": True},
    {"make_vocab_size_divisible_by": 7, "tensor_model_parallel_size": 2},
    {"vocab_size": None},
    {"tokenizer_type": "HuggingFaceTokenizer"},
    {"decoupled_lr": 1e-4, "untie_embeddings_and_output_weights": True},
    {"lr_warmup_iters": 2, "lr_decay_style": "WSD", "lr_wsd_decay_iters": 2},
    {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1},
    {"weight_decay_incr_style": "linear", "start_weight_decay": 0.2, "end_weight_decay": 0.1},
    {"weight_decay_incr_style": "linear", "start_weight_decay": -0.2, "end_weight_decay": 0.1},
    {"min_lr": -1e-5},
    {"lr_warmup_init": 0.1},
    {"lr_decay_iters": 0},
    {"override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": True},
    {"clip_grad": 0.0},
    {"manual_gc": True, "manual_gc_interval": 1},
    {"use_tp_pp_dp_mapping": True},
    {"init_method_xavier_uniform": True},
    {"use_megatron_fsdp": True},
    {"distribute_saved_activations": True},
    {"standalone_embedding_stage": True, "pipeline_model_parallel_size": 2},
    {"account_for_embedding_in_pipeline_split": True, "pipeline_model_parallel_size": 2, "num_layers": 7},
    {"decoder_first_pipeline_num_layers": 1, "pipeline_model_parallel_size": 2},
    {"pipeline_model_parallel_layout": "Et|tttL", "pipeline_model_parallel_size": 2},
    {"fused_linear_cross_entropy": True},
    {"use_flash_attn": True},
    {"attention_backend": "flash"},
    {"spec": ["megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec"]},
    {"transformer_impl": "inference_optimized"},
    {"linear_attention_type": "gated_delta_net"},
    {"embedding_init_method_std": 0.01},
    {"qk_clip": True},
    {"log_max_attention_logit": True},
    {"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True},
    {"use_torch_fsdp2": True, "untie_embeddings_and_output_weights": True},
    {"moe_use_legacy_grouped_gemm": True, **EXPERTS},
    {"moe_latent_size": 32, **EXPERTS},
    {"experimental_attention_variant": "gated_delta_net"},
    {"hierarchical_context_parallel_sizes": [2], "context_parallel_size": 2},
    {"cuda_graph_impl": "local"},
    {"ddp_bucket_size": 1000, "use_distributed_optimizer": True},
    {"keep_fp8_transpose_cache": True},
    {"use_cpu_initialization": True},
    {"exit_duration_in_mins": 1},
    {"mock_data": None},
    {"ffn_hidden_size": 0},
    {"ffn_hidden_size": 0, "swiglu": True},
    {"quick_geglu": True},
    {"tokenizer_type": "NullMultimodalTokenizer"},
    {"vocab_size": 0},
    {"rotary_base": 0, "position_embedding_type": "rope"},
)
WORLD = 8
ONLY_HERE = ("RNG tracker does not support cudagraphs!",)
"""What the program, on a CPU, ends with where a GPU would not."""
BATCH = 100
"""Command lines for which upstream is imported once."""


def combined(chance: random.Random, release: str) -> dict[str, Any]:
    """Return a command line with two or three features that the release has, and the world that it is for."""
    there = _features(release)
    params = dict(BASE)
    for feature in chance.sample(there, chance.choice((2, 2, 3))):
        params |= feature
    return _line(params, release)


def each_feature(release: str) -> list[dict[str, Any]]:
    """Return a command line for each feature that the release has, and one without any."""
    return [_line(BASE | feature, release) for feature in ({}, *_features(release))]


def _features(release: str) -> list[dict[str, Any]]:
    there = []
    for feature in FEATURES:
        try:
            _line(BASE | feature, release)
        except ArgumentError:
            continue
        there.append(feature)
    return there


def _line(params: Mapping[str, Any], release: str) -> dict[str, Any]:
    given = {name: value for name, value in params.items() if value is not None}
    return {"argv": to_argv(given, release), "world_size": WORLD}


def rules_broken(line: Mapping[str, Any], release: str) -> list[str]:
    """Return the rules that a command line breaks here, those of the first iteration among them."""
    found = check(line["argv"], line["world_size"], release, machine=MACHINE, first_iteration=True)
    return [problem.rule for problem in found]


def ranks_of(line: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks with different parts of the model: the first of the first and of the last pipeline stage."""
    argv: list[str] = line["argv"]
    flag = "--pipeline-model-parallel-size"
    stages = int(argv[argv.index(flag) + 1]) if flag in argv else 1
    world: int = line["world_size"]
    return (0, world - world // stages) if 1 < stages <= world else (0,)


def first_iterations(lines: Sequence[Mapping[str, Any]], checkout: Path) -> list[dict[str, Any]]:
    """Run command lines through upstream, each as the ranks that have different parts of the model.

    :returns: for each line ``ok``, ``message`` and ``source``; those of a rank that failed, where one did
    :raises RuntimeError: when the program does not answer all of them
    """
    command_lines = [
        (index, {**line, "rank": rank}) for index, line in enumerate(lines) for rank in ranks_of(line)
    ]
    done = subprocess.run(
        [local_dir() / "venv-trainer/bin/python", "-W", "ignore", PROGRAM, checkout],
        input="".join(json.dumps(line) + "\n" for _, line in command_lines),
        env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(command_lines):
        raise RuntimeError(
            f"{PROGRAM.name} answered {len(answers)} of {len(command_lines)}: {done.stderr[-2000:]}"
        )
    found: dict[int, dict[str, Any]] = {}
    for (index, _), answer in zip(command_lines, answers, strict=True):
        if found.get(index, {"ok": True})["ok"]:
            found[index] = answer
    return list(found.values())


def main() -> int:
    """Compare; print those on which the rules and upstream differ, and return whether there were any."""
    parser = argparse.ArgumentParser(description="Compare the first-iteration rules with upstream.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("release")
    parser.add_argument("--combinations", type=int, help="random combinations in place of each feature alone")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    lines = (
        each_feature(given.release)
        if given.combinations is None
        else [combined(chance, given.release) for _ in range(given.combinations)]
    )
    different = unknown = 0
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        for line, answer in zip(batch, first_iterations(batch, given.checkout), strict=True):
            rules = rules_broken(line, given.release)
            if answer["message"].endswith(ONLY_HERE):
                unknown += 1
            elif bool(rules) is answer["ok"]:
                different += 1
                print(json.dumps({"rules": rules, **answer, "argv": line["argv"]}), flush=True)
    print(
        f"{given.release}: {len(lines)} command lines, {different} judged otherwise, {unknown} only run on GPUs"
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
