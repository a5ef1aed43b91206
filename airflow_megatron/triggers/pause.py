"""Trigger that waits for a while."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


class PauseTrigger(DeferringTrigger):
    """Wait until a moment; the event hands back what it was given.

    :param until: Unix time
    :param carry: the event's payload
    """

    def __init__(self, *, until: float, carry: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.until = until
        self.carry = dict(carry or {})

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Sleep."""
        await asyncio.sleep(max(0.0, self.until - time.time()))
        yield TriggerEvent(self.carry)
