"""Check that ``exit_duration_in_mins`` ends before the walltime, and that a job is not told to exit as it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.documents.quantities import slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments


def walltime_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield the trainings whose ``exit_duration_in_mins`` or ``signal_before`` does not fit into their walltime.

    :param trainings: the arguments of the training jobs, by run directory
    """
    for training in trainings.values():
        job, minutes = training.job, training.number("exit_duration_in_mins")
        seconds, signal = job.slurm.time, job.slurm.signal_before
        if seconds is not None and signal is not None and signal >= seconds:
            yield Finding(
                "signal-before-start",
                job,
                ("slurm", "signal_before"),
                f"each attempt would be told to save and exit as it starts: {slurm_time(signal)} before the end of its"
                f" walltime of {slurm_time(seconds)}",
                f"signal_before: {max(seconds // 4, 1)}s or less",
            )
        if minutes is not None and seconds is not None and minutes * 60 >= seconds:
            yield Finding(
                "exit-after-walltime",
                job,
                ("exit_duration_in_mins",),
                f"it would save and exit after {minutes:g} minutes, but Slurm ends it after {slurm_time(seconds)}",
                f"exit_duration_in_mins: {max(seconds * 9 // 600, 1)}",
                warning=True,
            )
