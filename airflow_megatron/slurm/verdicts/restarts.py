"""Restart policy: whether a stage gets another attempt, when, and on which nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.schema import RestartSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.slurm.verdicts.occurrence import Occurrence

_DEFAULTS: Final = RestartSection()

_RENEWED = frozenset({Outcome.RETRYABLE, Outcome.FAILED})
"""Endings that do not count against their budgets when the attempt, or a later one, left a newer checkpoint."""

MAX_BACKOFF_S = 3600.0

_STOPPED: Final = {
    "cancel": Outcome.CANCELLED,
    "fail": Outcome.FAILED,
    "restart": Outcome.RETRYABLE,
    "rollback": Outcome.FAILED,
}


@dataclass(frozen=True)
class RestartPolicy:
    """How many further attempts each kind of ending is worth; None means any number. Defaults are the spec's.

    :param rolled_over: stops in good order.
    :param retryable: lost nodes, preemption; of a training those since its newest checkpoint.
    :param out_of_memory: the same job would run out of memory again, so none by default.
    :param failed: crashes; of a training those since its newest checkpoint.
    :param cancelled: by a person, who did not mean "again".
    :param no_progress: attempts in a row without a newer checkpoint after which a training is given up; 0
        switches it off.
    :param backoff_s: pause before the first restart after a failure, doubled for each further failure in a
        row without a newer checkpoint. Good endings (roll-overs) do not wait.
    :param rollbacks: attempts whose numbers went bad (NaN, a loss spike) and that are followed by one from an earlier
        checkpoint, since the training got further than ever. They count against no other budget; with 0 they are
        ordinary failures.
    :param exclude_failed_nodes: keep the next attempts off nodes known to have failed.
    :param exclude_for_s: seconds after which a node that failed is used again.
    :param max_excluded_nodes: the newest ones are kept.
    """

    rolled_over: int | None = _DEFAULTS.rolled_over
    retryable: int | None = _DEFAULTS.retryable
    out_of_memory: int | None = _DEFAULTS.out_of_memory
    failed: int | None = _DEFAULTS.failed
    cancelled: int | None = _DEFAULTS.cancelled
    no_progress: int = _DEFAULTS.no_progress
    backoff_s: float = float(_DEFAULTS.backoff)
    rollbacks: int = _DEFAULTS.rollbacks
    exclude_failed_nodes: bool = _DEFAULTS.exclude_failed_nodes
    exclude_for_s: float = float(_DEFAULTS.exclude_for)
    max_excluded_nodes: int = 8

    def budget(self, outcome: Outcome) -> int | None:
        """Return how many attempts may end with *outcome* and be followed by another."""
        match outcome:
            case Outcome.ROLLED_OVER:
                return self.rolled_over
            case Outcome.RETRYABLE:
                return self.retryable
            case Outcome.OUT_OF_MEMORY:
                return self.out_of_memory
            case Outcome.FAILED:
                return self.failed
            case Outcome.CANCELLED:
                return self.cancelled
            case _:
                raise ValueError(f"{outcome.value} is not an ending that a restart could follow")


@dataclass(frozen=True)
class Done:
    """The stage has achieved its aim."""


@dataclass(frozen=True)
class Follow:
    """The attempt belongs to another job: watch that one."""

    job_id: str


@dataclass(frozen=True)
class Restart:
    """Submit the next attempt.

    :param delay_s: seconds to wait first.
    :param exclude_nodes: for sbatch's ``--exclude``.
    :param reason: one sentence for the log.
    """

    delay_s: float
    exclude_nodes: tuple[str, ...] = field(default=())
    reason: str = ""


@dataclass(frozen=True)
class GiveUp:
    """No further attempt."""

    reason: str


NextStep = Done | Follow | Restart | GiveUp


def next_step(history: Sequence[Verdict], verdict: Verdict, policy: RestartPolicy) -> NextStep:
    """Return what to do after an attempt.

    :param history: verdicts of the earlier attempts, oldest first.
    :param verdict: of the attempt that has just ended.
    :param policy: the stage's.
    :raises ValueError: if *verdict* is not one (ACTIVE, UNKNOWN).
    """
    if not verdict.outcome.is_verdict:
        raise ValueError(f"the attempt has no verdict yet: {verdict.reason}")
    if verdict.outcome is Outcome.FINISHED:
        return Done()
    if verdict.outcome is Outcome.DUPLICATE:
        if verdict.job_id is None:
            return GiveUp(f"another job owns the attempt, but not which one is known: {verdict.reason}")
        return Follow(verdict.job_id)
    if verdict.permanent:
        return GiveUp(f"it would fail again: {verdict.reason}")
    attempts = [past for past in (*history, verdict) if past.outcome is not Outcome.DUPLICATE]
    if verdict.rollback and policy.rollbacks:
        return _roll_back(attempts, policy)
    budget = policy.budget(verdict.outcome)
    stalled = _attempts_without_progress(attempts)
    counted = [past for past in attempts if not (past.rollback and policy.rollbacks)]
    if verdict.iteration is not None and verdict.outcome in _RENEWED:
        counted = counted[len(counted) - stalled :]
    used = sum(past.outcome is verdict.outcome for past in counted)
    kind = verdict.outcome.value.replace("_", " ")
    if budget is not None and used > budget:
        allowed = f"after {budget} restart{'s' * (budget != 1)}" if budget else "and is not restarted"
        return GiveUp(f"attempt {len(attempts)} {kind} {allowed}: {verdict.reason}")
    if policy.no_progress and stalled >= policy.no_progress:
        return GiveUp(
            f"{stalled} attempts in a row made no checkpoint newer than iteration {verdict.iteration or 0}; "
            f"the last one: {verdict.reason}"
        )
    return Restart(
        _backoff(attempts, policy),
        excluded_nodes(attempts, policy, verdict.judged or 0.0),
        f"{kind}: {verdict.reason}",
    )


def _roll_back(attempts: Sequence[Verdict], policy: RestartPolicy) -> NextStep:
    verdict = attempts[-1]
    # what went bad before the training got further than ever is over
    further = max(index for index in range(len(attempts)) if _is_furthest(attempts, index))
    made = sum(past.rollback for past in attempts[further:]) - 1
    if made >= policy.rollbacks:
        times = f"{made} rollback{'s' * (made != 1)}"
        return GiveUp(f"the numbers went bad again after {times}: {verdict.reason}")
    return Restart(
        _backoff(attempts, policy),
        excluded_nodes(attempts, policy, verdict.judged or 0.0),
        f"goes back to an earlier checkpoint: {verdict.reason}",
    )


def series(verdicts: Sequence[Mapping[str, Any] | None]) -> list[Verdict]:
    """Return the verdicts that count against the budgets, oldest first.

    A person who clears a job that was given up, or that had finished, begins a new series.

    :param verdicts: the ``verdict.json`` of each attempt, oldest first; None of one that has none (it was replaced, or
        its end was seen by nobody).
    """
    found: list[Verdict] = []
    for value in verdicts:
        recorded = RecordedVerdict.from_json(value)
        if recorded is None or recorded.verdict is None:
            continue
        found.append(recorded.verdict)
        if recorded.outcome is Outcome.FINISHED or recorded.given_up:
            found.clear()
    return found


def read_verdict(value: Mapping[str, Any] | None) -> Verdict | None:
    """Return the verdict in a ``verdict.json``, None for a file that holds none."""
    recorded = RecordedVerdict.from_json(value)
    return recorded.verdict if recorded is not None else None


def given_up(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict on a job whose last attempt got *verdict* and no successor.

    An attempt that rolled over or was lost is to be continued; a job that is not continued has failed.

    :param verdict: of the last attempt.
    :param reason: why there is no other (:class:`GiveUp`).
    """
    going_on = verdict.outcome in {Outcome.ROLLED_OVER, Outcome.RETRYABLE, Outcome.DUPLICATE}
    return replace(verdict, outcome=Outcome.FAILED if going_on else verdict.outcome, reason=reason)


def stopping_verdict(seen: Occurrence, job_id: str | None) -> Verdict:
    """Return the verdict on an attempt that is stopped because of something seen while it runs.

    :param seen: asks to cancel, fail, restart or roll back.
    :param job_id: of the job.
    """
    return Verdict(
        _STOPPED[seen.do],
        seen.reason,
        job_id=job_id,
        permanent=seen.permanent,
        rollback=seen.do == "rollback",
        before_iteration=seen.rolls_back_before,
        stopped=True,
    )


def deciding(seen: Iterable[Occurrence], *, finished: bool = False) -> Occurrence | None:
    """Return the first of what was seen in a job that ends its attempt; None when nothing does.

    :param seen: in the order in which it showed.
    :param finished: the job has achieved its aim: nothing that its log says starts it again.
    """
    again = ("restart", "rollback") if finished else ()
    return next(
        (item for item in seen if item.do in _STOPPED and not (item.do in again and item.on != "state")),
        None,
    )


def judged_with(verdict: Verdict, seen: Occurrence) -> Verdict:
    """Return the verdict on an attempt that has ended by itself, with what decided at its end.

    :param verdict: by what the job left behind.
    :param seen: as for :func:`stopping_verdict`.
    """
    wanted = stopping_verdict(seen, verdict.job_id)
    return replace(
        verdict,
        outcome=wanted.outcome,
        reason=f"{wanted.reason}; {verdict.reason}",
        permanent=wanted.permanent,
        rollback=wanted.rollback,
        before_iteration=wanted.before_iteration,
    )


def explained(reason: str, line: str | None) -> str:
    """Return a verdict's reason with the log line that decided it."""
    return f"{reason} (the log line that decided: {line})" if line and line not in reason else reason


def _attempts_without_progress(attempts: Sequence[Verdict]) -> int:
    """Return how many of the newest attempts left the iteration where it was.

    The attempt that reached an iteration counts as progress; a stage without iterations (a command) has none
    to compare, and only its budgets count.
    """
    if attempts[-1].iteration is None:
        return 0
    rolled_back = [index for index, attempt in enumerate(attempts) if attempt.rollback]
    attempts = attempts[rolled_back[-1] + 1 :] if rolled_back else attempts  # they went back on purpose
    stalled = 0
    for index in range(len(attempts) - 1, -1, -1):
        if _made_progress(attempts, index):
            break
        stalled += 1
    return stalled


def _is_furthest(attempts: Sequence[Verdict], index: int) -> bool:
    """Return whether an attempt left a newer checkpoint than all before it; the first one counts as such."""
    reached = attempts[index].iteration or 0
    return all(reached > (before.iteration or 0) for before in attempts[:index])


def _made_progress(attempts: Sequence[Verdict], index: int) -> bool:
    """Return whether an attempt left a newer checkpoint than those before it."""
    earlier = (attempts[past].iteration for past in range(index - 1, -1, -1))
    before = next((iteration for iteration in earlier if iteration is not None), 0)
    return (attempts[index].iteration or 0) > before


def _backoff(attempts: Sequence[Verdict], policy: RestartPolicy) -> float:
    failures = 0
    for index in range(len(attempts) - 1, -1, -1):
        if attempts[index].outcome is Outcome.ROLLED_OVER:
            break
        failures += 1
        if _made_progress(attempts, index):
            break  # the failures before it did not keep the job from going on
    return min(policy.backoff_s * 2 ** (failures - 1), MAX_BACKOFF_S) if failures else 0.0


def excluded_nodes(verdicts: Sequence[Verdict], policy: RestartPolicy, now: float) -> tuple[str, ...]:
    """Return the nodes to keep the next attempt off, the newest failure first.

    :param verdicts: on all attempts so far, oldest first.
    :param now: Unix time; a verdict without a time counts as new.
    """
    if not policy.exclude_failed_nodes:
        return ()
    newest_first = dict.fromkeys(
        node
        for verdict in reversed(verdicts)
        if verdict.judged is None or now - verdict.judged < policy.exclude_for_s
        for node in verdict.failed_nodes
    )
    return tuple(newest_first)[: policy.max_excluded_nodes]
