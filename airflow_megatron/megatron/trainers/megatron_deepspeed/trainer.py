"""Megatron-DeepSpeed: its own arguments, its configuration file, its entries.

``arguments.json`` is made from argonne-lcf/Megatron-DeepSpeed, commit ffa3456d, as that of ``megatron_core``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.lr_search import LEAST_POINTS
from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.trainers.megatron_deepspeed.alcf_launch import alcf_command, own_arguments
from airflow_megatron.megatron.trainers.megatron_deepspeed.argument_rules import check_arguments
from airflow_megatron.megatron.trainers.megatron_deepspeed.configuration import (
    CONFIG,
    TRAINER,
    deepspeed_config,
)
from airflow_megatron.megatron.trainers.megatron_deepspeed.log_lines import in_megatrons_words
from airflow_megatron.megatron.trainers.trainer import MegatronTrainer, checkout_of
from airflow_megatron.spec.documents.checkpoint_directories import deepspeed_tag
from airflow_megatron.spec.expressions.file_values import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class MegatronDeepSpeed(MegatronTrainer):
    """argonne-lcf/Megatron-DeepSpeed, in a checkout on the cluster."""

    launchers = ("mpiexec", "deepspeed")
    resumes_by_tag = True
    suggests_afterwards = True
    leaves_out_saving = False
    evaluates_at_end = False
    not_converted = (
        "the converter does not read DeepSpeed's checkpoints; "
        "use kind: command with Megatron-DeepSpeed's mds_to_hf.py"
    )
    no_estimates = "there are estimates for Megatron-LM and megatron_core only"

    def load_words(self, iteration: int) -> tuple[str, ...]:
        """Return the arguments that choose a checkpoint by its tag."""
        return ("--load-tag", deepspeed_tag(iteration))

    def checkpoint_directory(self, iteration: int) -> str:
        """Return the tag of a checkpoint."""
        return deepspeed_tag(iteration)

    def in_megatrons_words(self, block: bytes) -> bytes:
        """Return lines of a log in Megatron-LM's wording."""
        return in_megatrons_words(block)

    def parser_name(self, table: ArgumentTable, release: str) -> str:
        """Return the name of its own parser, which does not depend on the Megatron release."""
        return table.release

    def program_name(self, release: str) -> str:
        """Return the name of its checkout in messages."""
        return "Megatron-DeepSpeed"

    def default_arguments(self, job: Job) -> dict[str, Any]:
        """Return the arguments of every training of this trainer.

        Its launchers also forward a signal to the data loading processes, which it ends before the training has saved.
        The default is therefore to load data in the training process.
        """
        pipeline = job.params.get("pipeline_model_parallel_size") or 1
        return {
            "deepspeed": True,
            "no_pipeline_parallel": True if pipeline == 1 else None,
            CONFIG: _config_file(job),
            "num_workers": 0,
            # a search for a learning rate saves nothing, but does not start without them
            "save_interval": job.params.get("train_iters") if job.stage_kind.searches else None,
        }

    def search_arguments(self, job: Job, arguments: dict[str, Any], table: ArgumentTable) -> dict[str, Any]:
        """Return the arguments of a search, which runs a tenth of the iterations.

        :raises CommandError: if these are too few
        """
        length = arguments.get("train_iters")
        if isinstance(length, int) and int(0.1 * length) < LEAST_POINTS:
            raise CommandError(
                "train_iters",
                f"stage {job.stage}: a search runs a tenth of train_iters {length}, too few steps to suggest a learning"
                f" rate; write {10 * LEAST_POINTS} or more",
            )
        return arguments

    def written_arguments(self, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the file of the configuration that the spec gives."""
        if isinstance(arguments.get(CONFIG), dict):
            arguments[CONFIG] = _config_file(job)
        return arguments

    def command(
        self, job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
    ) -> tuple[str, ...]:
        """Return the command of the entry in the cluster's profile."""
        if self.launches_itself(job, cluster):
            return _alcf_words(job, arguments, table, checkout_of(job, cluster))
        words, entry = to_argv(arguments, table), cluster.trainer(TRAINER).entry or "pretrain_gpt_alcf.py"
        return (cluster.python_of(job.trainer), f"{checkout_of(job, cluster)}/{entry}", *words)

    def launches_itself(self, job: Job, cluster: ClusterProfile) -> bool:
        """Return whether a job runs ``train_alcf.sh``."""
        own = cluster.trainer(TRAINER).entry == "train_alcf.sh"
        return own and job.runs_trainer and not job.command

    def files(self, job: Job, arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, str]:
        """Return DeepSpeed's configuration as JSON, unless the spec names a file.

        :raises ArgumentError: for inconsistent arguments, and a ``deepspeed_config`` that contradicts them.
        """
        given = job.params.get(CONFIG)
        given = given if isinstance(given, dict) else {}  # otherwise the path of a user's file
        config = deepspeed_config(_checked(arguments, table), given, job.world_size)
        own = arguments[CONFIG] == _config_file(job)
        return {_config_file(job): json.dumps(config, indent=1) + "\n"} if own else {}


def _config_file(job: Job) -> str:
    """Return the path to which a job's script writes DeepSpeed's configuration."""
    return f"{job.stage_dir}/{CONFIG}.json"


def _alcf_words(
    job: Job, arguments: Mapping[str, Any], table: ArgumentTable, checkout: str
) -> tuple[str, ...]:
    """Return the command that runs ``train_alcf.sh``.

    :param arguments: as on the command line of the other entries.
    :raises ArgumentError: for arguments that the script does not support.
    """
    if job.params.get(CONFIG):
        raise ArgumentError(CONFIG, TRAINER, "train_alcf.sh makes its own; drop it, or use another entry")
    if job.stage_kind.reported_as == "benchmark":
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
    own = own_arguments() - later  # its own --lr precedes the given arguments
    extra = {
        name: value
        for name, value in arguments.items()
        if (known := table.get(name)) is None or known.dest not in own
    }
    values = {argument.dest: argument.default for argument in table} | _checked(arguments, table)
    per_node = job.world_size // (job.slurm.nodes or 1)
    return alcf_command(values, to_argv(extra, table), checkout, job.world_size, per_node)


def _checked(arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, Any]:
    """Return the given arguments as ``dest`` → value, after checking that the trainer accepts them."""
    values, _ = reader(table).read(to_argv(arguments, table))
    check_arguments(values)
    return values
