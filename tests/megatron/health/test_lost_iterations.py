"""Detection of too many NaN losses and skipped iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_lines import line

from airflow_megatron.megatron.health.lost_iterations import (
    LostIterationsDetector,
    nan_iterations,
    skipped_iterations,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.megatron.health.finding import HealthFinding
    from airflow_megatron.megatron.logs.log_lines import IterationRecord


def nans(limit: int = 3) -> LostIterationsDetector:
    return LostIterationsDetector(nan_iterations, "NaN", iterations=limit)


def findings(records: Iterable[IterationRecord], detector: LostIterationsDetector) -> list[HealthFinding]:
    return [finding for record in records if (finding := detector.read(record))]


def nan(iteration: int, lost: int = 1) -> IterationRecord:
    return line(iteration, None, nan_iterations=lost)


def test_three_in_a_row_are_reported_once_with_the_first() -> None:
    records = [line(1), line(2), *(nan(number) for number in range(3, 30))]
    (finding,) = findings(records, nans())
    assert finding.before_iteration == 3
    assert finding.text == "3 NaN iterations, from iteration 3 on"


def test_single_losses_are_not_added_and_a_new_row_is_reported_again() -> None:
    apart = [nan(number) if number % 3 else line(number) for number in range(1, 60)]
    assert findings(apart, nans()) == []
    rows = [nan(number) if number % 10 else line(number) for number in range(1, 31)]
    assert len(findings(rows, nans())) == 3


def test_a_line_may_report_many_iterations() -> None:
    (finding,) = findings([line(100), nan(200, lost=40)], nans(40))
    assert finding.before_iteration == 101
    (finding,) = findings([line(100), nan(200, lost=40), nan(300, lost=100)], nans(140))
    assert finding.before_iteration == 101
    assert findings([line(100), nan(200, lost=2), nan(300, lost=2)], nans()) == []


def test_a_line_without_its_loss_is_nan_where_the_count_is_not_logged() -> None:
    silent = [line(number, None, nan_iterations=None) for number in (1, 2, 3)]
    assert len(findings(silent, nans())) == 1


def test_a_loss_scaler_that_starts_high_is_usual() -> None:
    detector = LostIterationsDetector(skipped_iterations, "skipped", iterations=50)
    starting = [line(number, None, skipped_iterations=1) for number in range(1, 33)]
    assert findings(starting, detector) == []
    assert findings(starting, nans()) == []  # skipped, not NaN
    lost = [line(number, None, skipped_iterations=1) for number in range(33, 60)]
    (finding,) = findings(lost, detector)
    assert finding.before_iteration == 1


@pytest.mark.slow
@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 10), st.integers(0, 40))
def test_a_row_is_found_whenever_the_trigger_is_made_again(gaps: list[int], limit: int, cut: int) -> None:
    records: list[IterationRecord] = []
    for gap in gaps:
        records += [line(len(records) + index + 1) for index in range(gap)]
        if limit > 1:
            records += [nan(len(records) + index + 1) for index in range(limit - 1)]
    records.append(line(len(records) + 1))
    records += [nan(len(records) + index + 1) for index in range(limit)]
    detector = nans(limit)
    found = findings(records[:cut], detector)
    later = LostIterationsDetector(nan_iterations, "NaN", iterations=limit, memory=detector.memory())
    found += findings(records[cut:], later)
    assert [finding.before_iteration for finding in found] == [len(records) - limit + 1]
