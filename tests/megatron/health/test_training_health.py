"""All detectors together, on logs of real trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from training_lines import line, lines

from airflow_megatron.megatron.health.training_health import HealthMemory, HealthSettings, TrainingHealth
from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.spec.model.schema import HealthSection

LOGS = sorted((Path(__file__).parents[2] / "fixtures" / "logs").glob("*.log"))
BAD = [*lines([2.0] * 60), *lines([6.0] * 40, start=60)]


def health(**rules: Any) -> TrainingHealth:
    return TrainingHealth(HealthSettings(HealthSection.model_validate(rules)))


def test_there_are_logs() -> None:
    assert LOGS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("look_bytes", [1000, 65536])
def test_a_real_log_raises_no_alarm(path: Path, look_bytes: int) -> None:
    parser, watched, data = LogParser(), health(), path.read_bytes()
    for number, start in enumerate(range(0, len(data), look_bytes)):
        records = parser.feed(data[start : start + look_bytes])
        assert watched.read(records, now=15.0 * number, running=True) == []
        stored = json.dumps(watched.memory().to_json())
        watched = TrainingHealth(HealthSettings(HealthSection()), HealthMemory.from_json(json.loads(stored)))


def test_the_action_is_that_of_the_spec() -> None:
    (told,) = health().read(BAD, now=0, running=True)
    assert (told.detector, told.do) == ("spike", "notify")
    assert told.before_iteration is None
    (alarm,) = health(spike={"do": "rollback"}).read(BAD, now=0, running=True)
    assert alarm.do == "rollback"
    assert alarm.before_iteration == 61
    assert alarm.reason.startswith("health.spike: the loss is 6 at iteration")
    assert health(spike={"do": "none"}).read(BAD, now=0, running=True) == []


def test_nothing_is_done_about_a_job_that_does_not_run_any_more() -> None:
    assert health().read(BAD, now=0, running=False) == []


def test_an_alarm_in_a_poll_without_the_state_of_the_job_comes_with_the_next_one() -> None:
    """A controller that does not answer must not hide a problem, which is reported once."""
    watched = health(spike={"do": "rollback"})
    assert watched.read(BAD, now=0, running=False) == []
    stored = json.loads(json.dumps(watched.memory().to_json()))
    rules = HealthSection.model_validate({"spike": {"do": "rollback"}})
    later = TrainingHealth(HealthSettings(rules), HealthMemory.from_json(stored))
    for detector in (watched, later):
        (alarm,) = detector.read([], now=15, running=True)
        assert (alarm.detector, alarm.before_iteration) == ("spike", 61)
        assert detector.read([], now=30, running=True) == []


def test_an_alarm_of_a_job_that_starts_again_is_dropped() -> None:
    watched = health()
    assert watched.read(BAD, now=0, running=False) == []
    assert watched.read([], now=15, running=False, queued=True) == []
    assert watched.read([], now=30, running=True) == []


def test_several_alarms_come_together() -> None:
    records = [*BAD, *(line(101 + index, 6.0, elapsed_ms=60_000) for index in range(5))]
    alarms = health().read(records, now=0, running=True)
    assert [alarm.detector for alarm in alarms] == ["spike", "throughput"]


def test_the_memory_is_small() -> None:
    watched = health()
    watched.read(lines([2.123456789] * 1000), now=0, running=True)
    assert len(json.dumps(watched.memory().to_json())) < 5000


def test_settings_are_read_as_written() -> None:
    settings = HealthSettings(HealthSection.model_validate({"nan": {"do": "fail"}}), (50, 20))
    assert HealthSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert HealthSettings.from_json({}) is None
