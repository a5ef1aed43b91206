"""What a deferred submission waits for."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN

from airflow_megatron.operators.slurm_submit import wait_for_room
from airflow_megatron.planning.attempts import JobAttempts
from airflow_megatron.planning.plan import plan_sweep
from airflow_megatron.slurm.submission import SubmissionOutcome, WaitsFor
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.schema import LimitsSection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.slurm.transport import CommandResult


def attempts(max_jobs: int | None = None, *, of_sweep: str = "") -> JobAttempts:
    cluster = load_cluster("local").model_copy(update={"limits": LimitsSection(max_jobs=max_jobs)})
    job = plan_sweep(load_sweep_text(CHAIN + of_sweep, "s.yaml"), cluster).jobs[0]

    def run(script: str) -> CommandResult:
        raise AssertionError("nothing is asked of the cluster")

    return JobAttempts(job, cluster, run)


@pytest.mark.parametrize(
    ("waits_for", "queued", "refused_at", "recovers"),
    [("room", None, None, False), ("limit", 40, 40, False), ("recovery", None, None, True)],
)
def test_the_trigger_knows_the_limits_and_who_refused(
    waits_for: WaitsFor, queued: int | None, refused_at: int | None, recovers: bool
) -> None:
    mine = attempts(300, of_sweep="max_jobs: 20\n")
    outcome = SubmissionOutcome("deferred", None, "full", waits_for=waits_for, queued=queued)
    trigger = wait_for_room(mine, 2, outcome, poll_interval=7, carry={"number": 2})
    assert trigger.limits == [[300, ""], [20, "chain."]]
    assert (trigger.refused_at, trigger.recovers) == (refused_at, recovers)
    assert ".a2." in trigger.job_name
    assert trigger.carry["number"] == 2
    assert trigger.commands == dataclasses.asdict(mine.commands)


def test_who_comes_back_keeps_its_place_in_the_line() -> None:
    outcome = SubmissionOutcome("deferred", None, "full", waits_for="room")
    first = wait_for_room(attempts(1), 1, outcome, poll_interval=7)
    assert time.time() - first.since < 5
    again = wait_for_room(attempts(1), 1, outcome, poll_interval=7, since=first.carry["since"])
    assert again.since == first.since


def test_without_limits_there_are_none() -> None:
    assert attempts().limits == ()
