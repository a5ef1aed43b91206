"""Sweeps under random faults; in ``make soak`` also larger ones, and sweeps without stages queued ahead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from swept_storm import SweptStorm

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration

PER_SECOND = 1.5


@pytest.mark.parametrize(
    ("ahead", "faults", "points"),
    [
        (1, 60, 12),
        pytest.param(1, 100, 20, marks=pytest.mark.long),
        pytest.param(0, 100, 20, marks=pytest.mark.long),
        pytest.param(0, 300, 60, marks=pytest.mark.long),
        pytest.param(1, 150, 30, marks=pytest.mark.long),
    ],
)
def test_sweep_under_random_faults(proxied: ProxiedSite, ahead: int, faults: int, points: int) -> None:
    seed = int(os.environ.get("FAULTS_SEED", 2))
    print(f"seed {seed}: repeat with FAULTS_SEED={seed}")
    storm = SweptStorm(proxied, seed, faults, points, PER_SECOND, f"storm_{points}_ahead_{ahead}", ahead)
    wrong = storm.run()
    print(storm.summary())
    assert not wrong, storm.failure_report(wrong)
