"""Notices about a job or a sweep, as text and as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser
from airflow_megatron.slurm.verdicts.outcomes import NAN_IN_TRAINING
from airflow_megatron.slurm.verdicts.restarts import Done, GiveUp, Restart
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_megatron.slurm.verdicts.occurrence import Occurrence
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import NoticeKind

_DIVERGING: Final = frozenset({"nan", "spike"})
"""Detectors of a loss that diverges."""
MOST_EDGES: Final = 10
"""Maximum number of optima in a notice."""
_AGAIN = "clear its watch task for another attempt"


@dataclass(frozen=True)
class Notice:
    """One notice.

    :param what: its kind, a value of ``on`` in the spec
    :param name: name of the job, or of a task that failed before its job existed
    :param reason: the reason in one sentence
    :param next_action: the next automatic step, or the action that a user must take
    :param sweep: name of the sweep
    :param point: name of the point; empty for notices about all points
    :param stage: name of the stage
    :param attempt: number of the attempt
    :param job_id: Slurm id
    :param outcome: how the attempt ended: ``failed``, ``out_of_memory``, ``rolled_over`` …
    :param nodes: nodes of the attempt, as a Slurm node expression
    :param failed_nodes: nodes known to have failed
    :param iteration: iteration of the last checkpoint; None if there is none
    :param loss: last loss at the end of the log
    :param line: the log line that explains the failure
    :param log_file: path of the log on the cluster
    :param also: a second kind, for notifiers that want only that kind; no notifier gets the notice twice
    """

    what: NoticeKind
    name: str
    reason: str
    next_action: str = ""
    sweep: str = ""
    point: str = ""
    stage: str = ""
    attempt: int | None = None
    job_id: str | None = None
    outcome: str = ""
    nodes: str = ""
    failed_nodes: tuple[str, ...] = ()
    iteration: int | None = None
    loss: float | None = None
    line: str | None = None
    log_file: str = ""
    also: NoticeKind | None = None

    def as_wanted(self, kinds: Collection[NoticeKind]) -> Notice | None:
        """Return the notice as one of the wanted kinds, None if it has none of them."""
        if self.what in kinds:
            return replace(self, also=None)
        if self.also is not None and self.also in kinds:
            return replace(self, what=self.also, also=None)
        return None

    @property
    def text(self) -> str:
        """Summary in a few lines, for a message."""
        nodes = ", ".join(self.failed_nodes) + " (failed)" if self.failed_nodes else self.nodes
        facts = {
            "job": f"{self.job_id}, attempt {self.attempt}" if self.job_id else "",
            "node": nodes,
            "last checkpoint": f"iteration {self.iteration}" if self.iteration else "",
            "last loss": "" if self.loss is None else f"{self.loss:.6g}",
            "log": self.log_file,
            "next": self.next_action,
        }
        # a running attempt has no outcome that would tell anything
        word = self.what if self.outcome in ("", Outcome.ACTIVE) else self.outcome.replace("_", " ")
        head = f"{self.name}: {word}: {self.reason}"
        return "\n".join([head, *(f"{name}: {value}" for name, value in facts.items() if value)])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data including the text; templates read it as ``notice``.

        JSON has no NaN, so such a loss is only in the text.
        """
        fields = {name: value for name, value in asdict(self).items() if name != "also"}
        if self.loss is not None and not math.isfinite(self.loss):
            fields["loss"] = None
        return {**fields, "failed_nodes": list(self.failed_nodes), "text": self.text}


def end_notice(
    job: Job, attempt: int, verdict: Verdict, step: Done | GiveUp | Restart, log_tail: Sequence[str] = ()
) -> Notice:
    """Return the notice of an attempt that has ended.

    :param job: the job
    :param attempt: number of the attempt
    :param verdict: the verdict on the attempt
    :param step: the next step
    :param log_tail: last lines of its log
    """
    match step:
        case Done():
            return _job_notice("finished", job, attempt, verdict, "", log_tail)
        case GiveUp(reason):
            return _job_notice(
                "failure", job, attempt, verdict, f"failed for good: {reason}; {_AGAIN}", log_tail
            )
        case Restart(delay_s, nodes):
            off = f", not on {', '.join(nodes)}" if nodes else ""
            action = f"attempt {attempt + 1} in {delay_s:.0f} s{off}"
            return _job_notice("retry", job, attempt, verdict, action, log_tail)


def event_notice(
    job: Job, attempt: int, job_id: str, seen: Occurrence, log_tail: Sequence[str] = ()
) -> Notice:
    """Return the notice of an event of a running job.

    :param job: the job
    :param attempt: number of the attempt
    :param job_id: Slurm id
    :param seen: the event
    :param log_tail: last lines of its log
    """
    verdict = Verdict(Outcome.ACTIVE, seen.reason, job_id=job_id)
    action = "" if seen.do == "notify" else seen.do
    notice = _job_notice("health", job, attempt, verdict, action, log_tail)
    return replace(notice, also="diverged") if seen.detector in _DIVERGING else notice


def edge_notice(sweep: str, edges: Sequence[str], page: str) -> Notice:
    """Return the notice of optima at the edge of the values that a sweep has tested.

    :param sweep: its name
    :param edges: one text for each size and budget
    :param page: page of the report
    """
    reason = "the optimum is at the edge of the tested values: " + "; ".join(edges[:MOST_EDGES])
    if len(edges) > MOST_EDGES:
        reason += f"; and {len(edges) - MOST_EDGES} more"
    return Notice("edge", sweep, reason, "train values beyond the edge", sweep=sweep, log_file=page)


def _job_notice(
    what: NoticeKind, job: Job, attempt: int, verdict: Verdict, next_action: str, log_tail: Sequence[str]
) -> Notice:
    return Notice(
        what=what,
        name=job.name,
        reason=f"{verdict.reason}; warning: {verdict.warning}" if verdict.warning else verdict.reason,
        next_action=next_action,
        sweep=job.sweep,
        point=job.point,
        stage=job.stage,
        attempt=attempt,
        job_id=verdict.job_id,
        outcome=verdict.outcome.value,
        nodes=verdict.node_list,
        failed_nodes=verdict.failed_nodes,
        iteration=verdict.iteration,
        loss=_last_loss(log_tail),
        line=verdict.line,
        log_file=job.log_file(attempt),
        also="diverged" if verdict.signature == NAN_IN_TRAINING else None,
    )


def _last_loss(lines: Sequence[str]) -> float | None:
    text = "".join(f"{line}\n" for line in lines)
    found = [record for record in LogParser().feed(text.encode()) if isinstance(record, IterationRecord)]
    return next((record.loss for record in reversed(found) if record.loss is not None), None)
