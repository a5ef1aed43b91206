"""Check that a training is told to save before its walltime, but not as it starts, and reacts to the job's signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.documents.quantities import slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments

_SENT: Final = (None, "SIGTERM", "15")
"""The signal of a job's script (``job_prologue``) as values of ``exit_signal``."""


def walltime_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield trainings whose ``exit_duration_in_mins``, ``signal_before`` or ``exit_signal`` does not fit to their end.

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
        awaited = training.value("exit_signal")
        if (
            training.value("exit_signal_handler")
            and (awaited if awaited is None else str(awaited)) not in _SENT
        ):
            yield Finding(
                "other-exit-signal",
                job,
                ("exit_signal",),
                f"it would save on {awaited}, but before the walltime and at preemptions its job sends SIGTERM, which"
                " would end it without a checkpoint",
                "drop exit_signal",
                warning=True,
            )
