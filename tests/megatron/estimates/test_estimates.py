"""Estimates compared with reported runs, upstream's figures and manual calculations."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from processor_limits import processor_limit

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.estimates.estimate import EstimateError, estimate
from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.megatron.rules.settings import Machine

RELEASE = "core_v0.16.1"
SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 8,
    "seq_length": 256,
    "max_position_embeddings": 256,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "train_iters": 100,
    "vocab_size": 1000,
    "bf16": True,
}
LLAMA: dict[str, Any] = {
    "swiglu": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "group_query_attention": True,
    "num_query_groups": 4,
    "ffn_hidden_size": 384,
}
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "estimates.py"


def reported_runs() -> Any:
    """The benchmark's module, with the reported runs."""
    spec = importlib.util.spec_from_file_location("benchmark_estimates", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_reported_memory_is_met_within_seven_percent() -> None:
    module = reported_runs()
    for run in module.RUNS:
        guess = module.estimated(run)
        assert guess.runs_out_of_memory(run.gpu) is (not run.memory_mib), run.name
        for stage, memory in zip(guess.stages, run.memory_mib, strict=False):
            assert abs(stage.total / module.MIB / memory - 1) < 0.07, run.name


def test_parameters_of_a_gpt2_layer_by_hand() -> None:
    counts = estimate(SMALL, 1, RELEASE).parameters
    hidden = 128
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    mlp = 2 * hidden * 4 * hidden + 4 * hidden + hidden
    norms = 2 * 2 * hidden
    assert counts.non_embedding == 4 * (attention + mlp + norms) + 2 * hidden
    assert counts.embedding == (1024 + 256) * hidden  # vocabulary padded to a multiple of 128
    assert counts.total == counts.active == counts.embedding + counts.non_embedding


def test_experts_count_once_each_and_active_ones_per_token() -> None:
    dense = estimate(SMALL | LLAMA, 1, RELEASE).parameters
    params = SMALL | LLAMA | {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 384}
    experts = estimate(params, 1, RELEASE).parameters
    expert, router = 3 * 128 * 384, 128 * 8
    assert experts.total - dense.total == 4 * (7 * expert + router)
    assert experts.active - dense.active == 4 * (expert + router)


def test_experts_of_a_latent_width() -> None:
    params = SMALL | LLAMA | {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 384}
    wide = estimate(params, 1, "core_v0.19.0")
    latent = estimate(params | {"moe_latent_size": 32}, 1, "core_v0.19.0")
    narrower = 3 * (128 - 32) * 384
    assert wide.parameters.total - latent.parameters.total == 4 * (8 * narrower - 2 * 128 * 32)
    assert wide.operations_per_token - latent.operations_per_token == 6 * 4 * (2 * narrower - 2 * 128 * 32)


LATENT: dict[str, Any] = {
    "multi_latent_attention": True,
    "group_query_attention": False,
    "num_query_groups": 1,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
}


@pytest.mark.parametrize(
    ("params", "more", "count"),
    [
        (
            {"num_experts": 8, "moe_ffn_hidden_size": 192, "moe_shared_expert_intermediate_size": 256},
            {"moe_shared_expert_gate": True},
            128,
        ),
        ({}, {"softmax_type": "learnable"}, 8),
        (LATENT, {"qk_layernorm": True}, 48 + 32),
        # of the output projection and of the MLP
        (LATENT, {"add_bias_linear": True}, 128 + 2 * 384 + 128),
    ],
    ids=["gate of shared experts", "softmax offset", "norms of latent attention", "bias of latent attention"],
)
def test_parameters_of_options_of_a_layer(params: dict[str, Any], more: dict[str, Any], count: int) -> None:
    """The differences are those of the models that core_v0.16.1 builds."""
    plain = estimate(SMALL | LLAMA | params, 1, RELEASE).parameters
    assert estimate(SMALL | LLAMA | params | more, 1, RELEASE).parameters.total - plain.total == 4 * count


def test_operations_of_a_quick_gated_unit_are_those_that_upstream_logs() -> None:
    params = SMALL | {"add_bias_linear": False, "vocab_size": 1000, "seq_length": 64, "global_batch_size": 4}
    guess = estimate(params | {"quick_geglu": True}, 1, RELEASE)
    assert guess.operations_per_iteration == 1459617792  # num_floating_point_operations of core_v0.16.1
    assert guess.parameters.total > estimate(params, 1, RELEASE).parameters.total


def test_multi_token_prediction() -> None:
    """Counted in a GPTModel of core_v0.16.1: 2 further layers, each with 3 norms and a projection of 256 to 128."""
    plain = estimate(SMALL | LLAMA | {"pipeline_model_parallel_size": 2}, 2, RELEASE)
    params = SMALL | LLAMA | {"pipeline_model_parallel_size": 2, "mtp_num_layers": 2}
    predicting = estimate(params, 2, RELEASE)
    layer = 128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 384 + 2 * 128
    more = 2 * (layer + 2 * 128 * 128 + 3 * 128)
    assert predicting.parameters.total - plain.parameters.total == more
    assert predicting.stages[0] == plain.stages[0]
    embedding = 1024 * 128  # the last stage embeds the tokens that it predicts from
    assert predicting.stages[1].weights - plain.stages[1].weights == 2 * (more + embedding)
    assert predicting.stages[1].logits == 3 * plain.stages[1].logits
    again = estimate(params | {"mtp_use_repeated_layer": True}, 2, "core_v0.19.0")
    assert again.parameters.total - plain.parameters.total == more // 2
    assert again.operations_per_token == predicting.operations_per_token


def test_operations_are_about_six_per_parameter_and_token() -> None:
    params = SMALL | {"hidden_size": 2048, "num_attention_heads": 16, "num_layers": 24}
    guess = estimate(params, 1, RELEASE)
    matrices = guess.parameters.total - 256 * 2048
    attention = 6 * 24 * 2048 * 256
    assert guess.operations_per_token == pytest.approx(6 * matrices + attention, rel=1e-3)
    assert guess.operations_per_iteration == guess.operations_per_token * 16 * 256


def memory(world_size: int = 1, **changes: Any) -> Any:
    """Memory of the first stage of the small model with some changes."""
    return estimate(SMALL | LLAMA | changes, world_size, RELEASE).stages[0]


def test_sharding_divides_what_it_should() -> None:
    plain = memory(8)
    sharded = memory(8, use_distributed_optimizer=True)
    assert sharded.optimizer == plain.optimizer / 8
    assert (sharded.weights, sharded.gradients) == (plain.weights, plain.gradients)
    assert plain.gradients == 2 * plain.weights  # bf16 accumulates in fp32


def test_fully_sharded_data_parallelism_divides_everything() -> None:
    flags = {"use_torch_fsdp2": True, "gradient_accumulation_fusion": False, "ckpt_format": "torch_dist"}
    free = Machine(transformer_engine=(99,), environment={})
    plain = memory(8)
    sharded = estimate(SMALL | LLAMA | flags, 8, RELEASE, machine=free).stages[0]
    assert sharded.weights == plain.weights / 8
    assert sharded.gradients == plain.gradients / 8
    assert sharded.optimizer == plain.optimizer / 8


def test_tensor_and_sequence_parallelism() -> None:
    plain, tensor = memory(2), memory(2, tensor_model_parallel_size=2)
    sequence = memory(2, tensor_model_parallel_size=2, sequence_parallel=True)
    assert plain.activations / 2 < tensor.activations < plain.activations
    assert sequence.activations == pytest.approx(plain.activations / 2)
    assert tensor.weights == pytest.approx(plain.weights / 2, rel=0.02)


def test_recomputation_lowers_activations() -> None:
    local = {"transformer_impl": "local", "apply_rope_fusion": False}
    everything = memory(**local)
    selective = memory(**local, recompute_granularity="selective")
    full = memory(**local, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    block = memory(**local, recompute_granularity="full", recompute_method="block", recompute_num_layers=2)
    assert full.activations < block.activations < everything.activations
    assert selective.activations < everything.activations
    assert memory().activations == pytest.approx(selective.activations)  # fused attention keeps no scores


def test_pipeline_stages_hold_what_they_hold() -> None:
    stages = estimate(SMALL | LLAMA | {"pipeline_model_parallel_size": 4}, 4, RELEASE).stages
    assert [stage.logits > 0 for stage in stages] == [False, False, False, True]
    assert stages[0].activations > stages[1].activations > stages[2].activations > stages[3].activations
    interleaved = estimate(
        SMALL | LLAMA | {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
        2,
        RELEASE,
    ).stages
    even = estimate(SMALL | LLAMA | {"pipeline_model_parallel_size": 2}, 2, RELEASE).stages
    assert interleaved[0].activations > even[0].activations


def test_cost_follows_from_the_step_time() -> None:
    guess = estimate(SMALL, 8, RELEASE)
    gpu = GPUS["h100-80gb"]
    assert guess.gpu_hours(3.6) == pytest.approx(100 * 3.6 * 8 / 3600)
    assert guess.utilisation(guess.step_s(0.4, gpu), gpu) == pytest.approx(0.4)
    assert not guess.runs_out_of_memory(gpu)
    by_samples = {k: v for k, v in SMALL.items() if k != "train_iters"} | {"train_samples": 33}
    assert estimate(by_samples, 8, RELEASE).iterations == 3
    assert estimate(by_samples, 8, RELEASE).to_json()["tokens_per_iteration"] == 16 * 256


def test_a_missing_estimate_has_a_reason() -> None:
    with pytest.raises(EstimateError, match="world size 3 is not divisible"):
        estimate(SMALL | {"tensor_model_parallel_size": 2}, 3, RELEASE)
    unknown = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {
        "tokenizer_type": "HuggingFaceTokenizer"
    }
    with pytest.raises(EstimateError, match="HuggingFaceTokenizer has is not known here; give vocab_size"):
        estimate(unknown, 1, RELEASE)
    with pytest.raises(EstimateError, match="how many tokens org/model has is not known"):
        estimate(unknown | {"tokenizer_model": "org/model"}, 1, RELEASE)
    with pytest.raises(EstimateError, match="no estimate for hybrid models"):
        estimate(SMALL | {"is_hybrid_model": True}, 1, RELEASE)
    with pytest.raises(ArgumentError):
        estimate(SMALL | {"num_layer": 3}, 1, RELEASE)


@pytest.mark.parametrize("tokenizer", [{}, {"tokenizer_type": "GPT2BPETokenizer"}])
def test_the_tokenizer_of_gpt2_has_one_size(tokenizer: dict[str, Any]) -> None:
    """``pretrain_gpt.py`` also uses it by default."""
    known = estimate(SMALL | {"vocab_size": 50257}, 1, RELEASE).parameters
    assert (
        estimate({k: v for k, v in SMALL.items() if k != "vocab_size"} | tokenizer, 1, RELEASE).parameters
        == known
    )


def test_parameters_without_the_padding_of_the_vocabulary() -> None:
    """GPT-2 large has 774,030,080 parameters; Megatron-LM rounds its 50,257 tokens up to 50,304."""
    sizes = {"num_layers": 36, "hidden_size": 1280, "num_attention_heads": 20, "vocab_size": 50257}
    lengths = {"seq_length": 1024, "max_position_embeddings": 1024}
    counts = estimate(SMALL | sizes | lengths, 1, RELEASE).parameters
    assert counts.without_padding == 774_030_080
    assert counts.total == 774_030_080 + 47 * 1280
    assert counts.to_json()["without_padding"] == counts.without_padding
    untied = {"untie_embeddings_and_output_weights": True, "tensor_model_parallel_size": 8}
    split = estimate(SMALL | sizes | lengths | {"num_attention_heads": 8} | untied, 8, RELEASE).parameters
    assert split.padding == 2 * 1280 * (51200 - 50257)
    assert estimate(SMALL | {"vocab_size": 1024}, 1, RELEASE).parameters.padding == 0


@pytest.mark.parametrize("value", [0, "-0", 10**300, 1e308])
@pytest.mark.parametrize(
    "name",
    [
        *("num_layers", "hidden_size", "ffn_hidden_size", "vocab_size", "seq_length", "global_batch_size"),
        *("max_position_embeddings", "num_attention_heads", "kv_channels", "micro_batch_size", "train_iters"),
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size", "num_experts", "moe_router_topk"),
        *("num_virtual_stages_per_pipeline_rank", "mtp_num_layers", "moe_layer_freq", "recompute_num_layers"),
        *("make_vocab_size_divisible_by", "moe_ffn_hidden_size", "num_query_groups"),
    ],
)
def test_sizes_that_cannot_be_calculated_with(name: str, value: object) -> None:
    params = SMALL | {"num_experts": 4, "moe_ffn_hidden_size": 64, "pipeline_model_parallel_size": 2}
    params |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    with processor_limit(0.5), contextlib.suppress(EstimateError, ArgumentError):
        found = estimate(params | {name: value}, 4, RELEASE)
        assert 0 < found.memory_bytes < math.inf
        assert 0 < found.parameters.total < 2**63


@pytest.mark.parametrize("name", ["num_layers", "mtp_num_layers"])
def test_layers_are_listed_up_to_a_bound(name: str) -> None:
    with pytest.raises(EstimateError, match=f"there is no estimate for {name} above 10000"):
        estimate(SMALL | {"position_embedding_type": "rope", name: 10**9}, 1, RELEASE)
