"""Trigger that waits for a condition."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_megatron.planning.condition_watch import ConditionWatch, Truth
from airflow_megatron.spec.conditions import Condition
from airflow_megatron.triggers.cluster_poller import shared_poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from airflow_megatron.slurm.poller import Poller, Subscription


class ConditionTrigger(BaseTrigger):
    """Wait until a condition holds.

    Yields one event: ``{"status": "holds"}``, ``{"status": "finished"}`` when the finish condition holds already,
    ``{"status": "missed", "reason": …}`` when it cannot hold any more, or ``{"status": "timeout", "reason": …}``; each
    with ``carry``.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.profile.SlurmCommands`
    :param condition: as :meth:`airflow_megatron.spec.conditions.Condition.to_json` gives it
    :param attempts: stage directory → attempt from which on a verdict counts
    :param check_interval: seconds between two runs of a command
    :param poll_interval: seconds between two looks at the cluster
    :param deadline: Unix time after which to stop waiting, or None
    :param finish: condition that makes waiting needless: what is waited for is done already
    :param carry: handed back in the event
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        condition: Mapping[str, Any],
        attempts: Mapping[str, int] | None = None,
        check_interval: float = 0.0,
        poll_interval: float = 15.0,
        deadline: float | None = None,
        finish: Mapping[str, Any] | None = None,
        carry: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.condition = dict(condition)
        self.attempts = dict(attempts or {})
        self.check_interval = check_interval
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.finish = dict(finish) if finish else None
        self.carry = dict(carry or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and every argument."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "ssh_conn_id": self.ssh_conn_id,
                "commands": self.commands,
                "condition": self.condition,
                "attempts": self.attempts,
                "check_interval": self.check_interval,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
                "finish": self.finish,
                "carry": self.carry,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at every tick of the cluster's poller; one that does not answer is waited for."""
        watch = self._watched(self.condition)
        # a condition without parts asks nothing and does not hold
        done = self._watched(self.finish or Condition("any").to_json())
        poller = shared_poller(self.ssh_conn_id, self.commands, self.poll_interval)
        said = ""
        async with followed(poller, watch) as follower, followed(poller, done) as finish:
            while True:
                truth, finished = await follower.look(), await finish.look()
                text = watch.missing()
                if text != said:
                    self.log.info("%s", text)
                    said = text
                if self.finish and finished is Truth.YES:
                    yield TriggerEvent({"status": "finished", "reason": done.missing(), "carry": self.carry})
                    return
                if truth is not Truth.NO:
                    status = "holds" if truth is Truth.YES else "missed"
                    yield TriggerEvent({"status": status, "reason": text, "carry": self.carry})
                    return
                if self.deadline is not None and time.time() > self.deadline:
                    yield TriggerEvent({"status": "timeout", "reason": text, "carry": self.carry})
                    return

    def _watched(self, condition: Mapping[str, Any]) -> ConditionWatch:
        return ConditionWatch(Condition.from_json(condition), self.attempts, self.check_interval)


class ConditionFollower:
    """A condition and its open questions.

    :param watch: the condition's state
    :param subscriptions: one for each of its leaves
    """

    def __init__(self, watch: ConditionWatch, subscriptions: list[Subscription]) -> None:
        self.watch = watch
        self._subscriptions = subscriptions

    async def look(self) -> Truth:
        """Wait for the next answers and return what they say."""
        # all questions of a poll are answered together, so waiting for them in turn costs nothing
        return self.watch.read([await anext(subscription) for subscription in self._subscriptions])


@asynccontextmanager
async def followed(poller: Poller, watch: ConditionWatch) -> AsyncIterator[ConditionFollower]:
    """Ask a cluster about a condition for as long as the context lasts."""
    async with AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(poller.subscribe(question)) for question in watch.watches()
        ]
        yield ConditionFollower(watch, subscriptions)
