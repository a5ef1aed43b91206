"""Check that no two points of another tool's file are the same training.

A native spec with such points is refused where it is read; the other tools run both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.sweep import Sweep

_OF_THE_RUN: Final = frozenset({"checkpointing", "logging"})
"""Groups of Megatron's arguments that hold the name or the directories of a run."""
_MOST: Final = 5
"""Maximum number of equal trainings that a message names, and of messages."""


def equal_point_findings(sweep: Sweep, trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield a warning for each training that several points of another tool's file have.

    :param trainings: the arguments of the training jobs, by run directory
    """
    if not isinstance(sweep, ForeignSweep):
        return
    alike: dict[object, list[TrainingArguments]] = {}
    for training in trainings.values():
        job = training.job
        if job.script is None and not job.depends_on:
            values = sorted((name, repr(value)) for name, value in training.outside(_OF_THE_RUN).items())
            key = (job.stage, job.world_size, tuple(sorted(job.env.items())), tuple(values))
            alike.setdefault(key, []).append(training)
    repeated = [group for group in alike.values() if len(group) > 1]
    for first, *others in repeated[:_MOST]:
        names = ", ".join(other.job.point for other in others[:_MOST])
        more = f" and {len(others) - _MOST:,} more" if len(others) > _MOST else ""
        yield Finding(
            f"equal-points:{first.job.point}",
            first.job,
            (first.job.swept[-1] if first.job.swept else "name",),
            f"{names}{more} {'is' if len(others) == 1 else 'are'} the same training: all arguments are equal",
            "remove the equal values; or vary the seed, if it shall run several times",
            warning=True,
        )
