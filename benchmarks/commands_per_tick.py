"""Remote commands per poll tick: python benchmarks/commands_per_tick.py [JOBS …], the local cluster being up.

Submits sleeping jobs, follows each with the trigger that Airflow's tasks use, and counts what reaches the login node.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from typing import TYPE_CHECKING

from airflow_megatron.spec.project import local_dir

os.environ.setdefault("AIRFLOW_HOME", str(local_dir() / "airflow"))
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"  # each trigger says where its job is

from airflow_megatron.cli.status import command_line_hook
from airflow_megatron.slurm.poller import Poller
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.hooks.slurm import SlurmHook
    from airflow_megatron.slurm.transport import CommandResult, Transport

INTERVAL_S = 2.0
TICKS = 5


class CountingTransport:
    """Passes scripts on to a real transport and counts them."""

    commands = 0
    connections = 0

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        type(self).connections += 1

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run a script on the login node."""
        type(self).commands += 1
        return await self._transport.run(script, timeout=timeout)

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()


def submit(hook: SlurmHook, count: int, folder: Path) -> list[str]:
    """Submit jobs that sleep; return their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    script = f"""cd {folder} && for number in $(seq {count}); do
  sbatch --parsable --begin=now+1hour --job-name=bench.$number.a1 --output=/dev/null --wrap='sleep 1'
done"""
    result = hook.run(script, timeout=300)
    if result.exit_status:
        raise SystemExit(f"sbatch failed: {result.stderr}")
    return result.stdout.split()


async def measure(hook: SlurmHook, job_ids: list[str], folder: Path) -> tuple[int, int, float]:
    """Follow the jobs for some ticks; return ticks, remote commands and the seconds of the last poll."""

    async def connect() -> CountingTransport:
        return CountingTransport(await hook.transport())

    CountingTransport.commands = 0
    cluster = load_cluster("local")
    key = (cluster.ssh_conn_id, hook.commands)
    poller = Poller.shared(key, connect, interval=INTERVAL_S, commands=hook.commands)
    triggers = [
        SlurmJobTrigger(
            ssh_conn_id=cluster.ssh_conn_id,
            commands=dataclasses.asdict(hook.commands),
            job_id=job_id,
            job_name=f"bench.{number}.a1",
            attempt_dir=str(folder / str(number)),
            log_file=str(folder / f"{number}.out"),
            kind="train",
            train_iters=100,
            checkpoint_dir=str(folder / "checkpoints"),
            poll_interval=INTERVAL_S,
        )
        for number, job_id in enumerate(job_ids, 1)
    ]

    async def follow(trigger: SlurmJobTrigger) -> None:
        async for _ in trigger.run():
            pass

    tasks = [asyncio.create_task(follow(trigger)) for trigger in triggers]
    while poller.stats.ticks < TICKS:
        await asyncio.sleep(0.1)
    ticks, commands, took = poller.stats.ticks, CountingTransport.commands, poller.stats.last_duration
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return ticks, commands, took


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [1, 50, 200]
    cluster = load_cluster("local")
    hook = command_line_hook(cluster)
    folder = local_dir() / "benchmark"
    print("| jobs watched | ticks | remote commands | SSH connections | seconds a poll |")
    print("| --- | --- | --- | --- | --- |")
    for count in counts:
        job_ids = submit(hook, count, folder)
        try:
            CountingTransport.connections = 0
            ticks, commands, took = asyncio.run(measure(hook, job_ids, folder))
            print(
                f"| {count} | {ticks} | {commands} | {CountingTransport.connections} | {took:.2f} |",
                flush=True,
            )
        finally:
            hook.run("scancel " + " ".join(job_ids), timeout=120)
        time.sleep(1)


if __name__ == "__main__":
    main()
