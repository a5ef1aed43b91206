"""Derive the verdict on an attempt from its observations; triggers and the simulation share this code.

::

    observation ─ judge ─► verdict ─ missing job ─► ─ finish condition ─► verdict ─► (last poll) announced end

:func:`~airflow_megatron.slurm.verdicts.verdict.judge` judges one observation. These amendments follow in order:

- :class:`~airflow_megatron.slurm.verdicts.missing_job.MissingJob`: a job that Slurm no longer reports is lost.
- :func:`.condition_watch.with_finish`: the job's own ``finish`` condition decides whether an attempt was the last.
- A job that has announced its end is judged by its outputs, not by its exit code.

:mod:`airflow_megatron.supervision.next_steps` decides the next step.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.verdict import SETTLE_S, EndedFor, judge
from airflow_megatron.supervision.condition_watch import ConditionResult, with_finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.missing_job import MissingJob
    from airflow_megatron.slurm.verdicts.occurrence import Occurrence
    from airflow_megatron.slurm.verdicts.signatures import Signature
    from airflow_megatron.slurm.verdicts.verdict import Expectation, Verdict


@dataclass(frozen=True)
class OwnConditions:
    """The results of a job's conditions at one poll.

    :param cancel: result of the ``cancel`` condition, None without one
    :param finish: result of the ``finish`` condition, None without one
    :param missing: the parts of the ``finish`` condition that do not hold
    :param behind: whether logs of the conditions have unread lines
    """

    cancel: ConditionResult | None = None
    finish: ConditionResult | None = None
    missing: str = ""
    behind: bool = False


NO_CONDITIONS: Final = OwnConditions()


@dataclass(frozen=True)
class Look:
    """The evaluation of one observation of an attempt.

    :param verdict: verdict on the attempt; its outcome may be ``active`` or ``unknown``
    :param conditions: results of the job's conditions
    :param ended_for: seconds since the end of the attempt was first observed
    :param observation: the observation
    :param log_tail: the last bytes of the log
    """

    verdict: Verdict
    conditions: OwnConditions
    ended_for: float
    observation: Observation
    log_tail: bytes

    @property
    def has_ended(self) -> bool:
        """Whether the attempt has a verdict."""
        return self.verdict.outcome.is_verdict

    @property
    def is_cancelled(self) -> bool:
        """Whether its cancel condition holds and it has not finished."""
        finished = self.conditions.finish is ConditionResult.YES and self.has_ended
        return self.conditions.cancel is ConditionResult.YES and not finished

    def is_last(self, *, log_read: bool, incomplete: bool = False) -> bool:
        """Whether an ended attempt needs no further poll.

        :param log_read: whether its log was read to the end
        :param incomplete: whether expected lines are missing that may still become visible
        """
        settled = self.ended_for >= SETTLE_S or not incomplete
        return self.has_ended and log_read and not self.conditions.behind and settled


class AttemptFollower:
    """Evaluates the observations of one attempt in order.

    :param expectation: the expected result of its stage
    :param missing_job: detects a job that Slurm has lost
    :param signatures: signatures for its log; default: the shipped catalogue
    :param clock: returns monotonic time in seconds; default: that of this machine
    """

    def __init__(
        self,
        expectation: Expectation,
        missing_job: MissingJob,
        signatures: Sequence[Signature] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._expectation, self._missing_job, self._signatures = expectation, missing_job, signatures
        self._clock = clock or (lambda: time.monotonic())
        self._ended: float | None = None
        self._ran = -math.inf
        self._ran_no_more = math.inf
        self._at_end: list[Occurrence] = []

    @property
    def announced(self) -> bool:
        """Whether the job has announced its end."""
        return self._expectation.announced

    def look(
        self, observation: Observation, log_tail: bytes, conditions: OwnConditions = NO_CONDITIONS
    ) -> Look:
        """Evaluate an observation."""
        self._take_time(observation)
        verdict = self._missing_job.weigh(self._judged(observation, log_tail), observation)
        ended_for = 0.0
        if verdict.outcome.is_verdict:
            now = self._clock()
            self._ended = now if self._ended is None else self._ended
            ended_for = now - self._ended
            verdict = with_finish(verdict, conditions.finish, conditions.missing, ended_for)
        return Look(verdict, conditions, ended_for, observation, log_tail)

    def see(self, seen: Iterable[Occurrence]) -> list[Occurrence]:
        """Add occurrences of a running attempt; return them with those from a supposed end of the attempt."""
        found = [*self._at_end, *seen]
        self._at_end = []
        self._take_announcement(found)
        return found

    def end(
        self, look: Look, seen: Iterable[Occurrence] = (), *, last: bool
    ) -> tuple[Verdict, list[Occurrence]] | None:
        """Add occurrences of an ended attempt.

        :param last: whether this is the last poll (:meth:`Look.is_last`)
        :returns: the verdict and all occurrences at the end; None while further polls are needed
        """
        self._at_end += seen
        if not last:
            return None
        if not self._take_announcement(self._at_end):
            return look.verdict, self._at_end
        verdict = self._judged(look.observation, look.log_tail)
        if not verdict.outcome.is_verdict:
            return None  # its outputs may still become visible
        conditions = look.conditions
        return with_finish(verdict, conditions.finish, conditions.missing, look.ended_for), self._at_end

    def _judged(self, observation: Observation, log_tail: bytes) -> Verdict:
        now = self._clock()
        return judge(
            observation,
            self._expectation,
            log_tail=log_tail,
            signatures=self._signatures,
            ended_for=EndedFor(max(0.0, now - self._ran_no_more), now - self._ran),
        )

    def _take_time(self, observation: Observation) -> None:
        """Note when the job was last seen before its end, and first seen after it."""
        if observation.unreachable is not None or not observation.queue_ok:
            return
        queue = observation.queue
        if queue is None or queue.state.ended or queue.state is JobState.COMPLETING:
            self._ran_no_more = min(self._ran_no_more, self._clock())
        else:
            self._ran, self._ran_no_more = self._clock(), math.inf

    def _take_announcement(self, seen: Sequence[Occurrence]) -> bool:
        """Return whether the job announces its end now for the first time."""
        if self.announced or not any(item.do == "finish" for item in seen):
            return False
        self._expectation = replace(self._expectation, announced=True)
        return True
