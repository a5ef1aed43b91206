"""A trigger's event comes after the scheduler knows that the worker which deferred has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from airflow.triggers.base import TriggerEvent


@pytest.fixture(autouse=True)
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "1")


async def events(trigger: PauseTrigger) -> tuple[list[object], float]:
    began = time.monotonic()
    payloads = [event.payload async for event in trigger.run()]
    return payloads, time.monotonic() - began


async def test_an_event_that_is_there_at_once_is_held_back() -> None:
    payloads, seconds = await events(PauseTrigger(until=0, carry={"number": 2}))
    assert payloads == [{"number": 2}]
    assert seconds >= 1.4


async def test_a_later_event_is_not_delayed() -> None:
    wait = 2.0
    payloads, seconds = await events(PauseTrigger(until=time.time() + wait))
    assert payloads == [{}]
    assert seconds < wait + 1


async def test_closing_ends_the_wait() -> None:
    trigger = PauseTrigger(until=0)
    ended = []

    async def wait() -> AsyncGenerator[TriggerEvent]:
        try:
            async for event in PauseTrigger.wait(trigger):
                yield event
        finally:
            ended.append(True)

    trigger.wait = wait  # type: ignore[method-assign]
    running = trigger.run()
    await anext(running)
    await running.aclose()  # type: ignore[attr-defined]
    assert ended == [True]
