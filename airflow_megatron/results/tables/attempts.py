"""The attempts of a sweep's jobs: the outcome, the nodes and the cost of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.results.tables.points import Figure, PointTable
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.readings.snapshot import AttemptSnapshot, RunSnapshot, SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob

ENDED_WELL: Final = frozenset((Outcome.FINISHED, Outcome.ROLLED_OVER, Outcome.DUPLICATE))
"""Outcomes of attempts whose work was kept."""
_UNJUDGED: Final = "no verdict"
_LONGEST_NODES: Final = 60


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a job. Unknown values are None.

    :param point: its point
    :param sweep_params: the swept parameters
    :param outcome: the verdict in a word; ``no verdict`` if there is none
    :param stage: its stage
    :param number: number of the attempt, from 1
    :param job_id: Slurm's id
    :param signature: name of the known failure
    :param nodes: its nodes, in Slurm's notation
    :param node_count: number of nodes of the job
    :param first: the first iteration that it logged
    :param last: the last iteration that it logged
    :param hours: its run time in hours
    :param gpu_hours: GPUs times the hours; None for a job without GPUs
    :param useful: share of its time whose result was kept, 0 to 1
    :param reason: reason of the verdict
    """

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    stage: str
    number: int
    job_id: str | None
    signature: str | None
    nodes: str | None
    node_count: int
    first: int | None
    last: int | None
    hours: float | None
    gpu_hours: float | None
    useful: float
    reason: str | None

    @property
    def has_failed(self) -> bool:
        """Whether it failed: it ended before its work was done, and was not cancelled."""
        return self.outcome in (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.RETRYABLE)


def attempt_rows(snapshot: SweepSnapshot, jobs: Iterable[SweepJob]) -> list[AttemptRow]:
    """Return the attempts that have begun, in the plan's order.

    Of a training that was repeated from an earlier checkpoint, the share of iterations that were not repeated is
    useful. An attempt without a logged iteration is lost unless it succeeded.

    :param snapshot: the run directories
    :param jobs: of the plan
    """
    return [
        _row(snapshot.run(job.run_dir), job, attempt)
        for job in jobs
        for attempt in snapshot.run(job.run_dir).attempts.get(job.stage, ())
        if attempt.started or attempt.exit is not None or attempt.verdict is not None
    ]


def _row(run: RunSnapshot, job: SweepJob, attempt: AttemptSnapshot) -> AttemptRow:
    recorded = attempt.verdict
    if recorded is None:
        latest = run.verdicts.get(job.stage)
        # older packages recorded no number: then the verdict is on the last attempt
        last = run.attempts[job.stage][-1].number
        recorded = latest if latest and (latest.attempt or last) == attempt.number else None
    verdict = recorded.verdict if recorded else None
    left = attempt.exit
    seconds = verdict.elapsed if verdict is not None else None
    if not seconds and left is not None and 0 < left.started <= left.ended:
        seconds = left.ended - left.started
    logged = [
        record for record in run.records(job.stage, attempt.number) if isinstance(record, IterationRecord)
    ]
    ended_well = recorded is not None and recorded.outcome in ENDED_WELL
    kept = {id(record) for record in run.training(job.stage).iterations}
    useful = (
        sum(id(record) in kept for record in logged) / len(logged)
        if logged
        else float(ended_well or recorded is None)
    )
    hours = seconds / 3600 if seconds is not None else None
    nodes = (verdict.node_list if verdict else None) or (left.nodes or left.host if left else None)
    return AttemptRow(
        point=job.point,
        sweep_params=job.sweep_params,
        outcome=recorded.outcome.value if recorded and recorded.outcome else _UNJUDGED,
        stage=job.stage,
        number=attempt.number,
        job_id=attempt.job_id,
        signature=verdict.signature if verdict else None,
        nodes=shown(nodes)[:_LONGEST_NODES] if nodes else None,
        node_count=job.nodes,
        first=logged[0].iteration if logged else None,
        last=logged[-1].iteration if logged else None,
        hours=hours,
        gpu_hours=hours * job.processes if hours is not None and job.gpus else None,
        useful=useful,
        reason=shown(recorded.reason) if recorded and recorded.reason else None,
    )


_FIGURES: Final[tuple[Figure[AttemptRow], ...]] = (
    Figure("stage", "stage", lambda row: row.stage, ""),
    Figure("attempt", "attempt", lambda row: row.number, "d"),
    Figure("job", "job_id", lambda row: row.job_id, ""),
    Figure("failure", "signature", lambda row: row.signature, ""),
    Figure("nodes", "nodes", lambda row: row.nodes, ""),
    Figure("first iteration", "first_iteration", lambda row: row.first, "d"),
    Figure("last iteration", "last_iteration", lambda row: row.last, "d"),
    Figure("hours", "hours", lambda row: row.hours, ".3g"),
    Figure("GPU-hours", "gpu_hours", lambda row: row.gpu_hours, ".3g"),
    Figure("useful %", "useful_percent", lambda row: 100 * row.useful, ".0f"),
    Figure("reason", "reason", lambda row: row.reason, ""),
)


def attempt_table(rows: Sequence[AttemptRow]) -> PointTable[AttemptRow]:
    """Make the table of attempts.

    :param rows: at least one
    """
    return PointTable(
        name="attempts",
        title="Attempts",
        note="One line for each submission that began. Useful: the share of its time whose result was kept.",
        figures=_FIGURES,
        rows=rows,
        swept=False,
    )
