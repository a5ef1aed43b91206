"""What Airflow costs between the stages of a sweep: python benchmarks/between_stages.py [CHECKOUT[@AHEAD] ...].

Each checkout (this one when none is named; of an older commit, a ``git worktree``) runs a sweep of chains of jobs that
sleep, on a local cluster and an Airflow of its own, with the Python that runs this program. ``@1`` sets ``ahead: 1`` in
the spec. With ``--staggered`` the chains begin one after the other, so that jobs do not all end at the same moments.
Then Airflow forgets the runs, and the sweep runs again: all its jobs have finished. The last column is the last
checkout beside the first.

What is measured: seconds from a job's end to the next stage's sbatch, and to the next job's start (the jobs' own
clocks); processor seconds of all Airflow processes and of their ended children, less what the idle Airflow takes;
processes that tasks were, seen every 0.2 s.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
NAME = "between"
IDLE_S = 30
TIMEOUT_S = 3600
SAMPLE_S = 0.2
PARTS = ("scheduler", "supervisors", "tasks", "api_server", "triggerer", "dag-processor")
JOB = "date +%s.%N >began; sleep {seconds}; date +%s.%N >ended"
ROWS = {
    "end_to_sbatch": "end → sbatch, p50, p95 s",
    "end_to_start": "end → start, p50, p95 s",
    "sweep_s": "the sweep, s",
    "cpu_per_job": "processor s per job",
    "scheduler": "… of the scheduler",
    "supervisors": "… of the workers that supervise tasks",
    "tasks": "… of the tasks",
    "api_server": "… of the API server",
    "triggerer": "… of the triggerer",
    "dag-processor": "… of the dag processor",
    "processes_per_job": "processes per job",
    "again_s": "time to skip finished jobs, s",
    "again_cpu": "processor s to skip them",
    "again_processes": "processes to skip them",
    "idle_cpu": "idle, processor s per minute",
    "load": "load",
}


def sweep(points: int, stages: int, seconds: int, ahead: int | None, *, staggered: bool = False) -> str:
    """Return a spec of points that are chains of sleeping jobs.

    :param ahead: stages that are queued ahead; None leaves the key out
    :param staggered: the first job of each chain sleeps longer than that of the one before
    """
    chain: dict[str, Any] = {}
    for number in range(stages):
        more = f"$(({seconds} + {{{{ n }}}} * {seconds} / {points}))" if staggered and not number else seconds
        stage: dict[str, Any] = {"kind": "command", "command": ["sh", "-c", JOB.format(seconds=more)]}
        chain[f"s{number}"] = {**stage, **({"parent": f"s{number - 1}"} if number else {})}
    spec = {
        "name": NAME,
        **({} if ahead is None else {"ahead": ahead}),
        "cluster": "local",
        "poll_interval": 5,
        "point": "p{{ n }}",
        "sweep": {"n": list(range(points))},
        "slurm": {"cpus_per_task": 1, "time": "10m", "mem": "1M"},
        "stages": chain,
    }
    return yaml.safe_dump(spec, sort_keys=False)


class Watched:
    """The processes of an Airflow: their processor time, and those that tasks were.

    :param pid: of the process that started Airflow's components
    """

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.seen: set[tuple[int, float]] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time so far of each part of Airflow, of ended children too."""
        parts = dict.fromkeys(PARTS, 0.0)
        for child in self.root.children():
            name = next((name for name in PARTS if name in " ".join(child.cmdline())), None)
            if name != "scheduler":
                parts[name or "scheduler"] += used(child, *child.children(recursive=True))
                continue
            parts[name] += own(child)
            for worker in child.children():
                parts["supervisors"] += own(worker)
                parts["tasks"] += used(worker, *worker.children(recursive=True)) - own(worker)
        return parts

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        scheduler = None
        while not self._done.wait(SAMPLE_S):
            with suppress(psutil.NoSuchProcess, StopIteration):
                scheduler = scheduler or next(
                    child
                    for child in self.root.children()
                    if "scheduler" in " ".join(child.cmdline()).split()
                )
                workers = set(scheduler.children())
                for child in scheduler.children(recursive=True):
                    if child not in workers:
                        self.seen.add((child.pid, child.create_time()))


def own(process: psutil.Process) -> float:
    """Return the processor time of a process."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def used(*processes: psutil.Process) -> float:
    """Return the processor time of processes and of their ended children."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def spread(values: list[float]) -> str:
    """Return median and 95th percentile."""
    ordered = sorted(values)
    return (
        f"{statistics.median(ordered):.1f}, {ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]:.1f}"
    )


def transitions(run_root: Path, points: int, stages: int) -> tuple[list[float], list[float]]:
    """Return the seconds from each end to the next sbatch, and to the next start."""
    to_sbatch, to_start = [], []
    for point in range(points):
        folders = []
        for stage in range(stages):
            (recorded,) = run_root.glob(f"{NAME}/p{point}/**/.jobs/s{stage}/1/jobid")
            folders.append((recorded, recorded.parents[3]))
        for (_, before), (recorded, after) in itertools.pairwise(folders):
            ended = float((before / "ended").read_text())
            to_sbatch.append(recorded.stat().st_mtime - ended)
            to_start.append(float((after / "began").read_text()) - ended)
    return to_sbatch, to_start


class Measured:
    """A checkout's Airflow and cluster in a folder of their own; its package is the one that this process imports.

    :param place: the folder
    """

    def __init__(self, checkout: Path, place: Path) -> None:
        self.checkout, self.place, self.local = checkout, place, place / "local"
        self.local.mkdir()
        for name in ("venv-airflow", "venv-trainer"):
            (self.local / name).symlink_to(Path(sys.executable).parents[2] / name)
        (place / "specs").mkdir()
        os.environ["AIRFLOW_MEGATRON_LOCAL"] = str(self.local)
        os.environ["AIRFLOW_MEGATRON_SWEEP_SPECS"] = str(place / "specs")

    def cluster(self, *words: str) -> None:
        """Run a command of the local cluster."""
        program = str(self.checkout / "docker" / "local_cluster")
        subprocess.run(
            [sys.executable, program, *words, "--dir", str(self.local / "cluster")],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def run(
        self, points: int, stages: int, seconds: int, ahead: int | None, *, staggered: bool
    ) -> dict[str, Any]:
        """Measure; return the rows of the table."""
        text = sweep(points, stages, seconds, ahead, staggered=staggered)
        (self.place / "specs" / f"{NAME}.yaml").write_text(text)
        self.cluster("up", "--nodes", "4", "--cpus-per-node", "16", "--gpus-per-node", "0")
        airflow = local_airflow()
        try:
            airflow.prepare(json.loads((self.local / "cluster" / "cluster.json").read_text()))
            airflow.start()
            airflow.wait_for_dag(f"{NAME}.point")
            airflow.wait_for_dag(NAME)
            watched = Watched(airflow._process.pid)
            time.sleep(10)
            before = watched.processor_seconds()
            time.sleep(IDLE_S)
            after = watched.processor_seconds()
            idle = {part: (after[part] - before[part]) / IDLE_S for part in PARTS}
            first = worked(airflow, watched, idle)
            to_sbatch, to_start = transitions(self.local / "runs", points, stages)
            forget(airflow)
            second = worked(airflow, watched, idle)
            watched.stop()
        finally:
            airflow.stop()
            self.cluster("down", "--purge")
        jobs = points * stages
        return {
            "end_to_sbatch": spread(to_sbatch),
            "end_to_start": spread(to_start),
            "sweep_s": round(first["seconds"]),
            "cpu_per_job": round(sum(first["cpu"].values()) / jobs, 2),
            **{part: round(first["cpu"][part] / jobs, 2) for part in PARTS},
            "processes_per_job": round(first["processes"] / jobs, 1),
            "again_s": round(second["seconds"]),
            "again_cpu": round(sum(second["cpu"].values()), 1),
            "again_processes": second["processes"],
            "idle_cpu": round(sum(idle.values()) * 60, 1),
            "load": round(os.getloadavg()[0], 1),
        }


def local_airflow() -> Any:
    """Return the local Airflow of the package that is imported, whichever version that is."""
    for name in ("cli.local.local_airflow", "cli.local_airflow"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(f"airflow_megatron.{name}").LocalAirflow()
    raise SystemExit("this checkout has no local Airflow")


def worked(airflow: Any, watched: Watched, idle: dict[str, float]) -> dict[str, Any]:
    """Run the sweep to its end; return what that took.

    :param idle: processor seconds that each part of Airflow takes in a second without work
    """
    cpu, seen, began = watched.processor_seconds(), len(watched.seen), time.monotonic()
    run_id = airflow.trigger(NAME)
    while (state := airflow.run_state(NAME, run_id)) not in ("success", "failed"):
        if time.monotonic() - began > TIMEOUT_S:
            raise SystemExit(f"not done within {TIMEOUT_S} s")
        time.sleep(0.5)
    seconds = time.monotonic() - began
    if state == "failed":
        raise SystemExit(f"the sweep failed: {airflow.task_states(NAME, run_id)}")
    now = watched.processor_seconds()
    return {
        "seconds": seconds,
        "cpu": {part: now[part] - cpu[part] - idle[part] * seconds for part in PARTS},
        "processes": len(watched.seen) - seen,
    }


def forget(airflow: Any) -> None:
    """Delete all runs in Airflow's database, as the web page does."""
    user, password = airflow.credentials()
    login = {"username": user, "password": password}
    token = httpx.post(f"{airflow.address}/auth/token", json=login).json()["access_token"]
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for dag_id in (f"{NAME}.point", NAME):
            runs = f"{airflow.address}/api/v2/dags/{dag_id}/dagRuns"
            for run in client.get(runs, params={"limit": 1000}).json()["dag_runs"]:
                client.delete(f"{runs}/{run['dag_run_id']}").raise_for_status()


def checkout_and_ahead(given: str) -> tuple[Path, int | None]:
    """Return the folder and the stages ahead of ``CHECKOUT[@AHEAD]``."""
    path, _, ahead = given.partition("@")
    return Path(path).resolve(), int(ahead) if ahead else None


def measured(given: str, words: list[str]) -> dict[str, Any]:
    """Measure a checkout in a process that imports its package."""
    checkout, _ = checkout_and_ahead(given)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "AIRFLOW_MEGATRON_HOME": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(Path(__file__).resolve()), "--one", *words, given]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


def ratio(first: object, last: object) -> str:
    """Return how many times less the last is, of single numbers."""
    if not (isinstance(first, int | float) and isinstance(last, int | float)) or not last:
        return ""
    return f"{first / last:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkouts", nargs="*", default=[str(ROOT)], metavar="CHECKOUT[@AHEAD]")
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--stages", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30, help="that each job sleeps")
    parser.add_argument("--staggered", action="store_true", help="begin the chains one after the other")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    numbers = (given.points, given.stages, given.seconds)
    if given.one:
        with tempfile.TemporaryDirectory(prefix="between-stages-", ignore_cleanup_errors=True) as folder:
            checkout, ahead = checkout_and_ahead(given.checkouts[0])
            print(
                json.dumps(Measured(checkout, Path(folder)).run(*numbers, ahead, staggered=given.staggered))
            )
        return
    words = [f"--points={numbers[0]}", f"--stages={numbers[1]}", f"--seconds={numbers[2]}"]
    words += ["--staggered"] if given.staggered else []
    tables = [measured(checkout, words) for checkout in given.checkouts]
    names = [Path(checkout).name for checkout in given.checkouts]
    print(f"| {numbers[0]} chains of {numbers[1]} jobs of {numbers[2]} s | {' | '.join(names)} | ratio |")
    print("| --- " * (len(names) + 2) + "|")
    for key, name in ROWS.items():
        cells = [str(table[key]) for table in tables]
        last = ratio(tables[0][key], tables[-1][key]) if len(tables) > 1 and key != "load" else ""
        print(f"| {name} | {' | '.join(cells)} | {last} |")


if __name__ == "__main__":
    main()
