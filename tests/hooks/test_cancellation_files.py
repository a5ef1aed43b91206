"""The task that carries out remembered cancellations: when and where it reads their files."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from airflow_megatron.hooks import late_cancellations

if TYPE_CHECKING:
    import pytest


async def test_the_event_loop_reads_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []

    def read() -> list[object]:
        readers.append(threading.current_thread())
        return []

    monkeypatch.setattr(late_cancellations, "remembered", read)
    late_cancellations.carry_out_later()
    await late_cancellations._tasks[asyncio.get_running_loop()]
    assert readers
    assert threading.current_thread() not in readers


async def test_a_cancellation_is_found_that_is_remembered_during_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    looks = 0

    def read() -> list[object]:
        nonlocal looks
        looks += 1
        began.set()
        assert goes_on.wait(30)
        return []

    monkeypatch.setattr(late_cancellations, "remembered", read)
    late_cancellations.carry_out_later()
    task = late_cancellations._tasks[asyncio.get_running_loop()]
    assert await asyncio.to_thread(began.wait, 30)
    late_cancellations.carry_out_later()
    goes_on.set()
    await task
    assert looks == 2
    late_cancellations.carry_out_later()
    await late_cancellations._tasks[asyncio.get_running_loop()]
    assert looks == 3
