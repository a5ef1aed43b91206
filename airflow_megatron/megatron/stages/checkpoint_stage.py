"""Stages that process checkpoints or converted models: one, each when it is saved, or those of several runs."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import msgspec

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.commands.commands import runs_list
from airflow_megatron.megatron.commands.words import options
from airflow_megatron.spec.model.stage_kinds import StageKind

if TYPE_CHECKING:
    from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job


class CheckpointStage(StageKind):
    """A stage that processes checkpoints or models; a subclass defines the command and its output."""

    def one_command(self, job: Job, cluster: ClusterProfile, iteration: int | str) -> tuple[str, ...]:
        """Return the command that processes one checkpoint.

        :param iteration: iteration of the checkpoint, or ``{iteration}`` as a placeholder
        """
        raise NotImplementedError(f"{type(self).__name__} has no command")

    def found_in(self, iteration: int | str) -> str:
        """Return the path pattern of a checkpoint below the ``{directory}`` of a run outside the sweep."""
        return "{directory}"

    def check_origin(self, job: Job) -> None:
        """Check the trainer of a job's checkpoints, unless a pattern names those of other runs.

        :raises CommandError: for checkpoints that it cannot process
        """

    def command(self, job: Job, cluster: ClusterProfile) -> tuple[str, ...]:
        """Return the command that processes the job's checkpoint, each checkpoint, or those of several runs."""
        if job.source is not None and job.source.is_pattern:
            return self._runs_command(job, job.source, cluster)
        self.check_origin(job)
        fresh = _each_checkpoint(job)
        if fresh is not None:
            return (
                *_each_program(cluster),
                *options(
                    source=fresh.path,
                    done=fresh.done,
                    from_iteration=fresh.iteration,
                    spacing=fresh.spacing,
                    last=fresh.last,
                ),
                *(("--required",) if job.source else ()),
                "--",
                *self.one_command(job, cluster, "{iteration}"),
            )
        if job.iteration is None:
            raise CommandError(
                "iteration",
                f"stage {job.stage} does not know its checkpoint; give it params: {{iteration: …}}",
            )
        return self.one_command(job, cluster, job.iteration)

    def _runs_command(self, job: Job, source: CheckpointSource, cluster: ClusterProfile) -> tuple[str, ...]:
        """Return the command for every directory that a pattern matches, with a folder for each."""
        run = job.layout.of_run("{run}")
        each = source.from_iteration is not None
        one: int | str = "{iteration}" if each else job.iteration or 0
        work = msgspec.structs.replace(
            job, run_dir=run.run_dir, source=dataclasses.replace(source, path="{directory}")
        )
        return (
            *_each_program(cluster),
            *options(
                runs=source.path,
                list=runs_list(job),
                source=self.found_in(one),
                done=self.done(run, "{iteration}"),
                from_iteration=source.from_iteration,
                spacing=source.spacing if each else None,
                iteration=None if each else one,
            ),
            "--",
            *self.one_command(work, cluster, one),
        )


def scripts_of(cluster: ClusterProfile) -> str:
    """Return the folder of this project's programs on a cluster."""
    return cluster.megatron_lm_dir.rstrip("/")


def _each_program(cluster: ClusterProfile) -> tuple[str, str]:
    return cluster.python, f"{scripts_of(cluster)}/each_checkpoint.py"


def _each_checkpoint(job: Job) -> Condition | None:
    """Return the condition that lists the checkpoints of a job; None for a single one."""
    conditions = (condition for condition in (job.start, job.finish) if condition is not None)
    leaves = itertools.chain.from_iterable(condition.leaves() for condition in conditions)
    return next((leaf for leaf in leaves if leaf.kind == "new_checkpoint"), None)
