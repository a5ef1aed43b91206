"""A sweep of 120 jobs under 300 random faults, and one of 60 under 150 whose stages are queued ahead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from swept_storm import SweptStorm

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration

PER_SECOND = 1.5


@pytest.mark.parametrize(("ahead", "faults", "points"), [(0, 300, 60), (1, 150, 30)])
def test_sweep_under_random_faults(proxied: ProxiedSite, ahead: int, faults: int, points: int) -> None:
    seed = int(os.environ.get("FAULTS_SEED", 2))
    print(f"seed {seed}: repeat with FAULTS_SEED={seed}")
    storm = SweptStorm(proxied, seed, faults, points, PER_SECOND, f"storm_ahead_{ahead}", ahead)
    wrong = storm.run()
    print(storm.summary())
    assert not wrong, storm.told(wrong)
