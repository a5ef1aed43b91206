"""The wait for the runs of a sweep's points."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_megatron.triggers.point_runs import PointRunsTrigger


@pytest.mark.parametrize(
    ("query_s", "interval", "pauses"),
    [
        pytest.param(0.0, 600.0, [1.0] * 101 + [1.01, 1.02], id="longer while nothing happens"),
        pytest.param(0.0, 0.5, [0.5] * 9, id="never longer than the interval"),
        pytest.param(0.2, 600.0, [10.0] * 9, id="queries that take their time"),
        pytest.param(30.0, 15.0, [15.0] * 9, id="slow queries"),
    ],
)
def test_pause_between_two_queries(
    query_s: float, interval: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen = 0.0, list[float]()

    def count(dag_id: str, run_ids: list[str]) -> int:
        nonlocal now
        now += query_s
        return 1 if len(seen) >= len(pauses) else 0

    async def sleep(seconds: float) -> None:
        nonlocal now
        seen.append(seconds)
        now += seconds

    async def events() -> list[object]:
        trigger = PointRunsTrigger(dag_id="s.point", run_ids=["a"], poll_interval=interval)
        return [event.payload async for event in trigger.wait()]

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("airflow_megatron.triggers.point_runs.count_ended_runs", count)
    monkeypatch.setattr("airflow_megatron.triggers.point_runs.asyncio.sleep", sleep)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(events()) == [{"ended": 1}]
    loop.close()
    assert seen == [pytest.approx(pause, abs=0.002) for pause in pauses]
