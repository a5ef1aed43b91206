"""Trigger that waits until a cluster's queue has room for a submission."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.queue_room import QueueRoom, Waiting
from airflow_megatron.task_runtime.cluster_poller import shared_poller
from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from airflow_megatron.slurm.polling.poller import Poller

_ROOMS: weakref.WeakKeyDictionary[Poller, QueueRoom] = weakref.WeakKeyDictionary()


class QueueRoomTrigger(DeferringTrigger):
    """Wait for room in the queue, in order with all submissions to the same cluster that wait in this process.

    Nothing was submitted yet, so nothing must be cancelled if the task is marked or cleared.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.remote.profile.SlurmCommands`
    :param job_name: exact Slurm name of the attempt
    :param since: Unix time at which the submission started to wait
    :param limits: jobs and name prefix of each :class:`airflow_megatron.slurm.submission.queue_limits.QueueLimit`
    :param refused_at: number of the user's queued jobs when a limit of Slurm refused it, None if none did
    :param recovers: whether it waits for the controller or for disk space
    :param poll_interval: seconds between two polls of the cluster
    :param carry: payload of the event
    :param base: as for :class:`~airflow_megatron.task_runtime.deferring_trigger.DeferringTrigger`
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        job_name: str,
        since: float,
        limits: Sequence[Sequence[Any]] = (),
        refused_at: int | None = None,
        recovers: bool = False,
        poll_interval: float = 15.0,
        carry: Mapping[str, Any] | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.job_name = job_name
        self.since = since
        self.limits: list[list[Any]] = [list(limit) for limit in limits]
        self.refused_at = refused_at
        self.recovers = recovers
        self.poll_interval = poll_interval
        self.carry = dict(carry or {})

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Check the queue at every poll of the cluster."""
        poller = shared_poller(self.ssh_conn_id, self.commands, self.poll_interval)
        room = _ROOMS.setdefault(poller, QueueRoom())
        limits = tuple(QueueLimit(jobs, prefix) for jobs, prefix in self.limits)
        waiting = Waiting(self.job_name, self.since, limits, self.refused_at, self.recovers)
        room.enter(waiting)
        try:
            async with poller.subscribe(Watch(key=self.job_name, whole_queue=True)) as subscription:
                async for observation in subscription:
                    if room.may_go(waiting, observation):
                        yield TriggerEvent(self.carry)
                        return
        finally:
            room.leave(waiting)
