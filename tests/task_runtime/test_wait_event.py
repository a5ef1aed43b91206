"""Events of waits, in the JSON form of Airflow's database."""

from __future__ import annotations

import pytest

from airflow_megatron.task_runtime.wait_event import WaitEvent


@pytest.mark.parametrize(
    "event",
    [
        WaitEvent("complete", path="/r/checkpoints/iter_0000010"),
        WaitEvent("found", line=""),
        WaitEvent("missed", "the job has ended"),
        WaitEvent("holds", "holds", carry={"number": 3}),
        WaitEvent("timeout", "no line yet", carry={}),
    ],
)
def test_what_is_written_is_read(event: WaitEvent) -> None:
    assert WaitEvent.from_json(event.to_json()) == event


def test_of_another_version() -> None:
    assert WaitEvent.from_json({"status": "holds", "reason": "", "more": 1}) == WaitEvent("holds")
    assert WaitEvent.from_json({"status": "timeout"}).is_timeout
