"""The time of a report: 3 sizes × 30 learning rates, each a trunk with two cooldowns and evaluations.

``python benchmarks/report.py [POINTS]`` writes run directories like those of trainings of 2,000 logged iterations,
reads them with the real remote script, and writes the report with all of its tables, figures and fits. It prints
processor seconds and sizes.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from run_tree import RunTree, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.report import write_report

SIZES = ((64, 120_000), (128, 700_000), (256, 3_000_000))
ITERATIONS = 20_000


def study(folder: Path, points: int) -> RunTree:
    """Write the run directories of a study."""
    tree = RunTree(folder)
    for hidden, parameters in SIZES:
        size = {"num_layers": hidden // 32, "hidden_size": hidden}
        for step in range(points // len(SIZES)):
            rate = 3e-4 * 1.15**step
            budgets = {"half": ITERATIONS // 2, "whole": ITERATIONS}
            tree.add_point(size, parameters, rate, train_iters=ITERATIONS, budgets=budgets)
    return tree


def spent() -> float:
    """Return the processor seconds of this process and its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(points: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        tree = study(Path(place) / "sweep", points)
        jobs = read_jobs(tree.jobs)
        steps = [("", spent(), time.monotonic())]
        snapshot = take_snapshot(run_directories(jobs))
        steps.append(("read the run directories", spent(), time.monotonic()))
        report = write_report(snapshot, tree.jobs, Path(place) / "report", title="study")
        steps.append(("write the report", spent(), time.monotonic()))
        for (_, cpu, wall), (name, cpu_now, wall_now) in itertools.pairwise(steps):
            print(f"{name}: {cpu_now - cpu:.1f} s of processor time, {wall_now - wall:.1f} s")
        size = sum(path.stat().st_size for path in report.paths)
        page = report.page.stat().st_size
        print(
            f"{points} points, {len(report.table.rows)} trainings, {len(report.paths)} files, {size / 1e6:.1f} MB,"
            f" page {page / 1e6:.1f} MB, together {spent() - steps[0][1]:.1f} s of processor time"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
