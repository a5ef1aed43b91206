"""Detection of loss spikes."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_lines import line, lines

from airflow_megatron.megatron.health.spike import SpikeDetector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.megatron.health.finding import HealthFinding
    from airflow_megatron.megatron.logs.log_lines import IterationRecord


def detector() -> SpikeDetector:
    return SpikeDetector(deviations=8, rise=0.1, recovery=30)


def findings(records: Iterable[IterationRecord], of: SpikeDetector | None = None) -> list[HealthFinding]:
    of = of or detector()
    return [finding for record in records if (finding := of.read(record))]


def training(count: int, noise: float, seed: int) -> list[float]:
    """Return losses that fall as a power law, with normal noise (share of the loss)."""
    chance = random.Random(seed)
    return [(1.7 + 9 * (index + 1) ** -0.35) * (1 + chance.gauss(0, noise)) for index in range(count)]


def test_a_loss_that_stays_high_is_reported_once_with_its_first_iteration() -> None:
    (finding,) = findings(lines([2.0] * 50 + [4.0] * 300))
    assert finding.before_iteration == 51
    assert "4 at iteration 81" in finding.text
    assert "median of 2 since iteration 51 (a spike begins at 2.2)" in finding.text


def test_a_noisy_spike_does_not_pass_by_dipping_below_where_it_began() -> None:
    dipping = [4.0, 2.15] * 20
    (finding,) = findings(lines([2.0] * 50 + dipping))
    assert finding.before_iteration == 51
    assert findings(lines([2.0] * 50 + [4.0, 2.09] * 20)) == []


def test_a_spike_that_passes_by_itself_is_nothing() -> None:
    assert findings(lines([2.0] * 50 + [4.0] * 30 + [2.0] * 50 + [5.0] * 30 + [2.0])) == []


def test_with_a_line_for_every_hundred_iterations_one_line_is_not_enough() -> None:
    assert findings(lines([2.0] * 30 + [4.0] + [2.0] * 9, every=100)) == []
    (finding,) = findings(lines([2.0] * 30 + [4.0] * 3, every=100))
    assert finding.before_iteration == 3001


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_what_is_no_number_is_passed_over(loss: float | None) -> None:
    records = lines([2.0] * 50)
    assert findings([*records, *(line(51 + index, loss) for index in range(100))]) == []


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(0, 0.05), st.sampled_from([1, 10, 100]))
def test_no_alarm_on_a_training_that_goes_well(seed: int, noise: float, every: int) -> None:
    assert findings(lines(training(400, noise, seed), every)) == []


@pytest.mark.slow
@given(st.lists(st.floats(0.5, 15), max_size=60))
def test_no_alarm_on_single_lines_however_wild(losses: Sequence[float]) -> None:
    calm = [loss for wild in losses for loss in (2.0, wild)]
    assert findings(lines([2.0] * 120 + calm)) == []


@pytest.mark.slow
@given(
    st.integers(0, 10**6), st.floats(0, 0.02), st.floats(1.4, 5), st.integers(40, 350), st.integers(0, 400)
)
def test_a_jump_is_always_found_whenever_the_trigger_is_made_again(
    seed: int, noise: float, jump: float, at: int, cut: int
) -> None:
    losses = training(at + 40, noise, seed)
    flat = [2.0 * (1 + loss / 1000) for loss in losses[:at]]
    records = lines(flat + [2.0 * jump] * 40)
    first = detector()
    found = findings(records[:cut], first)
    later = SpikeDetector(deviations=8, rise=0.1, recovery=30, memory=first.memory())
    found += findings(records[cut:], later)
    assert [finding.before_iteration for finding in found] == [at + 1]
