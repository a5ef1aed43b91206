"""Endings that a spec expects."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_megatron.slurm.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from airflow_megatron.spec.jobs import Job


def as_expected(job: Job, verdict: Verdict) -> Verdict:
    """Return the verdict on an attempt, ``finished`` where running out of memory is what the spec expects of it."""
    if job.expect != "oom" or verdict.outcome is not Outcome.OUT_OF_MEMORY:
        return verdict
    return dataclasses.replace(
        verdict,
        outcome=Outcome.FINISHED,
        reason=f"out of memory, as expected: {verdict.reason}",
        expected="oom",
    )
