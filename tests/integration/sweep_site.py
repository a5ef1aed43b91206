"""A project folder, an Airflow home and run directories for tests, on the tests' cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from job_priority import drop_nice
from patience import deadline_in, patient, wait_until
from warm_airflow import WarmAirflow

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.cli.local.local_airflow import LocalAirflow
from airflow_megatron.cli.local.local_connection import local_connections
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_cluster import SlurmCluster

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
ENDED = ("success", "failed")
SCHEDULED_EXAMPLE = PROJECT / "airflow_megatron" / "example_dags" / "example_after_sweep.py"
HELD = HERE / "specs" / "scripts" / "held.sh"
"""A wrapper of trainings that tests stop."""
LINKED = ("Megatron-LM", "dags", "docker", "plugins")
PATIENCE = {
    # most specs exist from the start; tests request the parsing of others
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    # a busy machine parses a DAG file for minutes
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(patient(120)),
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": str(patient(180)),
}


@dataclass(frozen=True)
class Submission:
    """A line of accounting: one Slurm job."""

    job_id: str
    state: str
    node: str
    exit_code: str


class SiteAirflow(LocalAirflow):
    """Airflow with the site's folders.

    :param home: its home.
    :param folders: environment variables with the folders.
    """

    def __init__(self, home: Path, folders: dict[str, str]) -> None:
        super().__init__(home)
        self.folders = folders
        self.warm: WarmAirflow | None = None
        self.port = free_port()  # not that of the user's Airflow

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **PATIENCE, **self.folders}

    def command(self, *words: str, timeout: float, **environment: str) -> tuple[int, str]:
        """Run an Airflow command in a fork of a process that has imported Airflow.

        :returns: exit status and output
        """
        self.warm = self.warm or WarmAirflow()
        return self.warm.run(words, {**self.environment(), **environment}, timeout)

    def stop(self) -> None:
        super().stop()
        if self.warm:
            self.warm.close()
            self.warm = None

    @property
    def is_up(self) -> bool:
        """Whether its daemons have been started and not stopped."""
        return self._process is not None

    def run_state(self, dag_id: str, run_id: str) -> str:
        self.expect_alive()
        return super().run_state(dag_id, run_id)

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        self.expect_alive()
        return super().task_states(dag_id, run_id)

    def read_specs(self) -> None:
        """Request that Airflow parses the folder of specs now."""

        def known() -> list[dict[str, Any]]:
            return self._request("GET", "/dags", params={"limit": 1}).json()["dags"]

        wait_until(known, 120, "the folder to have been read")
        answer = self._request("PUT", f"/parseDagFile/{known()[0]['file_token']}")
        assert answer.status_code == 201, answer.text

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task, as in the web UI."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        answer = self._request("PATCH", path, json={"new_state": state})
        assert answer.status_code == 200, answer.text

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a whole run, as in the web UI."""
        answer = self._request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})
        assert answer.status_code == 200, answer.text

    def keep_connection(self, conn_id: str, password: str) -> None:
        """Add a connection, as in the web UI."""
        body = {"connection_id": conn_id, "conn_type": "generic", "password": password}
        answer = self._request("POST", "/connections", json=body)
        assert answer.status_code == 201, answer.text

    def keep_variable(self, key: str, value: str) -> None:
        """Add a variable, as in the web UI."""
        answer = self._request("POST", "/variables", json={"key": key, "value": value})
        assert answer.status_code == 201, answer.text

    def run_note(self, dag_id: str, run_id: str) -> str:
        return self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}").json().get("note") or ""

    def runs_of(self, dag_id: str) -> list[str]:
        """Return the ids of a DAG's runs."""
        return [
            run["dag_run_id"] for run in self._request("GET", f"/dags/{dag_id}/dagRuns").json()["dag_runs"]
        ]

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return the XCom of a task: its return value, or the value of another key."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        answer = self._request("GET", path, params={"stringify": "false"})
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def try_number(self, dag_id: str, run_id: str, task_id: str) -> int:
        answer = self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return int(answer.json()["try_number"])

    def ended(self, dag_id: str, run_id: str, timeout: float = 400) -> str:
        """Wait until a run has ended; return its state."""
        try:
            wait_until(
                lambda: self.run_state(dag_id, run_id) in ENDED,
                timeout,
                f"{dag_id} {run_id} to end",
                interval=1,  # each check takes 10 ms of processor time
            )
        except AssertionError as error:
            states = self.task_states(dag_id, run_id)
            raise AssertionError(f"{error}; its tasks: {states}") from None
        return self.run_state(dag_id, run_id)


class SweepSite:
    """All files that a sweep needs, in one folder.

    :param place: the folder; its path must not contain blanks.
    :param cluster: a running cluster.
    """

    def __init__(self, place: Path, cluster: SlurmCluster) -> None:
        self.place, self.cluster = place, cluster
        self.local = place / "local"
        self.specs = place / "sweep_specs"
        self.runs = self.local / "runs"
        self.folders = {
            "AIRFLOW_MEGATRON_HOME": str(place / "project"),
            "AIRFLOW_MEGATRON_LOCAL": str(self.local),
            "AIRFLOW_MEGATRON_SWEEP_SPECS": str(self.specs),
            "AIRFLOW__CORE__DAGS_FOLDER": str(place / "dags"),
            "AIRFLOW_MEGATRON_SPEC_VARIABLES": "TEST_PYTHON,TEST_PARTITION,FAULTS_TRAINER",
            "AIRFLOW_MEGATRON_SECRET_CONNECTIONS": "kept",
            "AIRFLOW_MEGATRON_SECRET_VARIABLES": "kept_token,kept_printed",
        }
        self.airflow = SiteAirflow(place / "airflow", dict(self.folders))
        # a scheduler on the same database would run the tasks of `airflow dags test`
        self.without_scheduler = SiteAirflow(place / "without_scheduler", self.folders)

    def prepare_folders(self) -> None:
        """Create the folders of project, specs and runs."""
        project = self.place / "project"
        project.mkdir()
        shutil.copytree(PROJECT / "sbatch", project / "sbatch")
        shutil.copytree(HERE / "clusters", project / "sbatch" / "clusters", dirs_exist_ok=True)
        drop_nice(project / "sbatch" / "clusters")
        for name in LINKED:
            (project / name).symlink_to(PROJECT / name)
        shutil.copytree(HERE / "specs", self.specs)
        (self.place / "dags").mkdir()
        for file in (*(PROJECT / "dags").glob("*.py"), *(HERE / "dags").glob("*.py"), SCHEDULED_EXAMPLE):
            (self.place / "dags" / file.name).symlink_to(file)
        self.local.mkdir()
        (self.local / "venv-trainer").symlink_to(local_dir() / "venv-trainer")

    def prepare(self, migrated: Path | None = None) -> None:
        """Create the folders and Airflow's homes.

        :param migrated: a home with Airflow's database, which is copied
        """
        self.prepare_folders()
        if migrated is None:
            self.without_scheduler.prepare_database()
        else:
            copy_home(migrated, self.without_scheduler.home)
        self.without_scheduler.connect(self.cluster.description)
        connection = local_connections(self.cluster.description)["slurm_local"]
        # jobs without a sweep must not write to the user's home
        extra = {**json.loads(connection["extra"]), "work_dir": str(self.runs / "jobs")}
        self.airflow.folders["AIRFLOW_CONN_SLURM_LOCAL"] = json.dumps({**connection, "extra": extra})
        copy_home(self.without_scheduler.home, self.airflow.home)

    # ---- airflow dags test

    def alone(self, sweep: str) -> Path:
        """Return a folder with the spec of one sweep, because ``airflow dags test`` builds and stores all DAGs."""
        folder = self.place / "alone" / sweep
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{sweep}.yaml"]
        for name in names:
            text, copy = (self.specs / name).read_text(), folder / name
            if not copy.exists() or copy.read_text() != text:  # another run may be reading it
                copy.write_text(text)
            names += re.findall(r"^extends: (\S+)$", text, re.MULTILINE)
        return folder

    @contextmanager
    def dags_test(
        self, dag_id: str, conf: dict[str, Any] | None = None, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Run ``airflow dags test`` with only the spec of the sweep, and end all its processes."""
        words, more = self._dags_test(dag_id, conf, environment)
        with subprocess.Popen(
            [sys.executable, "-m", "airflow", *words],
            env={**self.without_scheduler.environment(), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                kill_group(process.pid)

    def run_dags_test(
        self, dag_id: str, conf: dict[str, Any] | None = None, timeout: float = 240, **environment: str
    ) -> tuple[int, str]:
        """Run ``airflow dags test`` in a fork of a process that has imported Airflow, and wait for its end.

        :returns: exit status and output
        """
        words, more = self._dags_test(dag_id, conf, environment)
        try:
            return self.without_scheduler.command(*words, timeout=patient(timeout), **more)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{dag_id} did not end:\n{str(error.output)[-4000:]}") from None

    def _dags_test(
        self, dag_id: str, conf: dict[str, Any] | None, environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        spec = self.specs / f"{dag_id.removesuffix('.point')}.yaml"
        alone = {"AIRFLOW_MEGATRON_SWEEP_SPECS": str(self.alone(spec.stem))} if spec.exists() else {}
        words = ["dags", "test", dag_id, *(["--conf", json.dumps(conf)] if conf else [])]
        return words, {**alone, **environment}

    def stop(self) -> None:
        """Stop Airflow's daemons, and the processes that wait for commands."""
        self.airflow.stop()
        self.without_scheduler.stop()

    # ---- jobs on the cluster

    def submissions(self, prefix: str) -> dict[str, list[Submission]]:
        """Return every submitted job whose name starts with *prefix*, by attempt (``….work.a1``)."""
        columns = "JobIDRaw,JobName,State,NodeList,ExitCode"
        rows = self.cluster.slurm("sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-o", columns)
        found: dict[str, list[Submission]] = {}
        for row in rows.splitlines():
            fields = row.split("|")
            if len(fields) != columns.count(",") + 1:
                continue  # part of the name of another test's job, which contains line breaks
            job_id, name, state, node, exit_code = fields
            attempt = re.sub(r"\.[0-9a-f]{6}$", "", name)
            if attempt.startswith(prefix):
                found.setdefault(attempt, []).append(Submission(job_id, state, node, exit_code))
        return found

    def submission(self, attempt: str) -> Submission:
        """Return the only job of an attempt; accounting lists it after a short delay."""
        wait_until(lambda: attempt in self.submissions(attempt), 60, f"accounting to know {attempt}")
        (only,) = self.submissions(attempt)[attempt]
        return only

    def states(self, prefix: str) -> dict[str, list[str]]:
        """Return the states of the jobs of every attempt."""
        return {
            name: [row.state.split()[0] for row in rows] for name, rows in self.submissions(prefix).items()
        }

    def expect_states(self, prefix: str, expected: dict[str, list[str]], timeout: float = 60) -> None:
        """Check the states of all attempts; accounting shows the end of a job after a short delay."""
        deadline = deadline_in(timeout)
        while (found := self.states(prefix)) != expected and time.monotonic() < deadline:
            time.sleep(0.5)
        assert found == expected, f"{found} instead of {expected}"

    def queued(self, prefix: str) -> list[str]:
        """Return the names of the pending and running jobs."""
        names = self.cluster.slurm("squeue", "-h", "-o", "%j").split()
        return [name for name in names if name.startswith(prefix)]

    def is_running(self, attempt: str) -> bool:
        return self.states(attempt).get(attempt) == ["RUNNING"]

    def connected_task(self) -> psutil.Process:
        """Return the process of the only task with a connection to the login node; others may just have ended."""
        port, found = self.cluster.description["ssh"]["port"], list[psutil.Process]()

        def single() -> bool:
            connections = psutil.net_connections("tcp4")
            found.clear()
            for pid in {each.pid for each in connections if each.raddr and each.raddr.port == port}:
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid) if pid else None
                    if process and "triggerer" not in " ".join(process.cmdline()):
                        found.append(process)
            return len(found) == 1

        wait_until(single, 60, "a single task with a connection")
        return found[0]

    def verdict(self, run_dir: Path, stage: str) -> dict[str, Any]:
        return json.loads((run_dir / ".jobs" / stage / "verdict.json").read_text())


def copy_home(home: Path, copy: Path) -> None:
    """Copy an Airflow home, and adapt the paths in its configuration."""
    shutil.copytree(home, copy)
    configuration = (home / "airflow.cfg").read_text()
    (copy / "airflow.cfg").write_text(configuration.replace(str(home), str(copy)))


def kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def processes_left(place: Path) -> list[str]:
    """Return the other processes that name *place*, after some time in which they can end."""
    deadline = deadline_in(15)
    while (left := processes_naming(place)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def processes_naming(place: Path) -> list[str]:
    """Return the other processes that have *place* in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                if os.fsencode(place) in text:
                    found.append(f"{entry.name} {text[:200]!r}")
        except OSError:
            continue
    return found
