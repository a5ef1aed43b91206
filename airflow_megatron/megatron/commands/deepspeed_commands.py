"""What the jobs of the trainer ``megatron_deepspeed`` run: its own arguments, its configuration file, its entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.tables import ArgumentError, to_argv
from airflow_megatron.megatron.commands.alcf_launch import alcf_command, own_arguments
from airflow_megatron.megatron.commands.deepspeed_config import CONFIG, TRAINER, deepspeed_config
from airflow_megatron.megatron.commands.deepspeed_rules import check_arguments
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.spec.expressions.file_values import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


def launches_itself(job: Job, cluster: ClusterProfile) -> bool:
    """Return whether a job's command starts the training processes itself."""
    own = job.trainer == TRAINER and cluster.trainer(TRAINER).entry == "train_alcf.sh"
    return own and job.runs_trainer and not job.command


def default_arguments(job: Job) -> dict[str, Any]:
    """Return what every training of this trainer is given.

    Its launchers pass a signal on to the processes that read data too, which die of it before the training has saved:
    so it reads data itself, unless the spec says otherwise.
    """
    pipeline = job.params.get("pipeline_model_parallel_size") or 1
    return {
        "deepspeed": True,
        "no_pipeline_parallel": True if pipeline == 1 else None,
        CONFIG: config_file(job),
        "num_workers": 0,
        # a search for a learning rate saves nothing, but is not started without
        "save_interval": job.params.get("train_iters") if job.kind == "lr_finder" else None,
    }


def config_file(job: Job) -> str:
    """Return where a job's script writes DeepSpeed's configuration."""
    return f"{job.stage_dir}/{CONFIG}.json"


def config_text(job: Job, arguments: Mapping[str, Any], table: ArgumentTable) -> str:
    """Return the configuration as JSON.

    :param arguments: as on the command line.
    :raises ArgumentError: for arguments that do not fit together, and a ``deepspeed_config`` that contradicts them.
    """
    given = job.params.get(CONFIG)
    given = given if isinstance(given, dict) else {}  # else the path of a file of the user's own
    config = deepspeed_config(_checked(arguments, table), given, job.world_size)
    return json.dumps(config, indent=1) + "\n"


def alcf_words(
    job: Job, arguments: Mapping[str, Any], table: ArgumentTable, checkout: str
) -> tuple[str, ...]:
    """Return the command that runs ``train_alcf.sh``.

    :param arguments: as on the command line of the other entries.
    :raises ArgumentError: for what the script has no option for.
    """
    if job.params.get(CONFIG):
        raise ArgumentError(CONFIG, TRAINER, "train_alcf.sh makes its own; drop it, or use another entry")
    if job.kind == "benchmark":
        raise ArgumentError("kind", TRAINER, "train_alcf.sh always saves; use another entry for a benchmark")
    if job.restart.nodes:
        raise ArgumentError(
            "restart", TRAINER, "train_alcf.sh reads its nodes once; drop nodes, or use another entry"
        )
    later = {name for name, value in arguments.items() if path_of(value) is not None}
    if others := later - {"lr"}:
        raise ArgumentError(
            min(others), TRAINER, "train_alcf.sh takes no value that an earlier job writes, but lr"
        )
    own = own_arguments() - later  # its own --lr comes before the arguments that it is given
    extra = {
        name: value
        for name, value in arguments.items()
        if (known := table.get(name)) is None or known.dest not in own
    }
    values = {argument.dest: argument.default for argument in table} | _checked(arguments, table)
    per_node = job.world_size // int(job.slurm.nodes or 1)
    return alcf_command(values, to_argv(extra, table), checkout, job.world_size, per_node)


def _checked(arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, Any]:
    """Return the arguments that are given as the trainer keeps them, ``dest`` → value, if it would take them."""
    values, _ = reader(table).read(to_argv(arguments, table))
    check_arguments(values)
    return values
