"""Limits on queued jobs: those of the project, and those of a real Slurm."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from patience import deadline_in, wait_until

from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.refusals import refusal_hint
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    parse_submission,
    submission_script,
)

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

CALLERS = 50
LIMIT = QueueLimit(6, "crowd.")


def call_submission(cluster: SlurmCluster, request: SubmissionRequest) -> SubmissionOutcome:
    """Submit once; repeat if sshd refuses the connection (it accepts ten at a time)."""
    deadline = deadline_in(120)
    while True:
        try:
            outcome = parse_submission(cluster.run(submission_script(request)))
            if outcome.status != "pending":
                return outcome
        except TransportError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)


def user(cluster: SlurmCluster) -> str:
    return str(cluster.description["ssh"]["user"])


def test_fifty_callers_at_once_never_exceed_the_limit(cluster: SlurmCluster, tmp_path: Path) -> None:
    requests = [
        cluster.request(
            tmp_path / str(number),
            f"crowd.p{number}",
            "sleep 300",
            limits=(LIMIT,),
            places_dir=str(tmp_path / "places"),
        )
        for number in range(CALLERS)
    ]
    seen: list[int] = []
    over = threading.Event()

    def count() -> None:
        while not over.wait(0.1):
            names = cluster.slurm("squeue", "-h", "-o", "%j").split()
            seen.append(sum(name.startswith("crowd.") for name in names))

    counting = threading.Thread(target=count)
    counting.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
            outcomes = list(pool.map(lambda request: call_submission(cluster, request), requests))
        statuses = [outcome.status for outcome in outcomes]
        assert statuses.count("submitted") + statuses.count("recorded") == LIMIT.jobs
        assert {outcome.waits_for for outcome in outcomes if outcome.status == "deferred"} == {"room"}
        wait_until(lambda: LIMIT.jobs in seen, 60, "the counting thread to see the full queue")
        gone = [outcome.job_id for outcome in outcomes if outcome.job_id][:2]
        cluster.slurm("scancel", *map(str, gone))
        waiting = [
            one for one, outcome in zip(requests, outcomes, strict=True) if outcome.status == "deferred"
        ]
        deadline = deadline_in(30)
        while call_submission(cluster, waiting[0]).job_id is None:
            assert time.monotonic() < deadline
    finally:
        over.set()
        counting.join()
        for request in requests:
            cluster.slurm("scancel", "--name", request.attempt.job_name)
    assert max(seen) == LIMIT.jobs
    assert list((tmp_path / "places" / str(os.getuid())).iterdir()) == []


@pytest.fixture(scope="module")
def narrow(cluster: SlurmCluster) -> None:
    """Two QOSs: one accepts a single job of a user, the other refuses jobs with more than one node."""
    for name, limits in (
        ("single", ("MaxSubmitJobsPerUser=1",)),
        ("small", ("MaxNodesPerUser=1", "Flags=DenyOnLimit")),
    ):
        cluster.slurm("sacctmgr", "-i", "add", "qos", name, "set", *limits)
        cluster.slurm("sacctmgr", "-i", "modify", "user", "root", "set", f"qos+={name}")
    # slurmdbd notifies slurmctld of the changes one by one, after a short time
    cluster.slurm("sacctmgr", "-i", "add", "qos", "last")
    wait_until(lambda: "QOS=last(" in controller("qos", cluster), 60, "slurmctld to know the QOSs")


def controller(what: str, cluster: SlurmCluster) -> str:
    """Return the accounting limits that slurmctld has."""
    return cluster.slurm("scontrol", "show", "assoc_mgr", f"flags={what}")


def test_a_full_qos_defers_the_submission(cluster: SlurmCluster, tmp_path: Path, narrow: None) -> None:
    first, second = (
        cluster.request(tmp_path, name, "sleep 300", sbatch_options=("--qos=single",))
        for name in ("only", "next")
    )
    job_id = call_submission(cluster, first).job_id
    outcome = call_submission(cluster, second)
    assert (outcome.status, outcome.waits_for) == ("deferred", "limit")
    assert outcome.queued is not None
    assert outcome.queued >= 1
    assert "QOSMaxSubmitJobPerUserLimit" in outcome.message
    cluster.slurm("scancel", str(job_id))
    assert cluster.submit_patiently(second).status == "submitted"
    cluster.slurm("scancel", "--name", second.attempt.job_name)


@pytest.mark.parametrize(
    ("entity", "limit", "reason"),
    [
        ("user", "MaxSubmitJobs", "AssocMaxSubmitJobLimit"),
        ("account", "GrpSubmitJobs", "AssocGrpSubmitJobsLimit"),
    ],
)
def test_a_full_association_defers_the_submission(
    cluster: SlurmCluster, tmp_path: Path, entity: str, limit: str, reason: str
) -> None:
    request = cluster.request(tmp_path, reason)
    whose = (entity, user(cluster) if entity == "user" else str(cluster.description["account"]))
    cluster.slurm("sacctmgr", "-i", "modify", *whose, "set", f"{limit}=0")
    try:
        wait_until(lambda: f"{limit}=0" in controller("assoc", cluster), 60, "slurmctld to know the limit")
        outcome = call_submission(cluster, request)
    finally:
        cluster.slurm("sacctmgr", "-i", "modify", *whose, "set", f"{limit}=-1")
    assert (outcome.status, outcome.waits_for) == ("deferred", "limit")
    assert reason in outcome.message
    assert cluster.submit_patiently(request).status == "submitted"


@pytest.mark.parametrize(
    ("options", "text", "key"),
    [
        (("--qos=small", "--nodes=2"), "QOSMaxNodePerUserLimit", "nodes"),
        (("--qos=nowhere",), "Invalid qos specification", "slurm.qos"),
        (("--account=nowhere",), "Invalid account or account/partition", "slurm.account"),
        (("--partition=nowhere",), "invalid partition specified: nowhere", "slurm.partition"),
        (("--reservation=nowhere",), "reservation", "slurm.reservation"),
        (("--constraint=nowhere",), "feature", "slurm.constraint"),
        (("--exclude=nowhere",), "node name", "slurm.exclude"),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_a_hint(
    cluster: SlurmCluster, tmp_path: Path, narrow: None, options: tuple[str, ...], text: str, key: str
) -> None:
    outcome = cluster.submit(cluster.request(tmp_path, "never", sbatch_options=options))
    assert outcome.status == "refused", outcome
    assert text in outcome.message
    assert key in refusal_hint(outcome.message)
