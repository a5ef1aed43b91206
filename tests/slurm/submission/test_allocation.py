"""The number of nodes of an attempt, and its excluded nodes."""

from __future__ import annotations

import pytest

from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.allocation import (
    Allocation,
    choose_allocation,
    lost_in_a_row,
    parse_partition,
    partition_command,
)
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.verdict import Verdict

FOUR = dict.fromkeys(("n1", "n2", "n3", "n4"), True)


def chosen(wanted: int, excluded: tuple[str, ...] = (), **given: object) -> Allocation:
    values = {"lost": 0, "shrink_after": 2, "partition": FOUR, "smaller": (), **given}
    smaller = values.pop("smaller")
    return choose_allocation(wanted, smaller, excluded, **values)  # type: ignore[arg-type]


def test_partition() -> None:
    output = "main* n1 idle\nmain* n2 alloc\nmain* n3 down*\nmain* n4 drained\nmain* n5 idle~\nlong n6 idle\nnoise\n"
    usable = {"n1": True, "n2": True, "n3": False, "n4": False, "n5": True}
    assert parse_partition(output, None) == usable
    assert parse_partition(output, "main") == {**usable, "n6": True}
    command = partition_command(SlurmCommands(slurm_bin="/opt/slurm/bin"), "a,b")
    assert command == "/opt/slurm/bin/sinfo -h -N -p a,b -o '%P %N %T'"


@pytest.mark.parametrize(
    ("wanted", "excluded", "kept"),
    [
        (1, ("n2",), ("n2",)),
        (1, ("n4", "n3", "n2", "n1"), ("n4", "n3", "n2")),  # never the whole partition: the newest stay
        (3, ("n2", "n1"), ("n2",)),
        (4, ("n2",), ()),
        (1, ("elsewhere", "n2"), ("n2",)),
    ],
)
def test_excluded_nodes_leave_enough(wanted: int, excluded: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert chosen(wanted, excluded) == Allocation(wanted, kept)


def test_the_spec_excludes_nodes_too() -> None:
    assert chosen(2, ("n3", "n2"), kept_off="n1") == Allocation(2, ("n3",))
    assert chosen(2, ("n3", "n2"), kept_off="n[1-2]") == Allocation(2, ("n3", "n2"))


def test_unknown_partition() -> None:
    assert chosen(4, ("n9",), partition=None) == Allocation(4, ("n9",))


def test_fewer_nodes_after_losses() -> None:
    sizes = [chosen(4, smaller=(3, 2), lost=lost).nodes for lost in range(8)]
    assert sizes == [4, 4, 3, 3, 2, 2, 2, 2]
    assert chosen(4, lost=9).nodes == 4


def test_fewer_nodes_when_too_few_are_left() -> None:
    half = {**FOUR, "n3": False, "n4": False}
    assert chosen(4, smaller=(3, 2), partition=half) == Allocation(2)
    # n2 is excluded and only n1 is available: the smallest number, and the exclusion is kept
    assert chosen(4, ("n2",), smaller=(3, 2), partition=half) == Allocation(2, ("n2",))
    assert chosen(4, ("n2",), smaller=(3,)) == Allocation(3, ("n2",))


def test_losses_in_a_row() -> None:
    lost = Verdict(Outcome.RETRYABLE, "r", failed_nodes=("n1",))
    state = Verdict(Outcome.RETRYABLE, "r", state=JobState.NODE_FAIL)
    network = Verdict(Outcome.RETRYABLE, "r", state=JobState.FAILED)
    over = Verdict(Outcome.ROLLED_OVER, "r", state=JobState.TIMEOUT)
    assert lost_in_a_row([lost, over, lost, state]) == 2
    assert lost_in_a_row([lost, network]) == 0
    assert lost_in_a_row([]) == 0
