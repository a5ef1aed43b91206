"""The cost of a sweep by stage: useful and lost hours, time in the queue, failures per node-day."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.tables.points import Figure, PointTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.tables.attempts import AttemptRow

ALL: Final = "(all stages)"


@dataclass(frozen=True, slots=True)
class CostRow:
    """The cost of the attempts of one stage at all points. Unknown values are None.

    :param point: the stage, :data:`ALL` for the sum
    :param outcome: empty
    :param attempts: number of started attempts
    :param failed: number of failed attempts
    :param hours: their run time in hours
    :param useful_hours: of these, hours whose result was kept
    :param gpu_hours: GPU-hours of jobs with GPUs
    :param lost_gpu_hours: of these, GPU-hours whose result was lost
    :param queue_hours: hours in the queue, if the store of results has them
    :param node_days: number of nodes times the run time in days
    """

    point: str
    attempts: int
    failed: int
    hours: float
    useful_hours: float
    gpu_hours: float | None
    lost_gpu_hours: float | None
    queue_hours: float | None
    node_days: float
    outcome: str = ""
    sweep_params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def effective_share(self) -> float | None:
        """Useful hours over the hours in the queue and running (ETTR, arXiv:2410.21680)."""
        whole = self.hours + (self.queue_hours or 0.0)
        return self.useful_hours / whole if whole else None

    @property
    def failures_per_1000_node_days(self) -> float | None:
        """Failed attempts per 1,000 node-days; None below a tenth of a node-day, where the number is meaningless."""
        return 1000 * self.failed / self.node_days if self.node_days >= _LEAST_NODE_DAYS else None


_LEAST_NODE_DAYS: Final = 0.1


def cost_rows(
    attempts: Sequence[AttemptRow], waits: Mapping[tuple[str, str, int], float] | None = None
) -> list[CostRow]:
    """Return a row for each stage, and the sum if there are several.

    :param attempts: attempts of the sweep
    :param waits: point, stage, attempt → seconds in the queue
    """
    stages = list(dict.fromkeys(row.stage for row in attempts))
    rows = [_row(stage, [row for row in attempts if row.stage == stage], waits or {}) for stage in stages]
    return [*rows, _row(ALL, attempts, waits or {})] if len(stages) > 1 else rows


def _row(name: str, attempts: Sequence[AttemptRow], waits: Mapping[tuple[str, str, int], float]) -> CostRow:
    with_gpus = [row for row in attempts if row.gpu_hours is not None]
    waited = [waits[key] for row in attempts if (key := (row.point, row.stage, row.number)) in waits]
    return CostRow(
        point=name,
        attempts=len(attempts),
        failed=sum(row.has_failed for row in attempts),
        hours=sum(row.hours or 0.0 for row in attempts),
        useful_hours=sum((row.hours or 0.0) * row.useful for row in attempts),
        gpu_hours=sum(row.gpu_hours or 0.0 for row in with_gpus) if with_gpus else None,
        lost_gpu_hours=sum((row.gpu_hours or 0.0) * (1 - row.useful) for row in with_gpus)
        if with_gpus
        else None,
        queue_hours=sum(waited) / 3600 if waited else None,
        node_days=sum((row.hours or 0.0) * row.node_count for row in attempts) / 24,
    )


_FIGURES: Final[tuple[Figure[CostRow], ...]] = (
    Figure("attempts", "attempts", lambda row: row.attempts, "d"),
    Figure("failed", "failed", lambda row: row.failed, "d"),
    Figure("hours", "hours", lambda row: row.hours, ".3g"),
    Figure("GPU-hours", "gpu_hours", lambda row: row.gpu_hours, ".4g"),
    Figure("lost GPU-hours", "lost_gpu_hours", lambda row: row.lost_gpu_hours, ".3g"),
    Figure("queue hours", "queue_hours", lambda row: row.queue_hours, ".3g"),
    Figure("effective time %", "effective_percent", lambda row: _percent(row.effective_share), ".1f"),
    Figure("node-days", "node_days", lambda row: row.node_days, ".3g"),
    Figure(
        "failures/1000 node-days",
        "failures_per_1000_node_days",
        lambda row: row.failures_per_1000_node_days,
        ".3g",
    ),
)


def _percent(share: float | None) -> float | None:
    return 100 * share if share is not None else None


def cost_table(rows: Sequence[CostRow]) -> PointTable[CostRow]:
    """Make the table of costs.

    :param rows: at least one
    """
    return PointTable(
        name="cost",
        title="Cost",
        note="Effective time: useful hours over the hours in the queue and running. Meta's clusters had 2.3 and"
        " 6.5 failures of nodes per 1,000 node-days (arXiv:2410.21680); here every failed attempt counts.",
        figures=_FIGURES,
        rows=rows,
        heading="stage",
        swept=False,
    )
