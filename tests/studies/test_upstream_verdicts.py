"""Launch commands and mutated ones: the rules refuse what upstream itself refuses, and take what it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from shipped import launch_specs
from upstream import UpstreamMissingError, find_upstream
from upstream_answers import command_line_of, upstream_answers

from airflow_megatron.megatron.arguments.tables import Argument, program_table, to_argv
from airflow_megatron.megatron.validation import Machine, check
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trainer

RELEASE = "core_v0.16.1"
MUTATIONS = 250
SIZES = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "seq_length": 1024,
    "max_position_embeddings": 1024,
    "micro_batch_size": 2,
    "global_batch_size": 64,
    "train_iters": 100,
    "lr": 3e-4,
    "bf16": True,
    "eval_interval": 50,
    "vocab_file": "vocab.json",
    "merge_file": "merges.txt",
}
EXPERTS = {"num_experts": 8, "expert_model_parallel_size": 2, "moe_router_topk": 2, "moe_grouped_gemm": True}
STARTS: list[dict[str, Any]] = [
    SIZES,
    SIZES | {"tensor_model_parallel_size": 2, "sequence_parallel": True, "use_distributed_optimizer": True},
    SIZES | {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 3},
    SIZES | {"context_parallel_size": 2, "position_embedding_type": "rope", "fp8_format": "hybrid"},
    SIZES | EXPERTS | {"add_bias_linear": False, "lr_decay_style": "WSD", "lr_wsd_decay_iters": 10},
    SIZES | {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor", "use_distributed_optimizer": True},
]
#: What reads files, or ends the process, whatever the other arguments are.
_LEFT_OUT = (
    *("yaml_cfg", "use_checkpoint_args", "exit_on_missing_checkpoint"),
    *("heterogeneous_layers_config_path", "te_precision_config_file", "kitchen_config_file"),
)


def mutated(chance: random.Random) -> dict[str, Any]:
    """Return a command line with one or two arguments dropped, changed or added, and the machine it is for."""
    params = dict(chance.choice(STARTS))
    table = program_table(RELEASE)
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if "use_megatron_fsdp" in params else "1"}
    line: dict[str, Any] = {"world_size": 8, "env": environment, "transformer_engine": "2.8"}
    more: list[str] = []
    for _ in range(chance.choice((1, 1, 2))):
        kind = chance.random()
        if kind < 0.2:
            params.pop(chance.choice(list(params)), None)
        elif kind < 0.5:
            name = chance.choice([name for name, value in params.items() if type(value) is int])
            params[name] = chance.choice((params[name] * 3, params[name] // 2, params[name] + 1, 0))
        elif kind < 0.9:
            more += _added(chance.choice([each for each in table if each.dest not in _LEFT_OUT]), chance)
        elif kind < 0.95:
            line["world_size"] = chance.choice((1, 2, 4, 6, 16))
        else:
            line |= chance.choice(({"env": {}}, {"transformer_engine": None}, {"compute_capability": 10}))
    return {**line, "argv": [*to_argv(params, RELEASE), *more]}


def _added(argument: Argument, chance: random.Random) -> list[str]:
    flag = chance.choice(argument.flags)
    if argument.is_flag:
        return [flag]
    values = {"int": ("0", "1", "2", "4", "-1"), "float": ("0", "0.5", "1", "-1")}.get(
        argument.type or "", ("a", "1")
    )
    word = str(chance.choice(argument.choices)) if argument.choices else chance.choice(values)
    return [flag, word]


@pytest.fixture
def checkout() -> Path:
    try:
        return find_upstream(RELEASE)
    except UpstreamMissingError as error:
        pytest.skip(str(error))


def test_upstream_takes_the_launch_commands_of_the_studies(checkout: Path) -> None:
    jobs = [job for path in launch_specs() for job in check_sweep(load_sweep(path)).jobs]
    answers = upstream_answers([command_line_of(job) for job in jobs], checkout, RELEASE)
    refused = [
        (job.name, answer["message"]) for job, answer in zip(jobs, answers, strict=True) if not answer["ok"]
    ]
    assert refused == []


def test_mutated_command_lines_are_judged_as_upstream_judges_them(checkout: Path) -> None:
    chance = random.Random(16)
    lines = [mutated(chance) for _ in range(MUTATIONS)]
    answers = upstream_answers(lines, checkout, RELEASE)
    different = []
    for line, answer in zip(lines, answers, strict=True):
        machine = Machine.of(
            transformer_engine=line["transformer_engine"],
            compute_capability=line.get("compute_capability"),
            environment=line["env"],
        )
        problems = check(line["argv"], line["world_size"], RELEASE, machine=machine)
        if bool(problems) is answer["ok"]:
            different.append((line, answer, problems))
    assert different == []
    taken = sum(answer["ok"] for answer in answers)
    assert MUTATIONS // 4 < taken < MUTATIONS * 9 // 10  # both kinds are among them
