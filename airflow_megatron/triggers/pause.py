"""Trigger that waits until a given time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.triggers.base import TriggerEvent

from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from airflow.sdk import BaseOperator

    from airflow_megatron.slurm.remote.transport import LoginExpiredError

LOGIN_PAUSE_S: Final = 60.0
"""Seconds between two checks of a task that waits for a login."""


class PauseTrigger(DeferringTrigger):
    """Wait until a given time.

    :param until: Unix time
    :param carry: payload of the event
    :param base: as for :class:`~airflow_megatron.task_runtime.deferring_trigger.DeferringTrigger`
    """

    def __init__(self, *, until: float, carry: Mapping[str, Any] | None = None, **base: Any) -> None:
        super().__init__(**base)
        self.until = until
        self.carry = dict(carry or {})

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Sleep."""
        await asyncio.sleep(max(0.0, self.until - time.time()))
        yield TriggerEvent(self.carry)


def wait_for_login(operator: BaseOperator, error: LoginExpiredError, method_name: str) -> NoReturn:
    """Defer a task until its login may work again.

    :param operator: operator of the task
    :param error: reason of the wait
    :param method_name: method of the operator that continues
    """
    operator.log.warning("%s; waiting", error)
    until = time.time() + LOGIN_PAUSE_S * random.uniform(0.75, 1.25)
    operator.defer(trigger=PauseTrigger(until=until), method_name=method_name)
    raise AssertionError("defer does not return")
