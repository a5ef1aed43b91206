"""``airflow-megatron quickstart`` and ``ui``: start, use and stop the local cluster and Airflow."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_megatron.cli.local.local_airflow import LocalAirflow, LocalAirflowError
from airflow_megatron.cli.local.local_cluster import run_local_cluster
from airflow_megatron.cli.local.local_connection import cluster_description
from airflow_megatron.cli.local.private_files import keep_new_files_private, make_private
from airflow_megatron.cli.runs.progress_table import short_duration
from airflow_megatron.cli.runs.status import looks_at
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.run_results import results_dir
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.results.readings.progress import ProgressGrid, StageState, changed_lines
from airflow_megatron.results.readings.snapshot import SnapshotError
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from airflow_megatron.spec.model.sweep import Sweep

LOOK_PAUSE_S = 5.0
END_PAUSE_S = 1.0
"""Pause when all jobs have ended, and only Airflow's last tasks are left."""
_SPEC_INTERVAL_S = 60
"""The specs of a sweep that runs change rarely, and each reading takes time from its jobs."""
_FEWEST_FOR_A_FORECAST = 4


class QuickstartError(AirflowMegatronError, RuntimeError):
    """A step of the quick start failed."""


def run_quickstart(sweep: Sweep, *, fresh: bool) -> int:
    """Run a sweep on the local cluster with the local Airflow, and show its progress and results.

    :return: 0 if every job has finished
    """
    plan = check_sweep(sweep)
    missing = _missing_checkouts(plan)
    if missing:
        print(missing, file=sys.stderr)
        return 1
    try:
        with local_services(LocalAirflow(spec_interval_s=_SPEC_INTERVAL_S)) as airflow:
            state = _run_sweep(airflow, plan, fresh=fresh)
    except (LocalAirflowError, QuickstartError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to continue", file=sys.stderr)
        return 130
    _show_results(plan)
    return 0 if state == "success" else 1


def _missing_checkouts(plan: Plan) -> str:
    """Return the commands that create missing checkouts of upstream; empty if none is missing."""
    trainings = {job.release: job.trainer for job in plan.jobs if job.runs_trainer}
    for release, trainer in trainings.items():
        checkout = load_cluster(plan.cluster).trainer(trainer).checkout_of(release)
        script = TRAINERS[trainer].checkout_script
        if script and checkout and not Path(checkout).is_dir():
            return f"there is no Megatron-LM in {checkout}; put it there: {script} {release} {checkout}"
    return ""


def run_ui() -> int:
    """Start cluster and Airflow, print address and password, and run until interrupted."""
    try:
        with local_services(LocalAirflow()) as airflow:
            user, password = airflow.credentials()
            _say(f"Airflow runs at {airflow.address}   user {user}   password {password}")
            _say(
                "Put a spec into sweep_specs/; its DAGs appear within half a minute. Ctrl-C stops everything."
            )
            airflow.build_task_routes()
            while True:
                airflow.expect_alive()
                time.sleep(LOOK_PAUSE_S)
    except (LocalAirflowError, QuickstartError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


@contextmanager
def local_services(airflow: LocalAirflow) -> Iterator[LocalAirflow]:
    """Start the local cluster and Airflow; on exit, stop those that this command started."""
    signal.signal(signal.SIGTERM, _interrupt)
    keep_new_files_private()
    make_private(local_dir())
    airflow.claim()
    was_up = run_local_cluster("status", quiet=True) == 0
    try:
        _say("the Slurm cluster is already running" if was_up else "starting the Slurm cluster")
        with ThreadPoolExecutor(1) as beside:  # each waits for its own daemons most of the time
            cluster = None if was_up else beside.submit(run_local_cluster, "up")
            _say("preparing Airflow")
            airflow.prepare_database()
            _say("starting Airflow")
            airflow.start()
        if cluster is not None and cluster.result():
            raise QuickstartError("the local Slurm cluster did not start; see above")
        airflow.connect(cluster_description())
        _say(f"Airflow is at {airflow.address}")
        os.environ |= {
            name: value for name, value in airflow.environment().items() if name.startswith("AIRFLOW")
        }
        yield airflow
    finally:
        with _uninterrupted():
            _say("stopping Airflow" if was_up else "stopping Airflow and the Slurm cluster")
            with ThreadPoolExecutor(1) as beside:
                if not was_up:
                    beside.submit(run_local_cluster, "down", quiet=True)
                airflow.stop()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM, in programs started meanwhile too: a second Ctrl-C would leave daemons running."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _run_sweep(airflow: LocalAirflow, plan: Plan, *, fresh: bool) -> str:
    dag_id = plan.sweep
    airflow.wait_for_dag(f"{dag_id}.point")
    airflow.wait_for_dag(dag_id)
    run_id = airflow.trigger(dag_id, {"fresh_start": fresh})
    _say(
        f"started the sweep: {counted(len(plan.points), 'point')}, {counted(len(plan.jobs), 'job')} "
        f"({dag_id}, run {run_id})"
    )
    airflow.build_task_routes()
    with looks_at(plan) as look:
        progress = _Progress(look)
        next_look = 0.0
        while True:
            state = airflow.run_state(dag_id, run_id)
            airflow.expect_alive()
            ended = state in ("success", "failed")
            if ended or time.monotonic() >= next_look:
                progress.show()
                next_look = time.monotonic() + LOOK_PAUSE_S
            if ended:
                break
            time.sleep(END_PAUSE_S if progress.have_jobs_ended else LOOK_PAUSE_S)
    _say(f"the sweep's run ended: {state}")
    if state == "failed":
        for task, task_state in airflow.task_states(dag_id, run_id).items():
            if task_state == "failed":
                print(f"\nlog of task {task}:\n{airflow.task_log(dag_id, run_id, task)[-3000:]}")
    return state


class _Progress:
    """Printer of the changes on the cluster since the last poll."""

    def __init__(self, look: Callable[[], ProgressGrid]) -> None:
        self._look = look
        self._grid: ProgressGrid | None = None
        self._began = time.monotonic()

    @property
    def have_jobs_ended(self) -> bool:
        """Whether every job has ended, although the verdicts of some may be missing."""
        return self._grid is not None and all(
            status.state.is_final or status.state is StageState.ENDED for status in self._grid.cells.values()
        )

    def show(self) -> None:
        try:
            grid = self._look()
        except (TransportError, SnapshotError) as error:
            _say(str(error))
            return
        total, finished = len(grid.cells), grid.count(StageState.FINISHED)
        for line in changed_lines(self._grid, grid):
            _say(f"{finished}/{total} {line}")
        if self._grid is not None and finished > self._grid.count(StageState.FINISHED):
            _say(f"{finished}/{total} jobs finished {self._times(finished, total)}")
        self._grid = grid

    def _times(self, finished: int, total: int) -> str:
        elapsed = time.monotonic() - self._began
        text = f"after {short_duration(elapsed)}"
        if _FEWEST_FOR_A_FORECAST <= finished < total:
            text += f", about {short_duration(elapsed * (total - finished) / finished)} to go"
        return text


def _show_results(plan: Plan) -> None:
    folder = results_dir(plan.sweep)
    table = folder / "results.md"
    if not table.exists():
        return
    print(f"\n{table.read_text()}")
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        print(f"wrote {os.path.relpath(path)}")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, so that the started services are stopped."""
    raise KeyboardInterrupt
