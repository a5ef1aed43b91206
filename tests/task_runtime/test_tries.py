"""Tries after a user cleared a task differ from Airflow's retries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_megatron.task_runtime.task_tries import just_cleared

RETRIES = 5


@pytest.mark.parametrize(
    ("try_number", "max_tries", "expected"),
    [
        (1, RETRIES, False),  # the first try
        (2, RETRIES, False),  # an automatic retry
        (2, 1 + RETRIES, True),  # cleared after one try
        (3, 1 + RETRIES, False),  # an automatic retry after that
        (4, 3 + RETRIES, True),  # cleared again
    ],
)
def test_just_cleared(try_number: int, max_tries: int, expected: bool) -> None:
    context: Any = {
        "ti": SimpleNamespace(try_number=try_number, max_tries=max_tries),
        "task": SimpleNamespace(retries=RETRIES),
    }
    assert just_cleared(context) is expected
