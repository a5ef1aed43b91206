"""The jobs of a sweep without trainings, and the outcome of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.tables.points import Figure, PointTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.readings.progress import ProgressGrid
    from airflow_megatron.results.readings.sweep_jobs import SweepJob


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job; the fields are those of :class:`~airflow_megatron.results.readings.progress.StageStatus`."""

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    stage: str
    kind: str
    attempts: int
    job_id: str | None
    reason: str | None


_FIGURES: Final[tuple[Figure[JobRow], ...]] = (
    Figure("stage", "stage", lambda row: row.stage, ""),
    Figure("kind", "kind", lambda row: row.kind, ""),
    Figure("attempts", "attempts", lambda row: row.attempts, ""),
    Figure("job", "job_id", lambda row: row.job_id, ""),
    Figure("reason", "reason", lambda row: row.reason, ""),
)


def job_table(jobs: Sequence[SweepJob], grid: ProgressGrid) -> PointTable[JobRow]:
    """Make the table of a sweep's jobs.

    :param jobs: of the plan, at least one.
    :param grid: the state of each.
    """
    rows = []
    for job in jobs:
        status = grid.cells[job.point, job.stage]
        rows.append(
            JobRow(
                point=job.point,
                sweep_params=job.sweep_params,
                outcome=status.state.value,
                stage=job.stage,
                kind=job.kind,
                attempts=status.attempts,
                job_id=status.job_id,
                reason=status.reason or None,
            )
        )
    return PointTable(
        name="jobs",
        title="Jobs",
        note="One line for each job; attempts are submissions to Slurm.",
        figures=_FIGURES,
        rows=rows,
    )
