from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_megatron.slurm.polling.pacing import news, patience, pause
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow, Unreachable, Watch

NOW = 1_700_000_000.0
HOUR = 3600.0
JOB = Watch(key="x", job_id="7")
RUNNING = Observation(
    NOW,
    QueueRow("7", "a", JobState.RUNNING, started=NOW - HOUR, ended=NOW + 20 * HOUR),
    queue_ok=True,
    accounting_ok=True,
)
PENDING = replace(RUNNING, queue=QueueRow("7", "a", JobState.PENDING, submitted=NOW - HOUR))


@pytest.mark.parametrize(
    ("observation", "quiet", "expected"),
    [
        (PENDING, 0, 0),
        (PENDING, 100, 1),
        (PENDING, HOUR, 36),
        (RUNNING, HOUR, 36),
        # ten minutes to the walltime limit
        (replace(RUNNING, time=NOW + 20 * HOUR - 600), 20 * HOUR, 6),
        (replace(RUNNING, time=NOW + 21 * HOUR), 20 * HOUR, 0),
        (replace(RUNNING, queue=None), HOUR, 0),
        (replace(RUNNING, queue=QueueRow("7", "a", JobState.COMPLETED)), HOUR, 0),
        (replace(RUNNING, unreachable=Unreachable(NOW, "no", 1)), HOUR, 0),
        (replace(RUNNING, log_offset=5, log_chunk=b"12", log_size=7), HOUR, 36),
        (replace(RUNNING, log_offset=5, log_chunk=b"12", log_size=8), HOUR, 0),
    ],
)
def test_patience_of_a_job(observation: Observation, quiet: float, expected: float) -> None:
    assert patience(JOB, observation, quiet) == pytest.approx(expected)


def test_a_conditions_command_runs_at_its_interval() -> None:
    watch = Watch(key="x", commands=("true",), command_interval=20)
    assert patience(watch, Observation(NOW), 10 * HOUR) == 20
    assert patience(replace(watch, command_interval=0.0), Observation(NOW), 10 * HOUR) == 0


@pytest.mark.parametrize(
    ("patiences", "expected"),
    [([], 15), ([0, 50], 15), ([30, 50], 30), ([500, 600], 60), ([float("inf")], 60)],
)
def test_the_watcher_with_the_shortest_interval_decides(patiences: list[float], expected: float) -> None:
    assert pause(15, patiences) == expected


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"time": NOW + 5}, False),
        ({"log_chunk": b"loss", "log_size": 4}, False),
        ({"tracker": "100"}, True),
        ({"checkpoint_files": {"iter_0000100": {}}}, True),
        ({"exit": ExitRecord.from_json({"exit_code": 0, "ended": 5})}, True),
        ({"existing": {"/a": True}}, True),
        ({"queue": QueueRow("7", "a", JobState.SUSPENDED)}, True),
        ({"queue": None}, True),
    ],
)
def test_which_observations_count_as_a_change(change: dict, is_news: bool) -> None:
    assert (news(replace(RUNNING, **change)) != news(RUNNING)) is is_news
