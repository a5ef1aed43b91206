"""Base of all triggers: the serialization for Airflow's database, and the earliest time of the event."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.triggers.base import BaseTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from airflow.triggers.base import TriggerEvent

HEARTBEATS_OF_A_WORKER = 1.5
"""Maximum delay in seconds until a worker detects and reports the end of its task's process (one heartbeat)."""


class DeferringTrigger(BaseTrigger):
    """A trigger that keeps every keyword argument of its constructor, and its bases', in an attribute of that name.

    An event that comes before the scheduler knows that the worker which deferred has ended makes the resumed task fail:
    "executor reported that the task instance finished with state success, but the task instance's state attribute is
    running". The first event is therefore held back for as long as that takes.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and every argument."""
        names = [
            name
            for base in reversed(type(self).__mro__)
            if issubclass(base, DeferringTrigger) and "__init__" in vars(base)
            for name, parameter in inspect.signature(base.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Wait, and yield the event."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event of :meth:`wait`, but not before the worker that deferred has ended."""
        heartbeat = conf.getint("workers", "min_heartbeat_interval")
        earliest = time.monotonic() + HEARTBEATS_OF_A_WORKER * heartbeat
        async with aclosing(self.wait()) as events:
            async for event in events:
                await asyncio.sleep(max(0.0, earliest - time.monotonic()))
                yield event
