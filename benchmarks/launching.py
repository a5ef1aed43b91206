"""Measure the time from a sweep's trigger to the last point's run: python benchmarks/launching.py [POINTS].

The quick start's sweep with as many learning rates as asked for, in an Airflow of its own: API server, scheduler with
the LocalExecutor, SQLite. No cluster is up: what is started waits or fails, and costs the scheduler what it does.

With ``--schedulers N`` on ``docker/distributed`` (PostgreSQL, Redis, Celery) instead, with N schedulers; prints the
processor seconds of each kind of daemon, with all its children, from the trigger to the last run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from between_stages import used

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.cli.local.local_airflow import LocalAirflow
from airflow_megatron.cli.local.local_connection import local_connections
from airflow_megatron.spec.documents.project import local_dir, project_folder, sweep_specs_dir

NAME = "launching"
TIMEOUT_S = 600
UNREACHABLE = {"ssh": {"host": "127.0.0.1", "port": 9, "user": "nobody", "key_file": "", "host_key": ""}}


class DistributedAirflow(LocalAirflow):
    """The engine of ``docker/distributed``.

    :param home: folder of the engine
    :param venv: environment that holds Airflow
    :param schedulers: number of schedulers
    """

    def __init__(self, home: Path, venv: Path, schedulers: int) -> None:
        super().__init__(home)
        self._venv, self._schedulers = venv, schedulers

    def prepare(self, cluster: dict[str, Any]) -> None:
        """Pass the connection in an environment variable."""
        for name, connection in local_connections(cluster).items():
            os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(connection)

    def start(self) -> None:
        """Start the engine."""
        os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(project_folder("dags"))
        self._engine("up", "--schedulers", str(self._schedulers))
        description = json.loads((self.home / "engine.json").read_text())
        self.port = int(description["address"].rpartition(":")[2])

    def stop(self) -> None:
        """Stop the engine and delete it."""
        self._engine("down", "--purge")

    def credentials(self) -> tuple[str, str]:
        """Return user and password of the web page."""
        passwords = json.loads((self.home / "airflow" / "passwords.json").read_text())
        return next(iter(passwords.items()))

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until both DAGs of a sweep are known, and unpause them."""
        for name in (dag_id, f"{dag_id}.point"):
            while self._request("PATCH", f"/dags/{name}", json={"is_paused": False}).status_code != 200:
                time.sleep(1)

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time so far of each kind of daemon, of ended children too."""
        services: dict[str, int] = json.loads(self._engine("status"))
        seconds: dict[str, float] = {}
        for name, pid in services.items():
            kind, process = name.partition(":")[0], psutil.Process(pid)
            seconds[kind] = seconds.get(kind, 0) + used(process, *process.children(recursive=True))
        return seconds

    def _engine(self, command: str, *options: str) -> str:
        program = str(project_folder("docker") / "distributed")
        place = ("--dir", str(self.home), "--venv", str(self._venv))
        words = [sys.executable, program, command, *place, *options]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def sweep_of(points: int) -> str:
    """Return the quick start's spec with another number of points, and without the stage that runs once."""
    spec: dict[str, Any] = yaml.safe_load((sweep_specs_dir() / "quickstart.yaml").read_text())
    sizes, rates = spec["sweep"]["groups"]
    rates["params"]["lr"] = [f"{number}e-6" for number in range(1, points // len(sizes["configs"]) + 1)]
    del spec["stages"]["prepare_data"], spec["stages"]["pretrain"]["parent"]
    spec["params"]["data"] = "{{ sweep_dir }}/data"
    return yaml.safe_dump({**spec, "name": NAME}, sort_keys=False)


def seconds_of(airflow: LocalAirflow, run_id: str) -> dict[str, float]:
    """Wait for the sweep's tasks up to the launch; return how long each ran, by its own clock."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        states = airflow.task_states(NAME, run_id)
        if "failed" in states.values():
            raise SystemExit(f"{states}\n{airflow.task_log(NAME, run_id, 'launch')[-3000:]}")
        if states.get("launch") == "success":
            return airflow.task_seconds(NAME, run_id)
        time.sleep(1)
    raise SystemExit(f"not launched within {TIMEOUT_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="From a sweep's trigger to the last point's run.")
    parser.add_argument("points", type=int, nargs="?", default=1000)
    parser.add_argument("--schedulers", type=int, help="on docker/distributed, with so many schedulers")
    parser.add_argument("--venv", help="its environment; .local/venv-distributed")
    arguments = parser.parse_args()
    venv = Path(arguments.venv) if arguments.venv else local_dir() / "venv-distributed"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        specs = place / "sweep_specs"
        specs.mkdir()
        (specs / f"{NAME}.yaml").write_text(sweep_of(arguments.points))
        os.environ |= {"AIRFLOW_MEGATRON_SWEEP_SPECS": str(specs), "AIRFLOW_MEGATRON_LOCAL": str(place)}
        airflow = LocalAirflow(place / "airflow")
        airflow.port = free_port()
        if arguments.schedulers:
            airflow = DistributedAirflow(place / "engine", venv, arguments.schedulers)
        airflow.prepare(UNREACHABLE)
        try:
            airflow.start()
            airflow.wait_for_dag(NAME)
            before = airflow.processor_seconds() if isinstance(airflow, DistributedAirflow) else {}
            began = time.monotonic()
            run_id = airflow.trigger(NAME)
            seconds = seconds_of(airflow, run_id)
            total = time.monotonic() - began
            after = airflow.processor_seconds() if isinstance(airflow, DistributedAirflow) else {}
        finally:
            airflow.stop()
    print("| points | plan s | launch s | trigger to last run s | load |\n| --- | --- | --- | --- | --- |")
    load = os.getloadavg()[0]
    print(
        f"| {arguments.points} | {seconds['plan']:.1f} | {seconds['launch']:.1f} | {total:.0f} | {load:.0f} |"
    )
    if after:
        spent = {kind: after[kind] - before[kind] for kind in after}
        print("\n| processor s of | " + " | ".join(spent) + " |\n| --- |" + " --- |" * len(spent))
        print("| |" + "".join(f" {share:.1f} |" for share in spent.values()))


if __name__ == "__main__":
    main()
