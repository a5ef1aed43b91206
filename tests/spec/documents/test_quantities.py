from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.quantities import (
    counted,
    parse_duration,
    parse_quantity,
    parse_walltime,
    slurm_time,
)


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
        # above 2**53 a float would lose the last digits
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


@pytest.mark.parametrize("written", ["", "h", "10x", "1h banana", "1:2:3:4", "soon", True, "-5m", -1, -0.6])
def test_what_is_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 30m, 6h or 06:00:00"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90m", 5400), ("90s", 90), ("06:00:00", 21_600), ("1-12:00", 129_600), ("1-12:00:00", 129_600)],
)
def test_walltimes(written: str, seconds: int) -> None:
    assert parse_walltime(written) == seconds


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            90,
            'Slurm counts a number in minutes, other durations are in seconds; write 90m, 90s or "01:30:00"',
        ),
        ("90", "'90' is not a walltime"),
        (90.0, "90.0 is not a walltime"),
        ("1:30", 'minutes and seconds; write "1:30:00" for hours and minutes, or "00:1:30"'),
        ("soon", "'soon' is not a duration"),
        ("0h", "'0h' is not a walltime: to Slurm, 0 is no limit; write a time such as 6h, or drop the key"),
        (0, "0 is not a walltime: to Slurm, 0 is no limit"),
    ],
)
def test_walltimes_that_slurm_reads_otherwise(written: int | float | str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_walltime(written)


@given(st.integers(0, 10**8))
def test_slurm_times_read_back(seconds: int) -> None:
    assert parse_duration(slurm_time(seconds)) == seconds


def test_numbers_of_things() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 1200)] == [
        "0 jobs",
        "1 job",
        "2 jobs",
        "1,200 jobs",
    ]
    assert [counted(number, "loss has", "losses have") for number in (1, 3)] == [
        "1 loss has",
        "3 losses have",
    ]
