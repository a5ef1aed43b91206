"""Order of the submissions that wait for room in the queue, decided by one query of the queue for all of them.

A thousand waiting submissions must not cause a thousand logins per minute. They wait in one process, and each poll of
the cluster releases as many of them as there is room for, in the order in which they started to wait. A released
submission counts as queued before its job is visible in the queue.

The size of Slurm's own limits (QOS, association) is unknown; the number of queued jobs at the refusal by sbatch is the
estimate. Since the estimate may be wrong, and many submissions at once could overload a controller that has just
recovered, submissions that Slurm refused also retry in small groups: one at first, twice as many after each group
without a refusal, and one again after a refusal (as TCP's slow start, RFC 5681).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.submission.queue_limits import QueueLimit

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import Observation

LET_GO_S = 120.0
"""Seconds until the job of a released submission must be visible; the submission first waits for a free worker."""

TRY_AGAIN_S = 30.0
"""Pause in seconds between two groups that retry although the queue appears full."""

LARGEST_GROUP = 64


@dataclass(frozen=True)
class Waiting:
    """A submission that waits.

    :param job_name: exact Slurm name of the attempt.
    :param since: Unix time at which it started to wait; earlier submissions are released first.
    :param limits: the limits that must have room.
    :param refused_at: number of the user's queued jobs when a limit of Slurm refused it, None if none did.
    :param recovers: whether it waits for the controller or for disk space.
    :param jobs: number of its jobs.
    """

    job_name: str
    since: float
    limits: tuple[QueueLimit, ...] = ()
    refused_at: int | None = None
    recovers: bool = False
    jobs: int = 1

    @property
    def refused(self) -> bool:
        """Whether Slurm or a full disk refused it, rather than one of *limits*."""
        return self.recovers or self.refused_at is not None


@dataclass(frozen=True)
class _Released:
    """A released submission whose job is not visible in the queue yet.

    :param until: Unix time after which it is no longer expected.
    :param jobs: number of its jobs.
    :param tries: whether it was released although the queue appears full.
    """

    until: float
    jobs: int
    tries: bool


class QueueRoom:
    """The submissions of one process that wait for room in one cluster's queue."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._released: dict[str, _Released] = {}
        self._seen_at = float("-inf")
        self._group = 1
        self._next_group = float("-inf")
        self._slurms_limit = 0

    def enter(self, waiting: Waiting) -> None:
        """Add a submission; one that was released before was refused."""
        came_back = self._released.pop(waiting.job_name, None)
        if came_back is not None and came_back.tries:
            self._group = 1
        if waiting.refused_at is not None:
            self._slurms_limit = waiting.refused_at
        self._waiting.append(waiting)

    def leave(self, waiting: Waiting) -> None:
        """Remove this object; another run of the sweep may wait for the same attempt with an equal one."""
        self._waiting = [one for one in self._waiting if one is not waiting]

    def may_go(self, waiting: Waiting, observation: Observation) -> bool:
        """Return whether a submission may proceed.

        :param observation: of a watch with ``whole_queue``; calls with observations of one poll share one decision.
        """
        if observation.queue_ok and observation.time > self._seen_at:
            self._seen_at = observation.time
            self._look(observation)
        return waiting.job_name in self._released

    def _look(self, observation: Observation) -> None:
        now = observation.time
        known = {row.name for row in observation.user_jobs.values()}
        trying = [name for name, one in self._released.items() if one.tries]
        if trying and known.issuperset(trying):
            self._group = min(2 * self._group, LARGEST_GROUP)
            self._next_group = now
        self._released = {
            name: one for name, one in self._released.items() if name not in known and one.until > now
        }
        queued = Counter(row.name for row in observation.user_jobs.values() if not row.state.ended)
        queued.update({name: one.jobs for name, one in self._released.items()})
        group = self._group if now >= self._next_group else 0
        for waiting in sorted(self._waiting, key=lambda one: (one.since, one.job_name)):
            if waiting.job_name in self._released or any(
                limit.free(queued) < waiting.jobs for limit in waiting.limits
            ):
                continue
            tries = waiting.refused and not self._slurm_has_room(waiting, queued)
            if tries:
                if not group:
                    continue
                group -= 1
                self._next_group = now + TRY_AGAIN_S
            self._released[waiting.job_name] = _Released(now + LET_GO_S, waiting.jobs, tries)
            queued[waiting.job_name] += waiting.jobs

    def _slurm_has_room(self, waiting: Waiting, queued: Counter[str]) -> bool:
        if waiting.recovers or not self._slurms_limit:
            return False
        return QueueLimit(self._slurms_limit).free(queued) >= waiting.jobs
