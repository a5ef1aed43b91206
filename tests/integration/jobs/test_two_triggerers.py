"""Two triggerers with different transports watch the same jobs at the same time."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from patience import patient

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

INTERVAL_S = 1.0


def triggerer(connection: dict[str, Any], jobs: list[dict[str, Any]]) -> tuple[list[str], int, int]:
    """Watch each of *jobs* twice; return the outcomes, and the poller's ticks and commands."""
    os.environ["AIRFLOW_CONN_SITE"] = json.dumps(connection)
    from airflow_megatron.task_runtime.cluster_poller import shared_poller
    from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

    async def follow(job: dict[str, Any]) -> str:
        trigger = SlurmJobTrigger(
            ssh_conn_id="site", commands={}, kind="command", poll_interval=INTERVAL_S, **job
        )
        async for event in trigger.wait():
            return str(event.payload["verdict"]["outcome"])
        raise AssertionError("no event")

    async def follow_all() -> tuple[list[str], int, int]:
        outcomes = await asyncio.gather(*(follow(job) for job in jobs for _ in range(2)))
        stats = shared_poller("site", {}, INTERVAL_S).stats
        return outcomes, stats.ticks, stats.commands

    return asyncio.run(asyncio.wait_for(follow_all(), patient(100)))


def test_both_give_every_job_its_verdict(cluster: SlurmCluster, tmp_path: Path) -> None:
    jobs = []
    for name, body in (("well", "am_run sleep 4"), ("ill", "am_run sleep 3; exit 3")):
        request = cluster.request(tmp_path, name, body)
        job_id = cluster.submit_patiently(request).job_id
        attempt = request.attempt
        log_file = f"{tmp_path}/logs/{name}-1.out"
        jobs.append(
            {
                "job_id": job_id,
                "job_name": attempt.job_name,
                "attempt_dir": attempt.directory,
                "log_file": log_file,
            }
        )
    ssh = cluster.description["ssh"]
    connections = [
        {
            "conn_type": "ssh",
            "host": ssh["host"],
            "port": ssh["port"],
            "login": ssh["user"],
            "extra": {"key_file": ssh["key_file"], "host_key": ssh["host_key"], "transport": transport},
        }
        for transport in ("asyncssh", "openssh")
    ]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        seen = [pool.submit(triggerer, connection, jobs) for connection in connections]
        for outcomes, ticks, commands in (each.result() for each in seen):
            assert outcomes == ["finished", "finished", "failed", "failed"]
            assert commands == ticks, "one command a tick, however many ask"
