"""Measure the cost of watching many jobs: python benchmarks/watching.py [JOBS …].

Starts a separate local cluster. Most jobs wait for a start time that does not come; some sleep for a minute and end
one after the other. One process follows all of them with the trigger that Airflow's tasks use, and the shared poller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counted_cluster import CONNECTION, counted_cluster

from airflow_megatron.slurm.remote.profile import SlurmCommands

if TYPE_CHECKING:
    from counted_cluster import CountedCluster

INTERVAL_S = 15.0
ENDING = 100
"""Jobs that end while they are watched."""

HEARTBEAT_S = 0.005


@dataclass
class Watched:
    """What the watching process measured.

    :param verdicts: job id → Unix time of its verdict
    :param cpu_s: processor time per tick
    :param memory_mib: largest resident size, and what Python and Airflow take of it before the first job is watched
    :param held_s: longest time that the event loop was not given back
    """

    verdicts: dict[str, float]
    ticks: int
    commands: int
    failures: int
    poll_s: float
    cpu_s: float
    memory_mib: tuple[float, float]
    script_kb: float
    answer_kb: float
    held_s: float


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def follow(folder: str, slurm_bin: str, job_id: str, name: str) -> None:
    """Follow one job to its verdict."""
    from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

    run_dir = f"{folder}/sweep/{name}"
    trigger = SlurmJobTrigger(
        ssh_conn_id=CONNECTION,
        commands=dataclasses.asdict(SlurmCommands(slurm_bin=slurm_bin)),
        job_id=job_id,
        job_name=name,
        attempt_dir=f"{run_dir}/.jobs/evaluate/1",
        log_file=f"{run_dir}/logs/evaluate-1.out",
        kind="command",
        poll_interval=INTERVAL_S,
    )
    async for event in trigger.run():
        if "verdict" not in event.payload:
            raise AssertionError(event.payload)


async def follow_all(folder: str, slurm_bin: str, jobs: dict[str, str], ending: set[str]) -> Watched:
    """Follow the jobs until those that end have their verdicts."""
    from airflow_megatron.task_runtime.cluster_poller import shared_poller

    empty = memory_mib()
    verdicts: dict[str, float] = {}

    async def note(job_id: str, name: str) -> None:
        await follow(folder, slurm_bin, job_id, name)
        verdicts[job_id] = time.time()

    tasks = [asyncio.create_task(note(job_id, name)) for job_id, name in jobs.items()]
    commands = dataclasses.asdict(SlurmCommands(slurm_bin=slurm_bin))
    poller = shared_poller(CONNECTION, commands, INTERVAL_S)
    while not poller.stats.ticks:
        await asyncio.sleep(0.1)
    began, cpu, held, first = time.monotonic(), time.process_time(), 0.0, poller.stats.ticks
    while not ending <= verdicts.keys() and time.monotonic() - began < 300:
        before = time.thread_time()
        await asyncio.sleep(HEARTBEAT_S)
        held = max(held, time.thread_time() - before)
    cpu = time.process_time() - cpu
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stats = poller.stats
    return Watched(
        verdicts=verdicts,
        ticks=stats.ticks,
        commands=stats.commands,
        failures=stats.failures,
        poll_s=stats.last_duration,
        cpu_s=cpu / (stats.ticks - first),
        memory_mib=(memory_mib(), empty),
        script_kb=stats.last_script_bytes / 1000,
        answer_kb=stats.last_answer_bytes / 1000,
        held_s=held,
    )


def watch(folder: str, slurm_bin: str, jobs: dict[str, str], ending: set[str]) -> Watched:
    return asyncio.run(follow_all(folder, slurm_bin, jobs, ending))


def measure(cluster: CountedCluster, count: int) -> None:
    """Watch *count* jobs and print a line of the table."""
    waiting = cluster.submit("waiting", count - ENDING, "true", "--begin=now+1day")
    calls, logins = cluster.calls, cluster.logins
    ending = cluster.submit("ending", ENDING, f"sleep $((20 + number * 60 / {ENDING}))")
    jobs = {job_id: f"waiting.{number}" for number, job_id in enumerate(waiting, 1)}
    jobs |= {job_id: f"ending.{number}" for number, job_id in enumerate(ending, 1)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        seen = pool.submit(watch, str(cluster.place), str(cluster.bin), jobs, set(ending)).result()
    calls, logins = cluster.calls - calls, cluster.logins - logins
    time.sleep(3)  # accounting is the last to record the end of a job
    rows = cluster.run("sacct", "-X", "-n", "-P", "-j", ",".join(ending), "-o", "JobIDRaw,End").split()
    ends = {job_id: float(end) for job_id, _, end in (row.partition("|") for row in rows)}
    late = sorted(seen.verdicts[job_id] - ends[job_id] for job_id in ending if job_id in seen.verdicts)
    p95 = statistics.quantiles(late, n=20)[-1]
    print(
        f"| {count} | {seen.ticks} | {seen.commands} | {logins} | {calls['squeue']}, {calls['sacct']} | "
        f"{seen.poll_s:.2f} | {seen.script_kb:.0f}, {seen.answer_kb:.0f} | {seen.cpu_s:.2f} | "
        f"{seen.memory_mib[0]:.0f} ({seen.memory_mib[0] - seen.memory_mib[1]:.0f}) | {seen.held_s * 1000:.0f} | "
        f"{len(late)} of {ENDING} | {statistics.median(late):.1f}, {p95:.1f} |",
        flush=True,
    )
    cluster.cancel_all()


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [1000, 5000]
    with counted_cluster() as cluster, tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",  # each trigger says where its job is
            **cluster.airflow_connection(),
        }
        print(
            "| jobs | ticks | remote commands | SSH logins | squeue, sacct | s per poll | script, answer kB | "
            "CPU s per tick | MiB (for the jobs) | loop blocked ms | verdicts | job's end to verdict, p50, p95 s |"
        )
        print("|" + " --- |" * 12)
        for count in counts:
            measure(cluster, count)


if __name__ == "__main__":
    main()
