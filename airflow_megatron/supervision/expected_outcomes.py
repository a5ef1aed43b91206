"""Outcomes that a spec expects of its jobs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.commands.commands import job_command
from airflow_megatron.megatron.logs.final_evaluation import evaluates_at_end
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.requirements.training_arguments import JobArguments, TrainingArguments
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


def as_expected(job: Job, verdict: Verdict) -> Verdict:
    """Return the verdict, changed to ``finished`` if the job ran out of memory as its spec expects."""
    if job.expect != "oom" or verdict.outcome is not Outcome.OUT_OF_MEMORY:
        return verdict
    return dataclasses.replace(
        verdict,
        outcome=Outcome.FINISHED,
        reason=f"out of memory, as expected: {verdict.reason}",
        expected="oom",
    )


def ends_with_evaluation(job: Job, cluster: ClusterProfile) -> bool:
    """Return whether a training's log must contain a test loss; false for a job with its own command."""
    if not trainer_called(job.trainer).evaluates_at_end:
        return False
    try:
        own = job.command != job_command(msgspec.structs.replace(job, command=()), cluster)
        return not own and evaluates_at_end(TrainingArguments(job, JobArguments(cluster)))
    except CommandError:
        return False
