from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.quantities import parse_duration, parse_quantity, slurm_time


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (7, 7),
        (2e9, 2_000_000_000),
        ("2_000_000_000", 2_000_000_000),
        ("2e9", 2_000_000_000),
        ("2B", 2_000_000_000),
        ("2G", 2_000_000_000),
        ("0.5G", 500_000_000),
        ("300k", 300_000),
        ("300 K", 300_000),
        ("1T", 10**12),
        ("1.6M", 1_600_000),
        # beyond 2**53, where a float would lose the last digits
        ("9007199254740993", 9007199254740993),
    ],
)
def test_quantities(written: int | float | str, count: int) -> None:
    assert parse_quantity(written) == count


@pytest.mark.parametrize("written", ["", "M", "1.5", 1.5, "1,000", "10X", "-5", True, "1e-3", "0x10"])
def test_what_is_no_quantity(written: int | float | str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_quantity(written)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("30min", 1800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("06:00:00", 21_600),
        ("6:30", 23_400),
        ("1-12:00:00", 129_600),
    ],
)
def test_durations(written: int | str, seconds: int) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["", "h", "10x", "1h banana", "1:2:3:4", "soon", True, "-5m"])
def test_what_is_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 30m, 6h or 06:00:00"):
        parse_duration(written)


@given(st.integers(0, 10**8))
def test_slurm_times_read_back(seconds: int) -> None:
    assert parse_duration(slurm_time(seconds)) == seconds
