"""Valid and invalid command lines of ``pretrain_gpt.py``, and the results of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import Argument, program_table
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.command_checks import check

if TYPE_CHECKING:
    import random

    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem

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
#: Arguments that read files or end the process, regardless of the other arguments.
_LEFT_OUT = (
    *("yaml_cfg", "use_checkpoint_args", "exit_on_missing_checkpoint"),
    *("heterogeneous_layers_config_path", "te_precision_config_file", "kitchen_config_file"),
)


def mutated(chance: random.Random, release: str) -> dict[str, Any]:
    """Return a command line with one or two arguments dropped, changed or added, and the machine it is for.

    Arguments that the release does not have are left out.

    :returns: a line as ``upstream_verdicts.py`` reads it
    """
    params = dict(chance.choice(STARTS))
    table = program_table(release)
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
    known = {name: value for name, value in params.items() if table.get(name)}
    return {**line, "argv": [*to_argv(known, release), *more]}


def _added(argument: Argument, chance: random.Random) -> list[str]:
    flag = chance.choice(argument.flags)
    if argument.is_flag:
        return [flag]
    values = {"int": ("0", "1", "2", "4", "-1"), "float": ("0", "0.5", "1", "-1")}.get(
        argument.type or "", ("a", "1")
    )
    word = str(chance.choice(argument.choices)) if argument.choices else chance.choice(values)
    return [flag, word]


def judged(line: dict[str, Any], release: str) -> tuple[ArgumentProblem, ...]:
    """Return the problems that the rules of a release find in a line."""
    machine = Machine.of(
        transformer_engine=line["transformer_engine"],
        compute_capability=line.get("compute_capability"),
        environment=line["env"],
    )
    return tuple(check(line["argv"], line["world_size"], release, machine=machine))
