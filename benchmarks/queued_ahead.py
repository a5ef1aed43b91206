"""From a job's end to the next one's start, with both in Slurm's queue: python benchmarks/queued_ahead.py.

Chains of jobs that sleep, on a local cluster: submitted by hand with ``--dependency=afterok``, and by a sweep with
``ahead`` whose Airflow is stopped as soon as the chains are in the queue. Each with the scheduler parameters of the
local cluster and with Slurm's own defaults. The jobs' own clocks give the times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from between_stages import JOB, NAME, ROOT, Measured, local_airflow, spread, sweep, transitions

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 1.0
TIMEOUT_S = 1800
PARAMETERS = re.compile(r"^SchedulerParameters=.*\n", re.MULTILINE)


class QueuedChains(Measured):
    """Chains of jobs on a cluster of their own.

    :param place: a folder
    :param defaults: with Slurm's own scheduler parameters
    """

    def __init__(self, place: Path, *, defaults: bool) -> None:
        super().__init__(ROOT, place)
        self.defaults = defaults

    def up(self) -> None:
        """Start the cluster."""
        self.cluster("up", "--nodes", "4", "--cpus-per-node", "16", "--gpus-per-node", "0")
        os.environ["SLURM_CONF"] = str(self.local / "cluster" / "etc" / "slurm.conf")
        if self.defaults:
            conf = Path(os.environ["SLURM_CONF"])
            text, count = PARAMETERS.subn("", conf.read_text())
            if count != 1:
                raise SystemExit(f"{conf} has {count} lines of SchedulerParameters")
            conf.write_text(text)
            slurm("scontrol", "reconfigure")

    def by_hand(self, points: int, stages: int, seconds: int) -> list[float]:
        """Return the seconds from each end to the next start, with plain dependencies."""
        for point in range(points):
            before = ""
            for stage in range(stages):
                folder = self.place / "plain" / f"p{point}" / f"s{stage}"
                folder.mkdir(parents=True)
                after = [f"--dependency=afterok:{before}"] if before else []
                words = [
                    "sbatch",
                    "--parsable",
                    "--mem=1M",
                    "--output=/dev/null",
                    f"--chdir={folder}",
                    *after,
                ]
                before = slurm(*words, f"--wrap={JOB.format(seconds=seconds)}").strip()
        wait_until(queue_is_empty, "the chains")
        between = []
        for point in range(points):
            times = [self.place / "plain" / f"p{point}" / f"s{stage}" for stage in range(stages)]
            between += [
                float((after / "began").read_text()) - float((before / "ended").read_text())
                for before, after in itertools.pairwise(times)
            ]
        return between

    def without_airflow(self, points: int, stages: int, seconds: int) -> list[float]:
        """Return the seconds from each end to the next start, queued ahead by a sweep whose Airflow is stopped."""
        (self.place / "specs" / f"{NAME}.yaml").write_text(sweep(points, stages, seconds, stages))
        airflow = local_airflow()
        try:
            airflow.prepare(json.loads((self.local / "cluster" / "cluster.json").read_text()))
            airflow.start()
            airflow.wait_for_dag(f"{NAME}.point")
            airflow.wait_for_dag(NAME)
            airflow.trigger(NAME)
            runs = self.local / "runs"
            wait_until(
                lambda: len([*runs.glob("*/*/**/.jobs/*/1/jobid")]) == points * stages, "all submissions"
            )
        finally:
            airflow.stop()
        wait_until(queue_is_empty, "the chains")
        return transitions(self.local / "runs", points, stages)[1]


def slurm(*words: str) -> str:
    """Return what a command of Slurm prints."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def queue_is_empty() -> bool:
    """Return whether no job waits or runs."""
    return not slurm("squeue", "-h")


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + TIMEOUT_S
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what} took longer than {TIMEOUT_S} s")
        time.sleep(POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=30, help="that each job sleeps")
    given = parser.parse_args()
    numbers = (given.points, given.stages, given.seconds)
    count = given.points * (given.stages - 1)
    print(
        f"| end → start, {count} transitions, p50, p95 s | dependency by hand | queued ahead, Airflow stopped |"
    )
    print("| --- | --- | --- |")
    for defaults in (False, True):
        cells = []
        for way in (QueuedChains.by_hand, QueuedChains.without_airflow):
            with tempfile.TemporaryDirectory(prefix="queued-ahead-", ignore_cleanup_errors=True) as folder:
                chains = QueuedChains(Path(folder), defaults=defaults)
                chains.up()
                try:
                    cells.append(spread(way(chains, *numbers)))
                finally:
                    chains.cluster("down", "--purge")
        name = "Slurm's defaults" if defaults else "the local cluster's parameters"
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
