"""Time from a job's end to the next stage's sbatch, from Slurm's accounting of a sweep that has run.

Usage: python benchmarks/stage_latency.py SPEC, its cluster being up. Resolution: one second.
"""

from __future__ import annotations

import os
import statistics
import sys
from datetime import datetime

from airflow_megatron.spec.documents.project import local_dir, sweep_specs_dir

os.environ.setdefault("AIRFLOW_HOME", str(local_dir() / "airflow"))

from airflow_megatron.cli.runs.status import command_line_hook
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

SACCT = "sacct -X -n -P --starttime=now-7days --format=JobName%200,Submit,End"


def attempts(lines: str) -> dict[str, list[tuple[datetime, datetime]]]:
    """Return job → (submitted, ended) of its attempts; the attempt's number and digest are cut off the Slurm name."""
    found: dict[str, list[tuple[datetime, datetime]]] = {}
    for line in lines.splitlines():
        name, submitted, ended = line.split("|")
        if ended not in ("Unknown", "None"):
            times = (datetime.fromisoformat(submitted), datetime.fromisoformat(ended))
            found.setdefault(name.rsplit(".", 2)[0], []).append(times)
    return found


def main() -> None:
    path = next(sweep_specs_dir().glob(f"{sys.argv[1]}.y*ml"), sys.argv[1])
    sweep = load_sweep(path)
    cluster = load_cluster(sweep.spec.cluster)
    plan = plan_sweep(sweep, cluster)
    ran = attempts(command_line_hook(cluster).run(SACCT).stdout)
    seconds = []
    for job in plan.jobs:
        for dependency in job.depends_on:
            parent = plan.job(dependency.job)
            # launching the points lies between a stage of the sweep and one of a point
            if dependency.until == "finished" and parent.point and parent.name in ran and job.name in ran:
                began, ended = min(ran[job.name])[0], min(ran[parent.name])[1]
                seconds.append((began - ended).total_seconds())
    if not seconds:
        raise SystemExit(f"sacct knows no jobs of {sweep.name}; run the sweep first")
    print("| transitions | median s | slowest s | poll interval s |\n| --- | --- | --- | --- |")
    print(
        f"| {len(seconds)} | {statistics.median(seconds):.0f} | {max(seconds):.0f} | {sweep.spec.poll_interval:.0f} |"
    )


if __name__ == "__main__":
    main()
