"""Trigger that waits for a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.supervision.condition_watch import ConditionResult
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.task_runtime.condition_follower import followed
from airflow_megatron.task_runtime.wait_event import WaitEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


class ConditionTrigger(ClusterTrigger):
    """Wait until a condition holds.

    Yields one event: ``{"status": "holds"}``, ``{"status": "finished"}`` if the finish condition already holds,
    ``{"status": "missed", "reason": …}`` if it can no longer hold, or ``{"status": "timeout", "reason": …}``; each
    with ``carry``.

    :param condition: JSON of :meth:`airflow_megatron.spec.model.conditions.Condition.to_json`
    :param attempts: stage directory → first attempt whose verdict counts
    :param check_interval: seconds between two runs of a command
    :param finish: finish condition of the job, which ends the wait too
    :param carry: data that the event returns unchanged
    :param cluster: as for :class:`~airflow_megatron.task_runtime.cluster_trigger.ClusterTrigger`
    """

    def __init__(
        self,
        *,
        condition: Mapping[str, Any],
        attempts: Mapping[str, int] | None = None,
        check_interval: float = 0.0,
        finish: Mapping[str, Any] | None = None,
        carry: Mapping[str, Any] | None = None,
        **cluster: Any,
    ) -> None:
        super().__init__(**cluster)
        self.condition = dict(condition)
        self.attempts = dict(attempts or {})
        self.check_interval = check_interval
        self.finish = dict(finish) if finish else None
        self.carry = dict(carry or {})

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Evaluate the condition at every poll of the cluster; wait while the cluster is not available."""
        logged = ""
        condition = Condition.from_json(self.condition)
        end = Condition.from_json(self.finish) if self.finish else None
        async with (
            followed(self.poller, condition, self.attempts, self.check_interval) as follower,
            followed(self.poller, end, self.attempts, self.check_interval) as finish,
        ):
            while True:
                truth, finished = await follower.look(), await finish.look()
                text = follower.missing()
                if text != logged:
                    self.log.info("%s", text)
                    logged = text
                if finished is ConditionResult.YES:
                    yield self._event("finished", finish.missing())
                    return
                if truth is not ConditionResult.NO:
                    yield self._event("holds" if truth is ConditionResult.YES else "missed", text)
                    return
                if self.is_overdue:
                    yield self._event("timeout", text)
                    return

    def _event(self, status: str, reason: str) -> TriggerEvent:
        return TriggerEvent(WaitEvent(status, reason, carry=self.carry).to_json())
