"""Whether a stage gets another attempt, and when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_megatron.slurm.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class RestartPolicy:
    """How many further attempts each kind of ending is worth; None means any number.

    :param rolled_over: stops in good order.
    :param retryable: lost nodes, preemption.
    :param out_of_memory: the same job would run out of memory again, so none by default.
    :param failed: crashes.
    :param cancelled: by a person, who did not mean "again".
    :param no_progress: attempts in a row without a newer checkpoint after which a training is given up; 0
        switches it off.
    :param backoff_s: pause before the first restart after a failure, doubled for each further failure in a
        row. Good endings (roll-overs) do not wait.
    :param exclude_failed_nodes: keep the next attempts off nodes known to have failed.
    :param max_excluded_nodes: the newest ones are kept.
    """

    rolled_over: int | None = None
    retryable: int | None = 10
    out_of_memory: int | None = 0
    failed: int | None = 1
    cancelled: int | None = 0
    no_progress: int = 3
    backoff_s: float = 30.0
    exclude_failed_nodes: bool = True
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
    budget = policy.budget(verdict.outcome)
    used = sum(past.outcome is verdict.outcome for past in attempts)
    kind = verdict.outcome.value.replace("_", " ")
    if budget is not None and used > budget:
        allowed = f"after {budget} restart{'s' * (budget != 1)}" if budget else "and is not restarted"
        return GiveUp(f"attempt {len(attempts)} {kind} {allowed}: {verdict.reason}")
    stalled = _attempts_without_progress(attempts)
    if policy.no_progress and stalled >= policy.no_progress:
        return GiveUp(
            f"{stalled} attempts in a row made no checkpoint newer than iteration {verdict.iteration or 0}; "
            f"the last one: {verdict.reason}"
        )
    return Restart(_backoff(attempts, policy), _excluded(attempts, policy), f"{kind}: {verdict.reason}")


def given_up(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict on a job whose last attempt got *verdict* and no successor.

    An attempt that rolled over or was lost is to be continued; a job that is not continued has failed.

    :param verdict: of the last attempt.
    :param reason: why there is no other (:class:`GiveUp`).
    """
    going_on = verdict.outcome in {Outcome.ROLLED_OVER, Outcome.RETRYABLE, Outcome.DUPLICATE}
    return replace(verdict, outcome=Outcome.FAILED if going_on else verdict.outcome, reason=reason)


def _attempts_without_progress(attempts: Sequence[Verdict]) -> int:
    """Return how many of the newest attempts left the iteration where it was.

    The attempt that reached an iteration counts as progress; a stage without iterations (a command) has none
    to compare, and only its budgets count.
    """
    if attempts[-1].iteration is None:
        return 0
    stalled = 0
    for index in range(len(attempts) - 1, -1, -1):
        before = attempts[index - 1].iteration or 0 if index else 0
        if (attempts[index].iteration or 0) > before:
            break
        stalled += 1
    return stalled


def _backoff(attempts: Sequence[Verdict], policy: RestartPolicy) -> float:
    failures = 0
    for attempt in reversed(attempts):
        if attempt.outcome is Outcome.ROLLED_OVER:
            break
        failures += 1
    return min(policy.backoff_s * 2 ** (failures - 1), MAX_BACKOFF_S) if failures else 0.0


def _excluded(attempts: Sequence[Verdict], policy: RestartPolicy) -> tuple[str, ...]:
    if not policy.exclude_failed_nodes:
        return ()
    newest_first = dict.fromkeys(node for attempt in reversed(attempts) for node in attempt.failed_nodes)
    return tuple(newest_first)[: policy.max_excluded_nodes]
