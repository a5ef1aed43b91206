"""The last iteration of a training."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.model.training_length import last_iteration

RAMP = {"train_samples": 1000, "global_batch_size": 32, "rampup_batch_size": [8, 8, 240]}


@pytest.mark.parametrize(
    ("params", "end"),
    [
        ({"train_iters": 100}, 100),
        ({"train_iters": "1000"}, 1000),
        ({"train_samples": 1000, "global_batch_size": 32}, 31),
        ({"train_samples": 1e3, "global_batch_size": 32}, 31),
        # 10 batches of 8, 5 of 16, 4 of 24: 256 samples; 744 are left
        (RAMP, 10 + 5 + 4 + 744 // 32),
        (RAMP | {"rampup_batch_size": "8 8 240"}, 19 + 744 // 32),
        (RAMP | {"train_samples": 100}, 12),
        (RAMP | {"rampup_batch_size": [8, 0, 240]}, None),
        ({"train_samples": 1000}, None),
        ({}, None),
    ],
)
def test_the_last_iteration(params: dict[str, Any], end: int | None) -> None:
    assert last_iteration(params, TRAINERS["megatron_lm"], "core_v0.16.1") == end


def test_later_releases_ignore_a_growing_batch() -> None:
    assert last_iteration(RAMP, TRAINERS["megatron_lm"], "core_v0.18.2") == 31
    assert last_iteration(RAMP, TRAINERS["megatron_core"], "core_v0.18.2") == 19 + 744 // 32
