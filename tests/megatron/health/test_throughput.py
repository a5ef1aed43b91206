"""Detection of slow trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_lines import line

from airflow_megatron.megatron.health.throughput import ThroughputDetector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.health.finding import HealthFinding


def findings(
    times_ms: Sequence[float], detector: ThroughputDetector | None = None, start: int = 0
) -> list[HealthFinding]:
    detector = detector or ThroughputDetector(below=0.3, lines=5)
    read = (detector.read(line(start + index + 1, elapsed_ms=time)) for index, time in enumerate(times_ms))
    return [finding for finding in read if finding]


def test_five_slow_lines_are_reported_once_with_figures() -> None:
    (finding,) = findings([9000] + [1000] * 20 + [4000] * 50)
    assert "2 samples/s at iteration 26" in finding.text
    assert "30 % of the run's median of 8 samples/s" in finding.text
    assert finding.before_iteration is None


def test_four_slow_lines_are_not_reported_and_a_second_slow_phase_is_reported_again() -> None:
    assert findings([1000] * 20 + [4000] * 4 + [1000] * 5 + [4000] * 4) == []
    assert len(findings([1000] * 20 + [4000] * 9 + [1000] + [4000] * 9)) == 2


def test_a_growing_batch_takes_longer_and_is_not_slow() -> None:
    detector = ThroughputDetector(below=0.3, lines=5)
    for number in range(1, 21):
        assert detector.read(line(number)) is None
    for number in range(21, 60):
        ramped = line(number, elapsed_ms=8000)._replace(global_batch_size=64)
        assert detector.read(ramped) is None


def test_a_compiling_first_line_does_not_count() -> None:
    assert findings([600_000] + [1000] * 30) == []


@given(st.lists(st.floats(600, 1800), min_size=1, max_size=200))
def test_no_alarm_on_a_noisy_run(times: list[float]) -> None:
    assert findings(times) == []


@pytest.mark.slow
@given(
    st.lists(st.floats(800, 1250), min_size=11, max_size=100),
    st.lists(st.floats(4500, 90_000), min_size=5, max_size=20),
    st.integers(0, 110),
)
def test_always_one_alarm_when_it_becomes_slow_whenever_the_trigger_is_made_again(
    usual: list[float], slow: list[float], cut: int
) -> None:
    detector = ThroughputDetector(below=0.3, lines=5)
    times = usual + slow
    found = findings(times[:cut], detector)
    later = ThroughputDetector(below=0.3, lines=5, memory=detector.memory())
    found += findings(times[cut:], later, start=min(cut, len(times)))
    assert len(found) == 1
