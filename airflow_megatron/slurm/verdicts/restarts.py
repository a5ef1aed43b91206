"""Restart policy: whether a stage gets another attempt, when, and on which nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.schema import RestartSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.slurm.verdicts.occurrence import Occurrence
    from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict

_DEFAULTS: Final = RestartSection()

_RENEWED = frozenset({Outcome.RETRYABLE, Outcome.FAILED})
"""Outcomes that do not count against their budgets if the attempt or a later one wrote a newer checkpoint."""

MAX_BACKOFF_S = 3600.0
SHORT_S: Final = 60.0
"""An attempt of a command that ends well in this time without reaching its goal is not repeated at once."""
_MOST_DOUBLINGS: Final = 30

_STOPPED: Final = {
    "cancel": Outcome.CANCELLED,
    "fail": Outcome.FAILED,
    "restart": Outcome.RETRYABLE,
    "rollback": Outcome.FAILED,
}


@dataclass(frozen=True)
class RestartPolicy:
    """Number of restarts for each outcome; None means unlimited. The defaults are those of the spec.

    :param rolled_over: restarts after regular stops.
    :param retryable: restarts after node failures and preemption; for a training, since its newest checkpoint.
    :param out_of_memory: restarts after running out of memory, which would repeat; 0 by default.
    :param failed: restarts after crashes; for a training, since its newest checkpoint.
    :param cancelled: restarts after a cancellation by a user.
    :param no_progress: number of consecutive attempts without a newer checkpoint after which a training is given up;
        0 disables this limit.
    :param backoff_s: pause in seconds before the first restart after a failure, doubled for each further consecutive
        failure without a newer checkpoint. Roll-overs do not wait, except those of a command that ended well within
        :data:`SHORT_S` seconds and did not reach its goal: they could go on for ever.
    :param rollbacks: restarts from an earlier checkpoint after numerical failures (NaN, a loss spike), since the
        training last reached a new maximum iteration. They count against no other budget; with 0, numerical failures
        are ordinary failures.
    :param exclude_failed_nodes: whether the next attempts avoid nodes known to have failed.
    :param exclude_for_s: seconds after which a failed node is used again.
    :param max_excluded_nodes: maximum number of excluded nodes; the most recent failures are kept.
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
        """Return the number of restarts allowed after *outcome*."""
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
    """The stage has reached its goal."""


@dataclass(frozen=True)
class Follow:
    """The attempt belongs to another job; watch that job."""

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
    """Return the next step after an attempt.

    :param history: verdicts of the earlier attempts, oldest first.
    :param verdict: verdict of the attempt that has just ended.
    :param policy: restart policy of the stage.
    :raises ValueError: if the outcome is not final (ACTIVE, UNKNOWN).
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
    # failures before the training last reached a new maximum iteration do not count
    further = max(index for index in range(len(attempts)) if _is_furthest(attempts, index))
    made = sum(past.rollback for past in attempts[further:]) - 1
    if made >= policy.rollbacks:
        times = f"{made} rollback{'s' * (made != 1)}"
        return GiveUp(f"the training failed numerically again after {times}: {verdict.reason}")
    return Restart(
        _backoff(attempts, policy),
        excluded_nodes(attempts, policy, verdict.judged or 0.0),
        f"goes back to an earlier checkpoint: {verdict.reason}",
    )


def series(verdicts: Sequence[RecordedVerdict | None]) -> list[Verdict]:
    """Return the verdicts that count against the budgets, oldest first.

    When a user clears a job that was given up or had finished, a new series begins.

    :param verdicts: the verdict on each attempt, oldest first; None for an attempt without one (it was replaced, or
        no process observed its end).
    """
    found: list[Verdict] = []
    for recorded in verdicts:
        if recorded is None or recorded.verdict is None:
            continue
        found.append(recorded.verdict)
        if recorded.outcome is Outcome.FINISHED or recorded.given_up:
            found.clear()
    return found


def given_up(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict on a job whose last attempt got *verdict* and that is not restarted.

    An attempt that rolled over or was lost needs a successor; without one, the job has failed.

    :param verdict: verdict of the last attempt.
    :param reason: why there is no further attempt (:class:`GiveUp`).
    """
    going_on = verdict.outcome in {Outcome.ROLLED_OVER, Outcome.RETRYABLE, Outcome.DUPLICATE}
    return replace(verdict, outcome=Outcome.FAILED if going_on else verdict.outcome, reason=reason)


def stopping_verdict(seen: Occurrence, job_id: str | None) -> Verdict:
    """Return the verdict on an attempt that an occurrence stops while it runs.

    :param seen: the occurrence, which requests to cancel, fail, restart or roll back.
    :param job_id: Slurm job id.
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
    """Return the first occurrence that ends the attempt of a job; None if there is none.

    :param seen: the occurrences in chronological order.
    :param finished: whether the job has reached its goal, so that no log line restarts it.
    """
    again = ("restart", "rollback") if finished else ()
    return next(
        (item for item in seen if item.do in _STOPPED and not (item.do in again and item.on != "state")),
        None,
    )


def judged_with(verdict: Verdict, seen: Occurrence) -> Verdict:
    """Return the verdict on an attempt that was not stopped, changed by an occurrence at its end.

    :param verdict: verdict from the job's state and files.
    :param seen: the occurrence, as for :func:`stopping_verdict`.
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
    """Return the number of newest attempts that did not increase the iteration.

    The attempt that first reached an iteration counts as progress. A stage without iterations (a command) has only its
    budgets.
    """
    if attempts[-1].iteration is None:
        return 0
    rolled_back = [index for index, attempt in enumerate(attempts) if attempt.rollback]
    attempts = attempts[rolled_back[-1] + 1 :] if rolled_back else attempts  # rollbacks lower the iteration
    stalled = 0
    for index in range(len(attempts) - 1, -1, -1):
        if _made_progress(attempts, index):
            break
        stalled += 1
    return stalled


def _is_furthest(attempts: Sequence[Verdict], index: int) -> bool:
    """Return whether an attempt wrote a newer checkpoint than all earlier ones; true for the first attempt."""
    reached = attempts[index].iteration or 0
    return all(reached > (before.iteration or 0) for before in attempts[:index])


def _made_progress(attempts: Sequence[Verdict], index: int) -> bool:
    """Return whether an attempt wrote a newer checkpoint than the earlier ones."""
    earlier = (attempts[past].iteration for past in range(index - 1, -1, -1))
    before = next((iteration for iteration in earlier if iteration is not None), 0)
    return (attempts[index].iteration or 0) > before


def _backoff(attempts: Sequence[Verdict], policy: RestartPolicy) -> float:
    failures = 0
    for index in range(len(attempts) - 1, -1, -1):
        if attempts[index].outcome is Outcome.ROLLED_OVER and not _did_nothing(attempts[index]):
            break
        failures += 1
        if _made_progress(attempts, index):
            break  # earlier failures do not count: the job made progress after them
    doublings = min(failures - 1, _MOST_DOUBLINGS)
    return min(policy.backoff_s * 2**doublings, MAX_BACKOFF_S) if failures else 0.0


def _did_nothing(attempt: Verdict) -> bool:
    """Return whether an attempt of a command ended well at once, without reaching the goal of its stage."""
    ended_well = attempt.state is JobState.COMPLETED and not attempt.exit_code
    short = attempt.elapsed is not None and attempt.elapsed < SHORT_S
    return attempt.iteration is None and ended_well and short


def excluded_nodes(verdicts: Sequence[Verdict], policy: RestartPolicy, now: float) -> tuple[str, ...]:
    """Return the nodes that the next attempt avoids, the newest failure first.

    :param verdicts: verdicts on all attempts so far, oldest first.
    :param now: Unix time; a verdict without a time counts as recent.
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
