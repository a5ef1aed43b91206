from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.checkpoint_directories import deepspeed_tag, directory_name, iteration_of


@pytest.mark.parametrize(
    ("name", "iteration"),
    [
        ("iter_0002000", 2000),
        ("iter_0000000", 0),
        ("iter_12345678", 12345678),
        ("iter_00002000", None),
        ("iter_2000", None),
        ("iter_0002000.tmp", None),
        ("xiter_0002000", None),
        ("iter_0002000\n", None),
        ("iter_٠٠٠٢٠٠٠", None),
        ("release", None),
        ("global_step2000", 2000),
        ("global_step0", 0),
        ("global_step02000", None),
        ("failed_global_step2000", None),
    ],
)
def test_iteration_of_a_name(name: str, iteration: int | None) -> None:
    assert iteration_of(name) == iteration


@given(st.integers(min_value=0, max_value=10**9))
def test_names_and_iterations_agree(iteration: int) -> None:
    assert iteration_of(directory_name(iteration)) == iteration
    assert iteration_of(deepspeed_tag(iteration)) == iteration


def test_an_iteration_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        directory_name(-1)


def test_the_name_is_that_of_the_folder() -> None:
    assert directory_name(20, ["global_step20", "iter_0000010"]) == "global_step20"
    assert directory_name(10, ["global_step20", "iter_0000010"]) == "iter_0000010"
