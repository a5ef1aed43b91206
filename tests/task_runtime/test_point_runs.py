"""Ids of the runs of points."""

from __future__ import annotations

import pytest

from airflow_megatron.task_runtime.point_runs import point_of_run, point_run_id


@pytest.mark.parametrize("point", ["lr0.001", "lr=0.001", "lr=1e-3+seed=2", "a-b_c.d"])
@pytest.mark.parametrize("number", [1, 2, 13])
def test_the_point_is_found_in_the_id(point: str, number: int) -> None:
    assert point_of_run(point_run_id(point, number)) == point
