"""Checks of command lines, compared with upstream's verdicts and with argparse."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.megatron import validation
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import (
    ArgumentError,
    argument_table,
    known_releases,
    program_table,
    with_extra,
)
from airflow_megatron.megatron.rules.command_line import CommandLineReader, layer_pattern, reader
from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import Rule
from airflow_megatron.megatron.rules.settings import Machine, Settings
from airflow_megatron.megatron.validation.command_checks import BEFORE_THE_MODEL, check, check_lines
from airflow_megatron.megatron.validation.upstream_rules.pipeline import layout_stages

RECORDED = Path(__file__).parents[2] / "fixtures" / "megatron_commands"
RELEASES = ("core_v0.16.1", "core_v0.19.0")
BASE: dict[str, Any] = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "seq_length": 1024,
    "max_position_embeddings": 1024,
    "micro_batch_size": 4,
    "global_batch_size": 64,
    "train_iters": 100,
    "lr": 3e-4,
    "transformer_impl": "local",
    "apply_rope_fusion": False,
    "bf16": True,
}


def rules_broken(release: str = "core_v0.16.1", world_size: int = 8, **changes: Any) -> list[str]:
    """Return the names of the rules that the changed base job violates."""
    argv = to_argv(BASE | changes, release)
    return [problem.rule for problem in check(argv, world_size, release)]


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_verdicts_are_upstreams(release: str) -> None:
    """Recorded from upstream's parse_args, validate_args, TransformerConfig and microbatch calculator."""
    lines = [json.loads(line) for line in (RECORDED / f"{release}.jsonl").read_text().splitlines()]
    assert len(lines) > 250
    assert {line["stage"] for line in lines} >= {"parse", "validate", "config", ""}
    wrong = [line for line in lines if line["ok"] == bool(check(line["argv"], line["world_size"], release))]
    assert wrong == []


@pytest.mark.parametrize("recording", sorted(RECORDED.glob("core_v*.jsonl")), ids=lambda path: path.stem)
def test_recorded_verdicts_on_machines_are_upstreams(recording: Path) -> None:
    """The recordings of ``make record`` have a machine for each line."""
    lines = [line for text in recording.read_text().splitlines() if "env" in (line := json.loads(text))]
    assert recording.stem in RELEASES or len(lines) >= 300
    for line in lines:
        machine = Machine.of(
            transformer_engine=line["transformer_engine"],
            compute_capability=line.get("compute_capability"),
            environment=line["env"],
        )
        problems = check(line["argv"], line["world_size"], recording.stem, machine=machine)
        assert bool(problems) is not line["ok"], (line, problems)


@pytest.mark.parametrize("release", known_releases())
def test_base_job_is_taken_by_every_release(release: str) -> None:
    assert rules_broken(release) == []


@pytest.mark.parametrize(
    ("changes", "world_size", "rule", "hint"),
    [
        ({"tensor_model_parallel_size": 3}, 8, "parallel.world-size", "world size of 6 or 9"),
        (
            {"global_batch_size": 50},
            8,
            "batch.division",
            "--global-batch-size 32 or 64",
        ),
        (
            {"num_layers": 13, "pipeline_model_parallel_size": 4},
            8,
            "pipeline.layers",
            "--num-layers 12 or 16",
        ),
        (
            {"num_attention_heads": 7, "kv_channels": 64, "tensor_model_parallel_size": 2},
            8,
            "parallel.heads",
            "1 or 7",
        ),
        ({"seq_length": 1022, "context_parallel_size": 2}, 8, "network.sequence-and-context", "1020 or 1024"),
        (
            {"num_experts": 6, "expert_model_parallel_size": 4, "add_bias_linear": False},
            8,
            "moe.expert-parallel",
            "3 or 6",
        ),
        ({"save": "ck"}, 8, "save.interval", "--save-interval"),
        ({"min_lr": 1.0}, 8, "schedule.minimum-learning-rate", "0.0003 or less"),
        (
            {
                "num_experts": 8,
                "moe_router_load_balancing_type": ["sinkhorn"],
                "moe_expert_capacity_factor": -1.0,
            },
            8,
            "moe.capacity-balancing",
            "aux_loss",
        ),
        (
            {"heterogeneous_layers_config_encoded_json": "layers.json"},
            8,
            "network.heterogeneous-layers",
            "Hugging Face",
        ),
    ],
)
def test_a_refusal_proposes_the_nearest_values(
    changes: dict[str, Any], world_size: int, rule: str, hint: str
) -> None:
    problems = check(to_argv(BASE | changes, "core_v0.16.1"), world_size, "core_v0.16.1")
    assert [problem.rule for problem in problems] == [rule]
    assert hint in problems[0].hint
    assert problems[0].source.startswith("megatron/")


def test_rules_follow_the_release() -> None:
    changes = (
        {"optimizer": "muon", "overlap_grad_reduce": True} if "muon" in _optimizers("core_v0.19.0") else {}
    )
    assert rules_broken("core_v0.19.0", **changes) == []
    assert rules_broken("core_v0.16.1", optimizer="muon", overlap_grad_reduce=True) == ["optimizer.muon"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("engine", "interleaved", "taken"),
    [("1.3", False, False), ("1.7", False, True), ("1.7", True, False), ("2.3", True, True)],
)
def test_fused_rotary_embeddings(release: str, engine: str, interleaved: bool, taken: bool) -> None:
    params = {name: value for name, value in BASE.items() if name != "apply_rope_fusion"}
    rotary = {"position_embedding_type": "rope", "rotary_interleaved": interleaved}
    argv = to_argv(params | rotary, release)
    assert (check(argv, 8, release, machine=Machine.of(transformer_engine=engine)) == []) is taken


def _optimizers(release: str) -> tuple[Any, ...]:
    argument = argument_table(release).get("optimizer")
    assert argument is not None
    return argument.choices or ("muon",)


def test_the_machine_decides_about_transformer_engine_and_environment() -> None:
    argv = to_argv(
        {k: v for k, v in BASE.items() if k != "apply_rope_fusion"} | {"position_embedding_type": "rope"},
        "core_v0.16.1",
    )
    assert [problem.rule for problem in check(argv, 8, "core_v0.16.1")] == ["network.rope-fusion"]
    engine = Machine(transformer_engine=(2, 8))
    assert check(argv, 8, "core_v0.16.1", machine=engine) == []
    split = to_argv(BASE | {"tensor_model_parallel_size": 2}, "core_v0.16.1")
    unset = Machine(environment={})
    assert [problem.rule for problem in check(split, 8, "core_v0.16.1", machine=unset)] == [
        "parallel.cuda-device-max-connections"
    ]
    assert check(split, 8, "core_v0.16.1", machine=Machine(environment={}, compute_capability=10)) == []


@pytest.mark.parametrize(
    ("release", "engine", "fp8", "fp4"),
    [
        *(
            (release, engine, engine in ("2.0", "2.8"), False)
            for release in ("core_v0.14.0", "core_v0.16.1")
            for engine in (None, "1.9", "2.0", "2.8")
        ),
        *(
            (release, engine, True, engine == "2.0")
            for release in ("core_v0.17.1", "core_v0.18.2")
            for engine in ("2.0", "2.8")
        ),
        ("core_v0.13.1", "2.8", False, False),
    ],
)
def test_fsdp2_gathers_parameters_of_eight_bits_in_bf16(
    release: str, engine: str | None, fp8: bool, fp4: bool
) -> None:
    sharded = {
        "use_torch_fsdp2": True,
        "gradient_accumulation_fusion": False,
        "untie_embeddings_and_output_weights": True,
        "ckpt_format": "torch_dist",
    }
    machine = Machine.of(transformer_engine=engine, environment={})

    def taken(**params: Any) -> bool:
        return check(to_argv(BASE | sharded | params, release), 8, release, machine=machine) == []

    assert taken()
    assert taken(fp8_param_gather=True) is fp8
    if release >= "core_v0.17":
        assert taken(fp4_param_gather=True) is fp4


@pytest.mark.parametrize(
    ("environment", "old", "new"),
    [
        ({"NCCL_ALGO": "Ring"}, [], []),
        ({"NCCL_ALGO": "Tree"}, [], ["determinism"]),
        ({"NCCL_ALGO": "Ring,^NVLS"}, ["determinism"], []),
        ({}, ["determinism"], []),
        ({"NCCL_ALGO": ""}, ["determinism"], ["determinism"]),
        (
            {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"},
            [],
            ["determinism.nvte-allow-nondeterministic-algo"],
        ),
        ({"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}, [], []),
        (
            {"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":0:0"},
            [],
            ["determinism.cublas-workspace-config"],
        ),
        ({"NCCL_ALGO": "Ring", "MAMBA_DETERMINISTIC": "0"}, [], ["determinism.mamba-deterministic"]),
        ({"NCCL_ALGO": "Ring", "MAMBA_DETERMINISTIC": ""}, [], []),
    ],
)
def test_determinism_depends_on_the_environment(
    environment: dict[str, str], old: list[str], new: list[str]
) -> None:
    machine = Machine(environment=environment)
    for release, expected in (("core_v0.16.1", old), ("core_v0.19.0", new)):
        argv = to_argv(BASE | {"deterministic_mode": True}, release)
        assert [problem.rule for problem in check(argv, 8, release, machine=machine)] == expected


def test_transformer_engine_has_to_be_deterministic_too() -> None:
    params = STARTS | {"deterministic_mode": True, "transformer_impl": "transformer_engine"}

    def rules(release: str, **more: str) -> list[str]:
        machine = Machine(transformer_engine=(2, 8), environment={"NCCL_ALGO": "Ring", **more})
        found = check(to_argv(params, release), 8, release, machine=machine, first_iteration=True)
        return [problem.rule for problem in found]

    assert rules("core_v0.16.1") == ["determinism.transformer-engine"]
    assert rules("core_v0.16.1", NVTE_ALLOW_NONDETERMINISTIC_ALGO="0") == []
    assert rules("core_v0.19.0") == []


EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "expert_model_parallel_size": 4,
    "add_bias_linear": False,
    "moe_router_topk": 2,
}
#: A machine that does not depend on PyTorch's norms.
APEX = Machine(packages=frozenset({"apex"}))
#: Gets through its first iteration there.
STARTS = BASE | {
    "tokenizer_type": "NullTokenizer",
    "vocab_size": 50257,
    "eval_interval": 100,
    "mock_data": True,
}
TENSORS = {
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "transformer_impl": "transformer_engine",
}


@pytest.mark.parametrize("release", known_releases())
def test_the_program_has_a_default_tokenizer(release: str) -> None:
    """pretrain_gpt.py has the default GPT2BPETokenizer, so a command line needs no tokenizer."""
    bare = BASE | {"eval_interval": 100, "mock_data": True}
    params = bare | {"vocab_file": "vocab.json", "merge_file": "merges.txt"}
    assert check(to_argv(params, release), 8, release, machine=APEX, first_iteration=True) == []
    files = check(to_argv(bare, release), 8, release, machine=APEX, first_iteration=True)
    # from core_v0.17 on the tokenizer gets its files itself
    old = release < "core_v0.17"
    assert [problem.rule for problem in files] == ["tokenizer.vocabulary-files"] * old


def test_flags_that_a_package_brings() -> None:
    """From core_v0.15 to 0.18 the flags of Model Optimizer are there without it, before and after only with it."""
    for release, needs_package in (("core_v0.14.0", True), ("core_v0.16.1", False), ("core_v0.19.0", True)):
        argv = [*to_argv(BASE, release), "--export-kd-cfg", "distill.yaml"]
        without = [problem.rule for problem in check(argv, 8, release)]
        assert without == ["parse.package-flag"] * needs_package
        installed = Machine(packages=frozenset({"modelopt"}))
        assert check(argv, 8, release, machine=installed) == []
    with pytest.raises(ArgumentError, match=r"packages: \[modelopt\]"):
        to_argv({"export_kd_cfg": "distill.yaml"}, "core_v0.19.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({}, Machine()),
        ({"transformer_engine": "2.8.0.dev0+39c0e70"}, Machine(transformer_engine=(2, 8, 0))),
        ({"transformer_engine": "2.10", "compute_capability": "10.0"}, Machine((2, 10), 10)),
        ({"compute_capability": 8, "environment": {"A": 1}}, Machine(None, 8, {"A": "1"})),
    ],
)
def test_a_machine_is_read_from_text(text: dict[str, Any], expected: Machine) -> None:
    assert Machine.of(**text) == expected


@pytest.mark.parametrize("text", [{"transformer_engine": "new"}, {"compute_capability": "hopper"}])
def test_a_machine_that_cannot_be_read(text: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="write"):
        Machine.of(**text)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("changes", "world_size", "rule", "hint"),
    [
        (EXPERTS | {"global_batch_size": 24}, 6, "parallel.expert-groups", "world size of 4 or 8"),
        ({"eval_interval": None}, 8, "iteration.evaluation-interval", "--eval-interval 1000"),
        ({"wandb_project": "p"}, 8, "wandb.directory", "--wandb-save-dir"),
        (
            {"wandb_project": "p", "wandb_exp_name": "", "wandb_save_dir": "w"},
            8,
            "wandb.name",
            "--wandb-exp-name",
        ),
        ({"data_path": ["0.6", "A", "B"]}, 8, "data.data-path-blend", "[0.6, A, 0.4, B]"),
        (
            {"train_data_path": ["A", "0.4", "B"], "valid_data_path": ["v"]},
            8,
            "data.train-data-path-blend",
            "[0.6, A, 0.4, B]",
        ),
        ({"eval_interval": 0}, 8, "iteration.evaluation-interval", "--eval-interval 1000"),
        ({"full_validation": True}, 8, "iteration.full-validation", "--eval-iters N"),
        (
            {
                "full_validation": True,
                "multiple_validation_sets": True,
                "mock_data": True,
                "split": "99,1,0",
            },
            8,
            "iteration.test-of-several-validation-sets",
            "--eval-iters N",
        ),
        (
            {"full_validation": True, "multiple_validation_sets": True, "test_data_path": ["t"]},
            8,
            "iteration.test-of-several-validation-sets",
            "drop --test-data-path",
        ),
        (
            {"full_validation": True, "multiple_validation_sets": True},
            8,
            "iteration.test-of-several-validation-sets",
            "--split 99,1,0",
        ),
        (
            {
                "full_validation": True,
                "multiple_validation_sets": True,
                "data_path": ["d"],
                "split": "949,50,1",
            },
            8,
            "iteration.test-of-several-validation-sets",
            "--split 99,1,0",
        ),
        ({"tokenizer_type": "HuggingFaceTokenizer"}, 8, "tokenizer.model", "--tokenizer-model"),
        ({"vocab_size": None}, 8, "tokenizer.vocabulary-size", "--vocab-size"),
        ({"num_attention_heads": 0, "kv_channels": 64}, 8, "model.positive-sizes", "1 or more"),
        (TENSORS | {"ffn_hidden_size": 3073}, 8, "model.mlp-and-tensors", "3072 or 3074"),
        (
            EXPERTS | TENSORS | {"moe_ffn_hidden_size": 99},
            8,
            "model.experts-and-tensors",
            "98 or 100, or --expert-tensor-parallel-size 1 or 3",
        ),
        (
            EXPERTS | TENSORS | {"moe_shared_expert_intermediate_size": 77},
            8,
            "model.shared-experts-and-tensors",
            "76 or 78",
        ),
        (
            EXPERTS | {"moe_shared_expert_intermediate_size": 64, "add_bias_linear": True},
            8,
            "model.shared-experts-and-bias",
            "--disable-bias-linear",
        ),
        ({"context_parallel_size": 2}, 8, "model.local-context", "transformer_engine"),
        ({"normalization": "RMSNorm"}, 8, "model.local-rms-norm", "--no-persist-layer-norm"),
        (
            TENSORS | {"seq_length": 1023, "max_position_embeddings": 1023},
            8,
            "iteration.sequence-and-tensors",
            "1022 or 1024",
        ),
        (
            EXPERTS | TENSORS | {"sequence_parallel": False},
            8,
            "iteration.experts-without-sequence-parallel",
            "--sequence-parallel",
        ),
        (EXPERTS | {"moe_router_topk": 5}, 8, "iteration.experts-chosen", "4 or less"),
        ({"min_lr": -1e-5}, 8, "schedule.negative-learning-rate", "--min-lr 0"),
        ({"lr_warmup_init": 0.1}, 8, "schedule.warmup-start", "0.0003 or less"),
        ({"train_iters": 0}, 8, "schedule.no-length", "--train-iters N"),
        ({"train_iters": -5}, 8, "schedule.no-length", "--train-iters N"),
        ({"train_iters": None}, 8, "schedule.no-length", "--train-iters N"),
        ({"train_iters": None, "train_samples": 0}, 8, "schedule.no-length", "--train-samples N"),
        ({"train_iters": None, "skip_train": True}, 8, "schedule.no-length", "--train-iters N"),
        ({"lr_decay_iters": 0}, 8, "schedule.no-decay-iterations", "drop it"),
        (
            {"train_iters": None, "train_samples": 800, "lr_decay_samples": -1},
            8,
            "schedule.no-decay-samples",
            "drop it",
        ),
        (
            {"weight_decay_incr_style": "linear", "start_weight_decay": -0.3, "end_weight_decay": 0.1},
            8,
            "schedule.negative-weight-decay",
            "--start-weight-decay 0",
        ),
        (
            {"weight_decay_incr_style": "linear", "start_weight_decay": 0.3, "end_weight_decay": 0.1},
            8,
            "schedule.falling-weight-decay",
            "--weight-decay 0.3",
        ),
        (
            {"override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": True},
            8,
            "schedule.override-and-checkpoint",
            "keep --override",
        ),
        (
            {
                "pipeline_model_parallel_size": 4,
                "num_layers_per_virtual_pipeline_stage": 1,
                "global_batch_size": 40,
            },
            8,
            "iteration.interleaving",
            "--global-batch-size 32 or 64",
        ),
        *(
            (
                {"pipeline_model_parallel_size": 4, "num_virtual_stages_per_pipeline_rank": stages},
                8,
                "setup.virtual-stages",
                f"--num-virtual-stages-per-pipeline-rank {hint}",
            )
            for stages, hint in ((0, "1"), ("-0", "1"), (-1, "1"), (2, "1 or 3"))
        ),
        (
            {"pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": -1},
            8,
            "setup.layers-per-virtual-stage",
            "1 or more",
        ),
    ],
)
def test_what_ends_a_job_after_its_arguments_are_taken(
    release: str, changes: dict[str, Any], world_size: int, rule: str, hint: str
) -> None:
    """Upstream's parse_args and validate_args accept these; its tokenizer, model or first iteration fails."""
    has_data = any(name.endswith("data_path") for name in changes)
    params = STARTS | {"mock_data": not has_data} | changes
    argv = to_argv({name: value for name, value in params.items() if value is not None}, release)
    assert check(argv, world_size, release) == []
    (problem,) = check(argv, world_size, release, machine=APEX, first_iteration=True)
    assert problem.rule == rule
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"global_batch_size": 8 * 10**307, "lr_warmup_fraction": 0.1},
            "upstream cannot calculate with --global-batch-size 8000",
        ),
        ({"kv_channels": 10**308, "position_embedding_type": "rope"}, ""),
    ],
)
def test_numbers_beyond_floating_point(changes: dict[str, Any], told: str) -> None:
    argv = to_argv(STARTS | changes, "core_v0.16.1")
    problems = check(argv, 8, "core_v0.16.1", machine=APEX, first_iteration=True)
    assert [problem.rule for problem in problems] == (["value.calculation"] if told else [])
    for problem in problems:
        assert problem.message.startswith(told)
        assert "global_batch_size" in problem.shown
        assert problem.hint == "smaller values"


@pytest.mark.parametrize("release", known_releases())
def test_base_job_gets_through_its_first_iteration(release: str) -> None:
    params = STARTS
    llama = {"normalization": "RMSNorm", "no_persist_layer_norm": True, "swiglu": True}
    experts = EXPERTS | TENSORS | {"moe_layer_freq": 2, "moe_shared_expert_intermediate_size": 64}
    stages = {"pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": 1}
    for changes in ({}, llama, experts, stages):
        argv = to_argv(params | changes, release)
        assert check(argv, 8, release, machine=APEX, first_iteration=True) == []


@pytest.mark.parametrize(
    "data",
    [
        {"data_path": ["d"], "split": "99,1,0"},
        {"data_path": ["d"], "split": "99,1"},
        {"train_data_path": ["t"], "valid_data_path": ["v"]},
    ],
)
def test_full_validation_of_several_sets_without_a_test_set(data: dict[str, Any]) -> None:
    no_data = {"mock_data": False}
    params = STARTS | no_data | {"full_validation": True, "multiple_validation_sets": True} | data
    argv = to_argv(params, "core_v0.16.1")
    assert check(argv, 8, "core_v0.16.1", machine=APEX, first_iteration=True) == []


@pytest.mark.parametrize(
    ("release", "pattern", "rules"),
    [
        ("core_v0.14.0", None, ["tokenizer.pattern"]),
        ("core_v0.16.1", None, ["tokenizer.pattern"]),
        ("core_v0.16.1", "v3", ["tokenizer.pattern"]),
        ("core_v0.16.1", "v1", []),
        ("core_v0.19.0", None, []),
    ],
)
def test_the_pattern_of_tiktoken(release: str, pattern: str | None, rules: list[str]) -> None:
    words = {"tokenizer_type": "TikTokenizer", "tokenizer_model": "t.json", "tiktoken_pattern": pattern}
    argv = to_argv(STARTS | words, release)
    assert [each.rule for each in check(argv, 8, release, machine=APEX, first_iteration=True)] == rules


@pytest.mark.parametrize(("start", "rules"), [(8, ["setup.ramp-up-start"]), (16, []), (24, [])])
def test_a_ramp_up_whose_decreased_batch_has_no_samples(start: int, rules: list[str]) -> None:
    ramp = {"rampup_batch_size": [start, 8, 64], "decrease_batch_size_if_needed": True}
    by_samples = {"train_samples": 640, "train_iters": None, "micro_batch_size": 2, "global_batch_size": 32}
    argv = to_argv(STARTS | by_samples | ramp, "core_v0.16.1")
    found = check(argv, 8, "core_v0.16.1", machine=APEX, first_iteration=True)
    assert [problem.rule for problem in found] == rules


@pytest.mark.parametrize(
    "data",
    [
        {"train_data_path": ["t"]},
        {"train_data_path": ["t"], "test_data_path": ["e"]},
        {"data_path": ["d"], "split": "100,0,0"},
        {"data_path": ["d"], "split": "1"},
        {"train_data_path": ["t"], "skip_train": True},
    ],
)
def test_validations_need_a_validation_set(data: dict[str, Any]) -> None:
    def rules(release: str, **more: Any) -> list[str]:
        argv = to_argv(STARTS | {"mock_data": False, "eval_iters": 1} | data | more, release)
        return [each.rule for each in check(argv, 8, release, machine=APEX, first_iteration=True)]

    assert rules("core_v0.16.1") == ["iteration.validation-data"]
    assert rules("core_v0.19.0") == ["iteration.validation-data"]
    assert rules("core_v0.13.1") == []
    assert rules("core_v0.16.1", eval_iters=0) == []


@pytest.mark.parametrize(
    "data",
    [
        {"train_data_path": ["t"], "valid_data_path": ["v"]},
        {"data_path": ["d"]},
        {"data_path": ["d"], "split": "99 1"},
        {"mock_data": True, "split": "100,0,0"},
        {"per_split_data_args_path": "sets.json"},
    ],
)
def test_data_with_a_validation_set(data: dict[str, Any]) -> None:
    argv = to_argv(STARTS | {"mock_data": False, "eval_iters": 1} | data, "core_v0.16.1")
    assert check(argv, 8, "core_v0.16.1", machine=APEX, first_iteration=True) == []


def test_several_validation_sets_need_full_validation() -> None:
    argv = to_argv(STARTS | {"mock_data": True, "multiple_validation_sets": True}, "core_v0.16.1")
    (problem,) = check(argv, 8, "core_v0.16.1", machine=APEX, first_iteration=True)
    assert problem.rule == "iteration.several-validation-sets"


def test_rules_look_at_settings_that_there_are() -> None:
    known = set(vars(Settings("core_v0.19.0", {}, 1, Machine()))) | set(dir(Settings))
    for module in Path(validation.__file__).parent.rglob("*.py"):
        assert set(re.findall(r"\bs\.([a-z]\w+)", module.read_text())) <= known, module.name


def test_vocabulary_files_until_the_tokenizer_is_another_one() -> None:
    params = STARTS | {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "vocab.json"}
    found = {
        release: [
            problem.rule
            for problem in check(to_argv(params, release), 8, release, machine=APEX, first_iteration=True)
        ]
        for release in RELEASES
    }
    assert found == {"core_v0.16.1": ["tokenizer.vocabulary-files"], "core_v0.19.0": []}


@pytest.mark.parametrize(
    ("tokens", "rule"),
    [
        (["--num-layer", "3"], "parse.unknown-flag"),
        (["--micro-batch-size", "four"], "parse.type"),
        (["--lr-decay-style", "wsd"], "parse.choice"),
        (["--bf16=1"], "parse.flag-value"),
        (["--bf16", "1"], "parse.stray-value"),
        (["--lr"], "parse.value-missing"),
        (["--rampup-batch-size", "1", "2"], "parse.value-missing"),
        (["--moe-layer-freq", "[0]*x"], "parse.type"),
        (["--", "--bf16"], "parse.stray-value"),
        (["--help"], "parse.help"),
    ],
)
def test_what_the_parser_refuses(tokens: list[str], rule: str) -> None:
    problems = check([*to_argv(BASE, "core_v0.16.1"), *tokens], 8, "core_v0.16.1")
    assert [problem.rule for problem in problems][:1] == [rule]


def test_unknown_flags_name_the_nearest() -> None:
    problem = check(["--num-layer", "3"], 1, "core_v0.16.1")[0]
    assert problem.message == "core_v0.16.1 has no argument --num-layer"
    assert "--num-layers" in problem.hint


def test_layer_patterns() -> None:
    assert layer_pattern("3") == 3
    assert layer_pattern("([0]*3+[1]*1)*2") == [0, 0, 0, 1, 0, 0, 0, 1]
    for text in ("[1]*9999999999", "[1]+2", "[__import__]", "[1"):
        with pytest.raises((ValueError, SyntaxError)):
            layer_pattern(text)


def test_pipeline_layouts() -> None:
    assert layout_stages("Ettt|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]
    assert layout_stages("Et*3|t*2L") == ["Ettt", "ttL"]
    assert layout_stages("Ex|L") is None
    assert layout_stages("E" + "t*99999999" + "L") is None
    fits = {"pipeline_model_parallel_layout": "Et*6|t*6L", "pipeline_model_parallel_size": 2}
    assert rules_broken(**fits) == []
    assert rules_broken(**(fits | {"num_layers": 11})) == ["pipeline.layout-layers"]


def test_nearest_values() -> None:
    assert multiples(50, 32) == "32 or 64"
    assert multiples(-3, 4) == "4"
    assert divisors(12, 5) == "4 or 6"
    assert divisors(0, 5) == "1"


@pytest.mark.parametrize("release", known_releases())
def test_every_rule_can_be_asked_of_every_release(release: str) -> None:
    """A rule with a setting that no release has would raise an error."""
    values = BASE | {"moe_ffn_hidden_size": None}
    settings_of_job = Settings(release, values, 8, Machine())
    assert BEFORE_THE_MODEL.broken_by(settings_of_job) == []
    names = [item.name for item in BEFORE_THE_MODEL if isinstance(item, Rule)]
    assert len(names) == len(set(names))


def test_fork_flags_are_declared() -> None:
    extra = {"--our-scale": {"type": "float"}, "our_switch": {"action": "StoreTrue"}}
    params = BASE | {"our_scale": 0.5, "our_switch": True}
    with pytest.raises(ArgumentError, match="no such argument"):
        to_argv(params, "core_v0.16.1")
    table = with_extra(argument_table("core_v0.16.1"), extra)
    argv = to_argv(params, table)
    assert argv[-3:] == ["--our-scale", "0.5", "--our-switch"]
    fork = CommandLineReader(table)
    assert check(argv, 8, "core_v0.16.1", flags=fork) == []
    assert [problem.rule for problem in check(argv, 8, "core_v0.16.1")] == ["parse.unknown-flag"] * 2


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ({"--num-layers": {}}, "drop the declaration"),
        ({"--x": {"kind": "int"}}, "cannot declare 'kind'"),
        ({"--x": {"type": "complex"}}, "type cannot be"),
        ({"--x": {"action": "Append"}}, "action cannot be"),
        ({"--x": {"action": "StoreTrue", "type": "int"}}, "is a flag"),
    ],
)
def test_bad_declarations_are_refused(declaration: dict[str, Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        with_extra(argument_table("core_v0.16.1"), declaration)


@pytest.mark.parametrize("release", RELEASES)
def test_arguments_in_a_yaml_file_are_refused(release: str) -> None:
    """Upstream then ignores the command line, including ``--save`` and ``--load``."""
    assert rules_broken(release, yaml_cfg="model.yaml") == ["data.yaml-file"]


@pytest.mark.parametrize(
    ("release", "refuses"), [("core_v0.14.0", False), ("core_v0.15.3", False), ("core_v0.16.1", True)]
)
def test_what_only_later_releases_refuse(release: str, refuses: bool) -> None:
    """Verdicts of the parsers and TransformerConfigs of these releases."""
    groups = rules_broken(
        release, multi_latent_attention=True, group_query_attention=True, position_embedding_type="rope"
    )
    assert ("network.latent-attention-groups" in groups) is refuses
    first = rules_broken(release, decoder_first_pipeline_num_layers=5)  # of a pipeline with one stage
    assert first == ["pipeline.uneven-stages"] * refuses


@pytest.mark.parametrize(
    ("rule", "params", "last", "first"),
    [
        (
            "network.latent-any-fusion",
            {"multi_latent_attention": True, "position_embedding_type": "rope", "apply_rope_fusion": True},
            "core_v0.12.0",
            "core_v0.13.1",
        ),
        (
            "network.interleaved-fusion",
            {"rotary_interleaved": True, "position_embedding_type": "rope", "apply_rope_fusion": True},
            "core_v0.13.1",
            "core_v0.14.0",
        ),
        (
            "moe.specification",
            {"num_experts": 8, "spec": ["a", "b"], "add_bias_linear": False},
            "core_v0.15.3",
            "core_v0.16.1",
        ),
        (
            "cuda-graph.any-recomputation",
            {"enable_cuda_graph": True, "te_rng_tracker": True, "recompute_granularity": "selective"},
            "core_v0.14.0",
            "core_v0.16.1",
        ),
    ],
)
def test_what_only_earlier_releases_refuse(rule: str, params: dict[str, Any], last: str, first: str) -> None:
    machine = Machine.of(transformer_engine="2.8")
    for release, refuses in (("core_v0.12.0", True), (last, True), (first, False)):
        found = check(to_argv(BASE | params, release), 8, release, machine=machine)
        assert (rule in [problem.rule for problem in found]) is refuses


@pytest.mark.parametrize(
    ("params", "refuses"),
    [
        ({"recompute_granularity": "selective"}, True),
        ({"recompute_granularity": "selective", "cuda_graph_scope": "attn"}, True),
        (
            {
                "recompute_granularity": "selective",
                "cuda_graph_scope": "attn",
                "recompute_modules": ["layernorm"],
            },
            False,
        ),
        (
            {
                "recompute_granularity": "selective",
                "cuda_graph_impl": "local",
                "cuda_graph_scope": "attn",
                "recompute_modules": ["layernorm"],
            },
            True,
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            True,
        ),
        ({}, False),
    ],
)
def test_recomputation_beside_graphs_in_core_0_15(params: dict[str, Any], refuses: bool) -> None:
    machine = Machine.of(transformer_engine="2.8")
    graphs = {"transformer_impl": "transformer_engine", "cuda_graph_impl": "transformer_engine"}
    argv = to_argv(BASE | graphs | {"te_rng_tracker": True} | params, "core_v0.15.3")
    found = [problem.rule for problem in check(argv, 8, "core_v0.15.3", machine=machine)]
    assert found == ["cuda-graph.recomputation-outside-attention"] * refuses


@pytest.mark.parametrize(
    ("params", "refuses"),
    [
        ({}, True),
        ({"train_iters": None, "train_samples": 6400}, False),
        ({"train_iters": None, "train_samples": 6400, "pipeline_model_parallel_size": 2}, True),
    ],
)
@pytest.mark.parametrize("release", ["core_v0.12.0", "core_v0.15.3"])
def test_retrievers_before_core_0_16(release: str, params: dict[str, Any], refuses: bool) -> None:
    argv = to_argv(BASE | {"retro_add_retriever": True} | params, release)
    assert [problem.rule for problem in check(argv, 8, release)] == ["network.retrieval"] * refuses


def test_a_line_brings_the_environment_of_its_job() -> None:
    split = {"argv": to_argv(BASE | {"tensor_model_parallel_size": 2}, "core_v0.16.1"), "world_size": 8}
    one = {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
    lines = [split, split | {"env": {}}, split | {"env": one}, split | {"env": {"NCCL_ALGO": "Ring"}}]

    def accepted(**known: Any) -> list[bool]:
        return [
            json.loads(answer)["ok"]
            for answer in check_lines(map(json.dumps, lines), "core_v0.16.1", **known)
        ]

    assert accepted() == [True, False, True, False]
    assert accepted(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) == [True] * 4


def test_lines_in_lines_out() -> None:
    good = {"argv": to_argv(BASE, "core_v0.16.1"), "world_size": 8}
    stream = io.StringIO(json.dumps(good) + "\n\n" + json.dumps(good | {"world_size": 7}) + "\n")
    answers = [json.loads(line) for line in check_lines(stream, "core_v0.16.1")]
    assert answers[0] == {"ok": True, "problems": []}
    assert answers[1]["ok"] is False
    assert set(answers[1]["problems"][0]) == {"rule", "message", "hint", "source"}


@pytest.mark.parametrize(
    "line",
    [
        *(
            "{",
            "[]",
            '{"argv": [], "world_size": 1, "env": [1]}',
            '{"argv": [], "world_size": 1, "env": {"A": []}}',
            '{"argv": [], "world_size": 1, "environment": {"A": "1"}}',
        ),
        *('{"argv": "--bf16", "world_size": 1}', '{"argv": [], "world_size": true}', '{"argv": []}'),
    ],
)
def test_bad_lines_name_their_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: write"):
        list(check_lines(["\n", line], "core_v0.16.1"))


def small_parser() -> tuple[argparse.ArgumentParser, CommandLineReader]:
    """A parser of argparse's own, and ours for the same declarations."""
    extra: dict[str, dict[str, Any]] = {
        "--count": {"type": "int"},
        "--rate": {"type": "float"},
        "--name": {},
        "--kind": {"choices": ["a", "b"]},
        "--many": {"nargs": "+", "type": "int"},
        "--any": {"nargs": "*"},
        "--three": {"nargs": 3, "type": "int"},
        "--on": {"action": "StoreTrue"},
        "--off": {"action": "StoreFalse"},
        "--both": {"action": "BooleanOptional"},
    }
    empty = argument_table("core_v0.16.1")
    ours = with_extra(type(empty)("fork", []), extra)
    theirs = argparse.ArgumentParser(allow_abbrev=False)
    kinds: dict[str | None, Any] = {"int": int, "float": float, None: str}
    for argument in ours:
        if argument.action == "BooleanOptional":
            theirs.add_argument(argument.flags[0], action=argparse.BooleanOptionalAction)
        elif argument.is_flag:
            action = "store_true" if argument.action == "StoreTrue" else "store_false"
            theirs.add_argument(*argument.flags, action=action)
        else:
            theirs.add_argument(
                *argument.flags, type=kinds[argument.type], nargs=argument.nargs, choices=argument.choices
            )
    return theirs, CommandLineReader(ours)


THEIRS, OURS = small_parser()
TOKENS = [
    *(
        "--count",
        "--rate",
        "--name",
        "--kind",
        "--many",
        "--any",
        "--three",
        "--on",
        "--off",
        "--both",
        "--no-both",
    ),
    *(
        "1",
        "-1",
        "-.5",
        "2.5",
        "a",
        "b",
        "x y",
        "-x",
        "- x",
        "-x y",
        "",
        "-",
        "--",
        "--cou",
        "-5x",
        "--on=1",
        "--count=7",
        "--kind=",
        "--many=3",
    ),
    *("--name=--on", "--x=1", "--three=1", "--any=z", "-1e5", "0x1", "1_0"),
]


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=8))
def test_reads_as_argparse_does(argv: list[str]) -> None:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stderr", io.StringIO())
            expected: dict[str, Any] | None = vars(THEIRS.parse_args(argv))
    except SystemExit:
        expected = None
    values, problems = OURS.read(argv)
    assert bool(problems) == (expected is None)
    if expected is not None:
        defaults = vars(THEIRS.parse_args([]))
        assert defaults | values == expected


def test_reader_is_made_once_per_release() -> None:
    assert reader(argument_table("core_v0.16.1")) is reader(argument_table("core_v0.16.1"))


BARE = {"no_persist_layer_norm": True, "gradient_accumulation_fusion": False, "masked_softmax_fusion": False}
SEQUENCE = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
WITH_EXPERTS = EXPERTS | {"expert_model_parallel_size": 2}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("changes", "rule", "package"),
    [
        ({}, None, None),
        ({"normalization": "RMSNorm", "qk_layernorm": True}, None, None),
        ({"tensor_model_parallel_size": 2}, None, None),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
            "iteration.recomputed-mlp-bias",
            None,
        ),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["mlp"], "add_bias_linear": False},
            None,
            None,
        ),
        (WITH_EXPERTS, None, None),
        ({"no_persist_layer_norm": None}, "model.local-layer-norm", "apex"),
        (SEQUENCE, "model.local-layer-norm", "apex"),
        (WITH_EXPERTS | SEQUENCE, "model.local-layer-norm", "apex"),
        ({"apply_layernorm_1p": True}, "model.local-layer-norm", "apex"),
        ({"normalization": "RMSNorm", "no_persist_layer_norm": None}, "model.local-rms-norm", None),
        (SEQUENCE | {"normalization": "RMSNorm"}, "model.local-rms-norm", None),
        ({"normalization": "RMSNorm", "apply_layernorm_1p": True}, "model.local-rms-norm", None),
        ({"masked_softmax_fusion": True}, "iteration.masked-softmax-fusion", "apex"),
        ({"gradient_accumulation_fusion": True}, "model.gradient-accumulation-fusion", "apex"),
        ({"multi_latent_attention": True}, "model.local-latent-attention", None),
        (WITH_EXPERTS | {"moe_token_dispatcher_type": "flex"}, "model.flexible-dispatcher", "deep_ep"),
        (WITH_EXPERTS | {"moe_router_fusion": True}, "iteration.router-fusion", None),
        ({"cpu_offloading_num_layers": 1}, "model.cpu-offloading", None),
        (
            {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True},
            "model.precision-aware-optimizer",
            None,
        ),
        ({"optimizer": "muon"}, "model.muon", "emerging_optimizers"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]},
            "iteration.recomputed-norms",
            None,
        ),
        (
            {"position_embedding_type": "mrope", "mrope_section": [2, 1, 1]},
            "iteration.multimodal-positions",
            None,
        ),
    ],
)
def test_models_without_transformer_engine(
    release: str, changes: dict[str, Any], rule: str | None, package: str | None
) -> None:
    """The results are those of ``pretrain_gpt.py`` without Transformer Engine and Apex."""
    params = {name: value for name, value in (STARTS | BARE | changes).items() if value is not None}
    argv = to_argv(params, release)
    found = [problem.rule for problem in check(argv, 8, release, first_iteration=True)]
    assert found == [rule] * bool(rule)
    if package:
        machine = Machine(packages=frozenset({package}))
        assert check(argv, 8, release, machine=machine, first_iteration=True) == []


@pytest.mark.parametrize("release", RELEASES)
def test_the_output_layer_needs_apex_with_transformer_engine_too(release: str) -> None:
    """Observed on an H200 with Transformer Engine 2.13 and no Apex."""
    fused = {"transformer_impl": "transformer_engine", "gradient_accumulation_fusion": True}
    for missing, changes, expected in (
        ((), fused, []),
        (("apex",), fused, ["model.gradient-accumulation-fusion"]),
        (("apex",), fused | {"gradient_accumulation_fusion": False}, []),
        (("apex",), {"gradient_accumulation_fusion": True}, ["model.gradient-accumulation-fusion"]),
    ):
        machine = Machine.of(transformer_engine="2.13", missing=missing)
        argv = to_argv(STARTS | BARE | changes, release)
        problems = check(argv, 8, release, machine=machine, first_iteration=True)
        assert [problem.rule for problem in problems] == expected


def test_norms_of_the_starter_without_gpus_are_sequence_parallel() -> None:
    for norm in ("LayerNorm", "RMSNorm"):
        argv = to_argv(STARTS | BARE | SEQUENCE | {"normalization": norm}, "core_v0.16.1")
        assert check(argv, 8, "core_v0.16.1", machine=Machine(device="cpu"), first_iteration=True) == []


def test_a_profile_without_transformer_engine_builds_no_layers_of_it() -> None:
    argv = to_argv(STARTS | BARE | {"transformer_impl": "transformer_engine"}, "core_v0.16.1")
    assert check(argv, 8, "core_v0.16.1", first_iteration=True) == []  # the machine is unknown
    profile = Machine(is_complete=True)
    (problem,) = check(argv, 8, "core_v0.16.1", machine=profile, first_iteration=True)
    assert problem.rule == "model.transformer-engine"


@pytest.mark.parametrize("release", RELEASES)
def test_zero_centred_norms_are_not_optimized_for_inference(release: str) -> None:
    optimized = {
        "transformer_impl": "inference_optimized",
        "normalization": "RMSNorm",
        "add_bias_linear": False,
    }
    engine = Machine(transformer_engine=(2, 8))
    for zero_centred in (False, True):
        argv = to_argv(BASE | optimized | {"apply_layernorm_1p": zero_centred}, release)
        assert bool(check(argv, 8, release, machine=engine)) is zero_centred


SIZES = (
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"),
    *("--expert-model-parallel-size", "--expert-tensor-parallel-size", "--num-experts", "--moe-router-topk"),
    *("--num-layers", "--num-attention-heads", "--num-query-groups", "--hidden-size", "--ffn-hidden-size"),
    *("--seq-length", "--micro-batch-size", "--global-batch-size", "--moe-ffn-hidden-size", "--kv-channels"),
    *("--num-layers-per-virtual-pipeline-stage", "--save-interval", "--log-interval"),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_no_size_raises(data: st.DataObject) -> None:
    """Sizes of 0 and less get a verdict: every rule that divides by them tests them first."""
    release = data.draw(st.sampled_from(known_releases()))
    table = program_table(release)
    others = [argument.flags[0] for argument in table if argument.type == "int" and not argument.is_list]
    small = st.sampled_from((0, 0, 1, -1, 2, 3, 4, 8))
    known = [flag for flag in SIZES if table.get(flag.removeprefix("--").replace("-", "_"))]
    sizes = data.draw(st.dictionaries(st.sampled_from(known), small, max_size=6))
    sizes |= data.draw(st.dictionaries(st.sampled_from(others), small, max_size=3))
    flags = data.draw(
        st.sets(st.sampled_from(("--group-query-attention", "--sequence-parallel", "--swiglu")))
    )
    argv = [*to_argv(STARTS, release), *flags, *(str(word) for pair in sizes.items() for word in pair)]
    for problem in check(argv, data.draw(st.sampled_from((1, 2, 8))), release, first_iteration=True):
        assert problem.message
        assert problem.hint


@pytest.mark.parametrize(
    ("release", "changes"),
    [
        *((release, {"expert_model_parallel_size": 0}) for release in RELEASES),
        ("core_v0.16.1", {"expert_tensor_parallel_size": 0}),
        ("core_v0.16.1", EXPERTS | {"expert_tensor_parallel_size": 0}),
    ],
)
def test_expert_groups_of_no_gpu(release: str, changes: dict[str, Any]) -> None:
    (problem,) = check(to_argv(STARTS | changes, release), 8, release, machine=APEX, first_iteration=True)
    assert problem.rule == "parallel.expert-groups"
    assert problem.hint == "parallel sizes of at least 1"


LLAMA: dict[str, Any] = {
    "swiglu": True,
    "normalization": "RMSNorm",
    "group_query_attention": True,
    "num_query_groups": 4,
    "use_rotary_position_embeddings": True,
    "position_embedding_type": "rope",
    "use_rope_scaling": True,
    "untie_embeddings_and_output_weights": True,
}
"""Flags with which upstream builds heterogeneous layers."""


def layers_configuration(**changes: Any) -> str:
    """Return a configuration of heterogeneous layers with the sizes of BASE and LLAMA."""
    content: dict[str, Any] = {
        "hidden_act": "silu",
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rope_scaling": {"factor": 8},
        "block_configs": [{"attention": {"n_heads_in_group": size}} for size in (3, None, 3)],
    }
    return json.dumps({name: value for name, value in (content | changes).items() if value is not None})


@pytest.mark.parametrize("release", RELEASES)
def test_heterogeneous_layers(release: str) -> None:
    name = "heterogeneous_layers_config_encoded_json"
    assert rules_broken(release, **LLAMA, **{name: layers_configuration()}) == []
    for changes in (
        {"block_configs": None},
        {"block_configs": []},
        {"block_configs": [{"attention": {"n_heads_in_group": 0}}]},
        {"block_configs": [{"attention": {"n_heads_in_group": size}} for size in (2, 3)]},
        {"rope_scaling": {}},
        {"hidden_act": "gelu"},
    ):
        assert rules_broken(release, **LLAMA, **{name: layers_configuration(**changes)}) == [
            "network.heterogeneous-layers"
        ]
    for where in ({name: layers_configuration()}, {"heterogeneous_layers_config_path": "layers.json"}):
        argv = to_argv(BASE | LLAMA | where | {"swiglu": None}, release)
        (problem,) = check(argv, 8, release)
        assert (problem.rule, problem.hint) == ("network.heterogeneous-flags", "--swiglu")
    sizes = layers_configuration(hidden_size=1024, tie_word_embeddings=True)
    (problem,) = check(to_argv(BASE | LLAMA | {name: sizes}, release), 8, release)
    assert problem.rule == "network.heterogeneous-sizes"
    assert problem.hint == "--hidden-size 1024, no --untie-embeddings-and-output-weights"


HYBRID_CONTEXT: dict[str, Any] = {
    "context_parallel_size": 2,
    "hybrid_context_parallel": True,
    "calculate_per_token_loss": True,
}
OVERLAP: dict[str, Any] = {
    "num_experts": 8,
    "add_bias_linear": False,
    "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall",
    "overlap_moe_expert_parallel_comm": True,
}
PREDICTED: dict[str, Any] = {"mtp_num_layers": 1, "position_embedding_type": "rope"}
RL: dict[str, Any] = {"perform_rl_step": True, "grpo_prompts_per_step": 16, "grpo_group_size": 4}
SPARSE: dict[str, Any] = {
    "experimental_attention_variant": "dsa",
    "multi_latent_attention": True,
    "add_bias_linear": False,
    "dsa_indexer_n_heads": 4,
    "dsa_indexer_head_dim": 32,
    "dsa_indexer_topk": 16,
}
DELAYED: dict[str, Any] = OVERLAP | {"delay_wgrad_compute": True, "transformer_impl": "transformer_engine"}
GRAPHS: dict[str, Any] = {"cuda_graph_impl": "transformer_engine"}


@pytest.mark.parametrize(
    ("release", "changes", "machine", "expected"),
    [
        ("core_v0.16.1", HYBRID_CONTEXT | {"external_cuda_graph": True}, {}, []),
        (
            "core_v0.16.1",
            HYBRID_CONTEXT | {"enable_cuda_graph": True},
            {},
            ["parallel.hybrid-context-cuda-graph"],
        ),
        ("core_v0.16.1", OVERLAP | PREDICTED, {}, ["moe.overlap"]),
        ("core_v0.17.1", OVERLAP | PREDICTED, {}, ["moe.overlap"]),
        ("core_v0.18.2", OVERLAP | PREDICTED, {}, []),
        ("core_v0.16.1", OVERLAP | {"recompute_modules": ["moe"]}, {}, []),
        ("core_v0.17.1", OVERLAP | {"recompute_modules": ["moe"]}, {}, ["moe.overlap"]),
        ("core_v0.18.2", OVERLAP | {"moe_layer_recompute": True}, {}, ["moe.overlap"]),
        ("core_v0.16.1", DELAYED, {"transformer_engine": "2.8"}, []),
        (
            "core_v0.16.1",
            DELAYED | GRAPHS,
            {"transformer_engine": "2.8"},
            ["moe.delayed-weight-gradients-in-graphs"],
        ),
        ("core_v0.16.1", DELAYED | GRAPHS, {"transformer_engine": "2.10"}, []),
        ("core_v0.16.1", RL | {"global_batch_size": None}, {}, ["rl.samples"]),
        ("core_v0.17.1", RL | {"global_batch_size": None}, {}, []),
        ("core_v0.19.0", RL | {"global_batch_size": 96}, {}, ["rl.samples"]),
        ("core_v0.18.2", RL | {"rl_num_parallel_generations": 8}, {}, ["rl.parallel-generations"]),
        ("core_v0.18.2", RL | {"rl_parallel_generation_tasks": 3}, {}, ["rl.parallel-generations"]),
        (
            "core_v0.18.2",
            RL | {"rl_parallel_generation_tasks": 3, "rl_partial_rollouts": True},
            {},
            [],
        ),
        (
            "core_v0.18.2",
            RL | {"rl_num_parallel_generations": 6, "rl_partial_rollouts": True},
            {},
            ["rl.parallel-generations"],
        ),
        (
            "core_v0.18.2",
            {"inference_dynamic_batching_sampling_backend": "flashinfer"},
            {},
            ["inference.sampling"],
        ),
        (
            "core_v0.18.2",
            {"inference_dynamic_batching_sampling_backend": "flashinfer"},
            {"packages": ["flashinfer"]},
            [],
        ),
        ("core_v0.19.0", {"inference_dynamic_batching_sampling_backend": "flashinfer"}, {}, []),
        ("core_v0.19.0", SPARSE | {"dsa_kernel_backend": "cudnn"}, {}, ["network.sparse-attention-kernels"]),
        (
            "core_v0.19.0",
            SPARSE | {"dsa_kernel_backend": "cudnn"},
            {"packages": ["cudnn", "flash_mla"]},
            [],
        ),
        ("core_v0.19.0", SPARSE, {}, []),
    ],
)
def test_rare_features_of_each_release(
    release: str, changes: dict[str, Any], machine: dict[str, Any], expected: list[str]
) -> None:
    """Found by comparing thousands of random command lines with each release."""
    params = {name: value for name, value in (BASE | changes).items() if value is not None}
    problems = check(to_argv(params, release), 8, release, machine=Machine.of(**machine))
    assert [problem.rule for problem in problems] == expected
