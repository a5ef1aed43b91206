"""Order of the tasks that wait to submit, decided by one query of the queue for all of them.

A thousand waiting submissions must not become a thousand logins a minute. They wait in one process, and at each
poll of the cluster as many of them are let go as there is room for, in the order in which they began to wait. Who
is let go and has not been seen in the queue yet counts as if it were there.

The size of a limit of Slurm's own (QOS, association) is not known: the number of jobs in the queue when sbatch was
refused stands for it. Since that may be wrong, and a controller that answers again may not stand a rush, those that
Slurm refused also try in small groups: one at first, twice as many each time that all of a group got in, and one
again as soon as one is refused (as TCP's slow start, RFC 5681).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.submission.queue_limits import QueueLimit

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import Observation

LET_GO_S = 120.0
"""How long somebody who was let go may take until its job shows: a worker has to be free."""

TRY_AGAIN_S = 30.0
"""Pause between two groups that try although the queue says that there is no room."""

LARGEST_GROUP = 64


@dataclass(frozen=True)
class Waiting:
    """A submission that waits.

    :param job_name: exact Slurm name of the attempt.
    :param since: Unix time at which it began to wait; earlier ones go first.
    :param limits: what has to leave room.
    :param refused_at: jobs of the user in the queue when a limit of Slurm's own refused it, None when none did.
    :param recovers: it waits for the controller, or for space on the disk.
    :param jobs: how many jobs it is.
    """

    job_name: str
    since: float
    limits: tuple[QueueLimit, ...] = ()
    refused_at: int | None = None
    recovers: bool = False
    jobs: int = 1

    @property
    def refused(self) -> bool:
        """Whether Slurm or the disk turned it away, not one of its own limits."""
        return self.recovers or self.refused_at is not None


@dataclass(frozen=True)
class _LetGo:
    """Somebody who is on the way into the queue.

    :param until: Unix time after which it is not expected any more.
    :param jobs: how many jobs it is.
    :param tries: it was let go although the queue says that there is no room.
    """

    until: float
    jobs: int
    tries: bool


class QueueRoom:
    """The submissions of one process that wait for room in one cluster's queue."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._let_go: dict[str, _LetGo] = {}
        self._seen_at = float("-inf")
        self._group = 1
        self._next_group = float("-inf")
        self._slurms_limit = 0

    def enter(self, waiting: Waiting) -> None:
        """Begin to wait; who was let go and comes back was refused."""
        came_back = self._let_go.pop(waiting.job_name, None)
        if came_back is not None and came_back.tries:
            self._group = 1
        if waiting.refused_at is not None:
            self._slurms_limit = waiting.refused_at
        self._waiting.append(waiting)

    def leave(self, waiting: Waiting) -> None:
        """Stop waiting; two runs of a sweep may wait for the same attempt, so it is this very one that leaves."""
        self._waiting = [one for one in self._waiting if one is not waiting]

    def may_go(self, waiting: Waiting, observation: Observation) -> bool:
        """Return whether it is a submission's turn.

        :param observation: of a watch with ``whole_queue``; those of one poll decide together.
        """
        if observation.queue_ok and observation.time > self._seen_at:
            self._seen_at = observation.time
            self._look(observation)
        return waiting.job_name in self._let_go

    def _look(self, observation: Observation) -> None:
        now = observation.time
        known = {row.name for row in observation.user_jobs.values()}
        trying = [name for name, one in self._let_go.items() if one.tries]
        if trying and known.issuperset(trying):
            self._group = min(2 * self._group, LARGEST_GROUP)
            self._next_group = now
        self._let_go = {
            name: one for name, one in self._let_go.items() if name not in known and one.until > now
        }
        queued = Counter(row.name for row in observation.user_jobs.values() if not row.state.ended)
        queued.update({name: one.jobs for name, one in self._let_go.items()})
        group = self._group if now >= self._next_group else 0
        for waiting in sorted(self._waiting, key=lambda one: (one.since, one.job_name)):
            if waiting.job_name in self._let_go or any(
                limit.free(queued) < waiting.jobs for limit in waiting.limits
            ):
                continue
            tries = waiting.refused and not self._slurm_has_room(waiting, queued)
            if tries:
                if not group:
                    continue
                group -= 1
                self._next_group = now + TRY_AGAIN_S
            self._let_go[waiting.job_name] = _LetGo(now + LET_GO_S, waiting.jobs, tries)
            queued[waiting.job_name] += waiting.jobs

    def _slurm_has_room(self, waiting: Waiting, queued: Counter[str]) -> bool:
        if waiting.recovers or not self._slurms_limit:
            return False
        return QueueLimit(self._slurms_limit).free(queued) >= waiting.jobs
