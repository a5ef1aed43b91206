"""Slurm commands that watching takes, side by side: python benchmarks/other_watchers.py [--autoexperiment PATH].

On a local cluster of its own, with jobs that wait and jobs that run, one tool after the other: this project, one SSH
connection for each look at a job (what an SSH operator and a sensor do), AutoExperiment and submitit. The latter two
are installed from their public sources into throw-away environments; PATH is a checkout to use instead of cloning.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
from counted_cluster import counted_cluster
from expansion import AUTOEXPERIMENT, installed
from watching import INTERVAL_S, follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from counted_cluster import CountedCluster

JOBS = 40
"""Half of them wait, half run."""

WARM_UP_S = 70
"""Until submitit's watcher looks as rarely as it ever does."""

WINDOW_S = 120
SUBMITIT = "submitit==1.5.4"
WAIT = "--begin=now+1day"


def count(cluster: CountedCluster, tool: str) -> None:
    """Print a line of the table: what reaches Slurm in the window, for each hour."""
    time.sleep(WARM_UP_S)
    calls, logins = cluster.calls, cluster.logins
    time.sleep(WINDOW_S)
    calls, logins = cluster.calls - calls, cluster.logins - logins
    hourly = 3600 / WINDOW_S
    queries = calls["squeue"] + calls["sacct"] + calls["scontrol"]
    print(
        f"| {tool} | {calls['squeue'] * hourly:.0f} | {calls['sacct'] * hourly:.0f} | {logins * hourly:.0f} | "
        f"{queries * hourly / JOBS:.1f} |",
        flush=True,
    )


@contextmanager
def running(argv: list[str], **options: object) -> Iterator[None]:
    """Run a program for as long as the context lasts."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"{argv} ended: {process.communicate()[1][-2000:]}")
    finally:
        process.kill()
        process.communicate()


def submitted(cluster: CountedCluster) -> dict[str, str]:
    """Submit our jobs; return id → name."""
    waiting = cluster.submit("waiting", JOBS // 2, "true", WAIT)
    active = cluster.submit("active", JOBS // 2, "sleep 1000")
    return {
        **{job_id: f"waiting.{number}" for number, job_id in enumerate(waiting, 1)},
        **{job_id: f"active.{number}" for number, job_id in enumerate(active, 1)},
    }


async def one_poller(cluster: CountedCluster) -> None:
    """Follow jobs as Airflow's triggerer does here."""
    tasks = [
        asyncio.create_task(follow(str(cluster.place), str(cluster.bin), job_id, name))
        for job_id, name in submitted(cluster).items()
    ]
    await asyncio.to_thread(count, cluster, "this project")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def connection_for_each_look(cluster: CountedCluster) -> None:
    """Ask about each job over a connection of its own."""
    ssh = cluster.description["ssh"]
    known = asyncssh.import_known_hosts(f"* {ssh['host_key']}\n")

    async def follow(job_id: str) -> None:
        while True:
            try:
                async with asyncssh.connect(
                    ssh["host"],
                    port=ssh["port"],
                    username=ssh["user"],
                    client_keys=[ssh["key_file"]],
                    known_hosts=known,
                    config=None,
                ) as connection:
                    await connection.run(f"{cluster.bin}/squeue -h -j {job_id}")
            except (OSError, asyncssh.Error):
                pass  # sshd refuses some of many simultaneous connections
            await asyncio.sleep(INTERVAL_S)

    tasks = [asyncio.create_task(follow(job_id)) for job_id in submitted(cluster)]
    await asyncio.to_thread(count, cluster, "a connection for each look")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def autoexperiment(cluster: CountedCluster, python: str) -> None:
    """Let AutoExperiment manage jobs."""
    folder = cluster.place / "autoexperiment"
    (folder / "out").mkdir(parents=True)
    (folder / "template.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --job-name={name}\n#SBATCH --output={output_file}\n#SBATCH --mem=1\n"
        "#SBATCH --begin={begin}\nwhile sleep 1; do date; done\n"
    )
    (folder / "config.yaml").write_text(
        textwrap.dedent(
            f"""\
            cmd: "sbatch {{sbatch_script}}"
            check_interval_secs: {INTERVAL_S:.0f}
            begin: ["now", "now+1day"]
            id: {list(range(JOBS // 2))}
            name: "auto{{id}}{{begin}}"
            template: template.sbatch
            sbatch_script: "sbatch/{{name}}.sbatch"
            output_file: "out/{{name}}.out"
            termination_str: "FINISHED JOB"
            """
        )
    )
    program = str(Path(python).with_name("autoexperiment"))
    with running([program, "build-and-run", "config.yaml"], cwd=folder, env=cluster.environment):
        count(cluster, "AutoExperiment")


WITH_SUBMITIT = """
import sys, time, submitit
executor = submitit.AutoExecutor(folder=sys.argv[1])
jobs = []
for begin in ("now", "now+1day"):
    executor.update_parameters(timeout_min=60, mem_gb=0.1, slurm_additional_parameters={"begin": begin})
    jobs += executor.map_array(time.sleep, [1000] * int(sys.argv[2]))
while not all([job.done() for job in jobs]):
    time.sleep(float(sys.argv[3]))
"""


def submitit(cluster: CountedCluster, python: str) -> None:
    """Let submitit submit jobs and wait for them."""
    argv = [
        python,
        "-c",
        WITH_SUBMITIT,
        str(cluster.place / "submitit"),
        str(JOBS // 2),
        str(INTERVAL_S),
    ]
    with running(argv, env=cluster.environment):
        count(cluster, "submitit")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autoexperiment", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        their_python, _ = installed(
            "autoexperiment", AUTOEXPERIMENT, arguments.autoexperiment, place, "omegaconf", "clize"
        )
        venv.create(place / "submitit", with_pip=True)
        submitit_python = str(place / "submitit" / "bin" / "python")
        subprocess.run([submitit_python, "-m", "pip", "install", "--quiet", SUBMITIT], check=True)
        with counted_cluster() as cluster:
            os.environ |= {
                "AIRFLOW_HOME": str(place / "airflow"),
                "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
                **cluster.airflow_connection(),
            }
            print(
                f"| {JOBS} jobs, polled every {INTERVAL_S:.0f} s | squeue per hour | sacct per hour "
                "| SSH logins per hour | queries per hour and job |\n| --- | --- | --- | --- | --- |",
                flush=True,
            )
            asyncio.run(one_poller(cluster))
            cluster.cancel_all()
            asyncio.run(connection_for_each_look(cluster))
            cluster.cancel_all()
            autoexperiment(cluster, their_python)
            cluster.cancel_all()
            submitit(cluster, submitit_python)


if __name__ == "__main__":
    sys.exit(main())
