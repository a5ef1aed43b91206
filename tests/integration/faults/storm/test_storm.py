"""A sweep of 120 jobs under 300 random faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from swept_storm import SweptStorm

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration

FAULTS, POINTS, PER_SECOND = 300, 60, 1.5


def test_sweep_under_random_faults(proxied: ProxiedSite) -> None:
    seed = int(os.environ.get("FAULTS_SEED", 2))
    print(f"seed {seed}: repeat with FAULTS_SEED={seed}")
    faults = int(os.environ.get("FAULTS_COUNT", FAULTS))
    storm = SweptStorm(proxied, seed, faults, int(os.environ.get("FAULTS_POINTS", POINTS)), PER_SECOND)
    wrong = storm.run()
    print(storm.summary())
    assert not wrong, storm.told(wrong)
