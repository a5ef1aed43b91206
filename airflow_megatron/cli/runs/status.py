"""``airflow-megatron status``: show the progress of a sweep, read from its cluster."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.cli.runs.progress_table import progress_table
from airflow_megatron.plan.run_results import fetch_snapshot
from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.readings.progress import (
    ProgressGrid,
    StageStatus,
    changed_lines,
    progress_grid,
    progress_lines,
)
from airflow_megatron.results.readings.snapshot import SnapshotError
from airflow_megatron.slurm.polling.queue_states import fetch_queue
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.supervision.attempts import slurm_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.slurm.remote.transport import CommandResult

STATUS_LOG_BYTES = 256 * 1024


class StatusFormat(StrEnum):
    """Output format of ``status``."""

    TABLE = "table"
    JSON = "json"


@contextmanager
def looks_at(plan: Plan) -> Iterator[Callable[[], ProgressGrid]]:
    """Yield a function that returns the state of every job of a plan, from its files and from Slurm's queue.

    All calls share one login. The function raises :class:`TransportError` if the login node does not answer.
    """
    clusters = [load_cluster(name) for name in dict.fromkeys(job.cluster for job in plan.jobs)]
    jobs = sweep_jobs(plan.jobs, several=plan.several)
    nodes: dict[str, Callable[[str], CommandResult]] = {}

    def look() -> ProgressGrid:
        cells: dict[tuple[str, str], StageStatus] = {}
        unread: list[str] = []
        for cluster in clusters:
            if (
                cluster.name not in nodes
            ):  # repeated, because the user may add or correct Airflow's connection
                nodes[cluster.name] = stack.enter_context(command_line_hook(cluster).session())
            run = nodes[cluster.name]
            here = [number for number, job in enumerate(plan.jobs) if job.cluster == cluster.name]
            snapshot = fetch_snapshot(
                [plan.jobs[number] for number in here], run, log_tail_bytes=STATUS_LOG_BYTES
            )
            # read after the files, so that every job in them is or was in the queue
            queue = fetch_queue(slurm_commands(cluster), run)
            if queue is None:
                unread.append(cluster.name)
            cells |= progress_grid(snapshot, [jobs[number] for number in here], queue=queue).cells
        points, stages = (
            tuple(dict.fromkeys(getattr(job, key) for job in jobs)) for key in ("point", "stage")
        )
        # in the plan's order
        return ProgressGrid(
            points,
            stages,
            {key: cells[key] for job in jobs if (key := (job.point, job.stage))},
            tuple(unread),
        )

    with ExitStack() as stack:
        yield look


def print_status(plan: Plan, output: StatusFormat, every: float | None) -> None:
    """Print the progress of a sweep, once or repeatedly.

    :param every: seconds between two outputs, until no job can change without a user's action; None for one output
    """
    before: ProgressGrid | None = None
    title = f"{plan.sweep} on {plan.cluster}"
    shows_table = output is StatusFormat.TABLE and sys.stdout.isatty()
    with (
        looks_at(plan) as look,
        Live(console=Console(), auto_refresh=False) if shows_table and every else nullcontext() as live,
    ):
        while True:
            try:
                grid = look()
            except (TransportError, SnapshotError) as error:
                print(error, file=sys.stderr)
                if every is None:
                    sys.exit(1)
            else:
                if output is StatusFormat.JSON:
                    row = {"sweep": plan.sweep, "cluster": plan.cluster, **grid.to_json()}
                    print(json.dumps(row, indent=None if every else 2), flush=True)
                elif live is not None:
                    rows = max(3, live.console.height // 3)
                    live.update(progress_table(grid, title=title, rows=rows), refresh=True)
                elif shows_table:
                    Console().print(progress_table(grid, title=title))
                else:
                    lines = progress_lines(grid) if before is None else changed_lines(before, grid)
                    print("\n".join(lines), end="\n" if lines else "", flush=True)
                before = grid
                if every is None or grid.is_final:
                    return
            time.sleep(every)
