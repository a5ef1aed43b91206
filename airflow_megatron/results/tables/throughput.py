"""The speed of each training and of each node: tokens per second, MFU, slow iterations."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.results.tables.points import Figure, PointTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.tables.attempts import AttemptRow
    from airflow_megatron.results.tables.trainings import Branch

_SLOW: Final = 1.5
"""An iteration that takes longer than the median by this factor is slow."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The speed of one training. Unknown values are None.

    :param point: its point
    :param sweep_params: the swept parameters
    :param outcome: its state
    :param branch: its branch
    :param step_ms: median time of an iteration
    :param slow: share of the logged iterations that took longer than 1.5 times the median
    :param tokens_per_second: tokens per second per GPU, or of the whole job without GPUs
    :param throughput: median TFLOP/s per GPU, as computed by Megatron
    :param mfu: *throughput* over the GPU's peak dense bf16 rate, in percent
    """

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    branch: str
    step_ms: float
    slow: float
    tokens_per_second: float | None
    throughput: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The speed of the trainings that ran only on one node.

    :param point: the node
    :param attempts: number of attempts on the node
    :param failed: number of failed ones
    :param relative_step: median over its attempts of their step time relative to that of their
        training; None unless some training also ran on another node
    """

    point: str
    attempts: int
    failed: int
    relative_step: float | None
    outcome: str = ""
    sweep_params: Mapping[str, Any] = field(default_factory=dict)


def speed_rows(branches: Sequence[Branch]) -> list[SpeedRow]:
    """Return a row for each training whose log has times, without the first logged iteration, which warms up."""
    rows = []
    for branch in branches:
        counted = branch.training.iterations[1:] or branch.training.iterations
        steps = [record.elapsed_ms for record in counted if record.elapsed_ms]
        if not steps:
            continue
        middle = statistics.median(steps)
        speeds = [record.throughput for record in counted if record.throughput]
        throughput = statistics.median(speeds) if speeds else None
        gpu = GPUS.get(str(branch.job.measure.get("gpu") or ""))
        whole = branch.row.tokens_per_second
        rows.append(
            SpeedRow(
                point=branch.row.point,
                sweep_params=branch.row.sweep_params,
                outcome=branch.row.state,
                branch=branch.row.branch,
                step_ms=middle,
                slow=sum(step > _SLOW * middle for step in steps) / len(steps),
                tokens_per_second=whole / (branch.job.processes if branch.job.gpus else 1) if whole else None,
                throughput=throughput,
                mfu=throughput * 1e14 / gpu.operations_per_s if throughput and gpu else None,
            )
        )
    return rows


def node_rows(branches: Sequence[Branch], attempts: Sequence[AttemptRow]) -> list[NodeRow]:
    """Return a row for each node that has run an attempt alone; none if one node has run all of them."""
    medians: dict[tuple[str, str], float] = {
        (row.point, row.branch): row.step_ms for row in speed_rows(branches)
    }
    of_branch = {(branch.row.point, branch.job.stage): branch for branch in branches}
    ratios: dict[str, list[float]] = {}
    counts: dict[str, list[AttemptRow]] = {}
    for attempt in attempts:
        if not attempt.nodes or any(sign in attempt.nodes for sign in "[,"):
            continue
        counts.setdefault(attempt.nodes, []).append(attempt)
        branch = of_branch.get((attempt.point, attempt.stage))
        whole = medians.get((branch.row.point, branch.row.branch)) if branch else None
        if branch is None or not whole:
            continue
        steps = [
            record.elapsed_ms
            for record in branch.run.records(attempt.stage, attempt.number)[1:]
            if isinstance(record, IterationRecord) and record.elapsed_ms
        ]
        if steps:
            ratios.setdefault(attempt.nodes, []).append(statistics.median(steps) / whole)
    if len(counts) < 2:
        return []
    return [
        NodeRow(
            node,
            len(ran),
            sum(row.has_failed for row in ran),
            statistics.median(ratios[node]) if node in ratios else None,
        )
        for node, ran in sorted(counts.items())
    ]


_FIGURES: Final[tuple[Figure[SpeedRow], ...]] = (
    Figure("branch", "branch", lambda row: row.branch, ""),
    Figure("step ms", "step_ms", lambda row: row.step_ms, ".1f"),
    Figure("slow %", "slow_percent", lambda row: 100 * row.slow, ".2g"),
    Figure("tokens/s/GPU", "tokens_per_second", lambda row: row.tokens_per_second, ",.0f"),
    Figure("TFLOP/s/GPU", "throughput", lambda row: row.throughput, ".1f"),
    Figure("MFU %", "mfu", lambda row: row.mfu, ".1f"),
)
_NODE_FIGURES: Final[tuple[Figure[NodeRow], ...]] = (
    Figure("attempts", "attempts", lambda row: row.attempts, "d"),
    Figure("failed", "failed", lambda row: row.failed, "d"),
    Figure("relative step time", "relative_step", lambda row: row.relative_step, ".3f"),
)


def speed_table(rows: Sequence[SpeedRow]) -> PointTable[SpeedRow]:
    """Make the table of speeds.

    :param rows: at least one
    """
    return PointTable(
        name="throughput",
        title="Throughput",
        note="Medians over the logged iterations. Slow: iterations of more than 1.5 times the median.",
        figures=_FIGURES,
        rows=rows,
    )


def node_table(rows: Sequence[NodeRow]) -> PointTable[NodeRow]:
    """Make the table of nodes.

    :param rows: at least one
    """
    return PointTable(
        name="nodes",
        title="Nodes",
        note="Jobs of one node. Relative step time: of the attempts on this node over the median of their trainings.",
        figures=_NODE_FIGURES,
        rows=rows,
        heading="node",
        swept=False,
    )
