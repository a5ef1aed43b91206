"""The local Airflow: its home directory, its connection to the local cluster, and its daemons."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from airflow_megatron.cli.local.airflow_components import COMPONENTS
from airflow_megatron.cli.local.free_ports import port_of, reserve_port
from airflow_megatron.cli.local.home_lock import HomeLock
from airflow_megatron.cli.local.local_connection import AirflowCommandError, local_connections, run_airflow
from airflow_megatron.cli.local.private_files import keep_new_files_private, make_private
from airflow_megatron.cli.local.startup_wait import StartupWait
from airflow_megatron.cli.local.trigger_ids import never_reuse_trigger_ids
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import (
    local_dir,
    project_folder,
    project_root,
    project_variables,
)

if TYPE_CHECKING:
    import socket

LOOPBACK = "127.0.0.1"

START_WORK_S = 180
"""Limit for Airflow's start, in seconds of processor time; on two idle cores it needs 20 s."""
DAG_WORK_S = 120
STILL_S = 120
STOP_TIMEOUT_S = 30
TRIGGERER_END_S = 5
"""How long the triggerer may take to notice that its runner has ended; it looks each second."""
REQUEST_TIMEOUT_S = 60
TITLE_PAUSE_S = 0.1
DATABASE_WAIT_S = 30
"""How long a statement waits for another process to release the database; sqlite3's default of 5 s is too short for a
busy machine, and Airflow's scheduler ends when a statement fails."""
_AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
_PORT = "AIRFLOW__API__PORT"
"""Variable with the port of the web page."""
_DATABASE_ERROR = "Database error"
"""Reason in the answer of a request whose database statement failed, for example because SQLite was locked."""

_START_AGAIN = "; start the command again, and the sweeps go on. Last lines of its log"


class LocalAirflowError(AirflowMegatronError, RuntimeError):
    """The local Airflow could not be set up or started."""


class LocalAirflow:
    """Airflow with SQLite and the LocalExecutor, in ``.local/airflow``.

    :param home: its home
    :param spec_interval_s: seconds between two readings of the folder of specs
    """

    def __init__(self, home: Path | None = None, spec_interval_s: int = 15) -> None:
        self.home = home or local_dir() / "airflow"
        self.spec_interval_s = spec_interval_s
        self.log_file = self.home / "components.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""
        self.port = 0
        self._log_ports: dict[str, str] = {}
        self._reserved: list[socket.socket] = []
        self._lock = HomeLock(self.home)

    @property
    def database(self) -> Path:
        """File of the SQLite database."""
        return self.home / "airflow.db"

    def environment(self) -> dict[str, str]:
        """Return the environment variables for Airflow commands of this home."""
        defaults = {
            # to make it reachable from other machines, set AIRFLOW__API__HOST=0.0.0.0
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.database}?timeout={DATABASE_WAIT_S}",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(project_folder("dags")),
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__TRIGGERER__CAPACITY": "5000",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": str(self.spec_interval_s),
            # a worker's slot becomes free one such interval after its task has ended; the default is 5 s
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        }
        plugins = project_root() / "plugins"
        if plugins.is_dir():
            defaults["AIRFLOW__CORE__PLUGINS_FOLDER"] = str(plugins)
        fixed = {
            "AIRFLOW_HOME": str(self.home),
            **project_variables(),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__AUTH_MANAGER": _AUTH_MANAGER,
            # tasks find the programs of this environment
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONWARNINGS": "ignore",
            **_without_proxy(),
        }
        if self.port:
            fixed |= {
                _PORT: str(self.port),
                "AIRFLOW__API__BASE_URL": f"http://localhost:{self.port}",
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{self.port}/execution/",
                **self._log_ports,
            }
        return {**defaults, **os.environ, **fixed}

    def claim(self) -> None:
        """Keep others away from the home until :meth:`stop`, and choose the ports; :meth:`start` does it too.

        :raises LocalAirflowError: if another process runs Airflow in this home, or the user's port cannot be used
        """
        keep_new_files_private()
        make_private(self.home)
        other = self._lock.take()
        if other is not None:
            raise LocalAirflowError(
                f"Airflow already runs in {self.home}: use it, or stop it first ({other})"
            )
        try:
            self._choose_ports()
        except LocalAirflowError:
            self.stop()
            raise
        self._lock.describe(f"process {os.getpid()}, {self.address}")

    def prepare(self, cluster: dict[str, Any]) -> None:
        """Create the home: the database, and the SSH connection to the local cluster with its host key.

        :param cluster: content of ``cluster.json``, which the local cluster wrote
        :raises LocalAirflowError: if an Airflow command fails; contains its output
        """
        self.prepare_database()
        self.connect(cluster)

    def prepare_database(self) -> None:
        """Create the home with its database, or migrate that of another version of Airflow.

        :raises LocalAirflowError: if the Airflow command fails; contains its output
        """
        keep_new_files_private()
        make_private(self.home)
        if not self.database.exists():
            self._connections.unlink(missing_ok=True)
        migrated = self.home / "migrated_by.txt"
        version = metadata.version("apache-airflow-core")
        if not (self._connections.exists() and migrated.exists() and migrated.read_text() == version):
            self._airflow("db", "migrate")
            migrated.write_text(version)
        never_reuse_trigger_ids(self.database)

    def connect(self, cluster: dict[str, Any]) -> None:
        """Store the SSH connection to the local cluster in the database; Airflow may already run.

        :param cluster: as for :meth:`prepare`
        :raises LocalAirflowError: if the Airflow command fails; contains its output
        """
        connections = local_connections(cluster)
        wanted = json.dumps(connections, indent=1)
        if self._connections.exists() and self._connections.read_text() == wanted:
            return
        draft = self._connections.with_suffix(".new.json")
        draft.write_text(wanted)
        if self._process is None:
            self._airflow("connections", "import", "--overwrite", str(draft))
        else:  # a request takes less time than a command, which has to import Airflow
            for name, fields in connections.items():
                self._store_connection({"connection_id": name, **fields})
        draft.rename(self._connections)

    def _store_connection(self, connection: dict[str, Any]) -> None:
        answer = self._request("PATCH", f"/connections/{connection['connection_id']}", json=connection)
        if answer.status_code == 404:
            answer = self._request("POST", "/connections", json=connection)
        if answer.status_code >= 300:
            raise LocalAirflowError(f"Airflow did not store the connection: {answer.text}")

    @property
    def _connections(self) -> Path:
        """File that is written when the database is complete."""
        return self.home / "connections.json"

    def start(self) -> None:
        """Start scheduler, triggerer, dag processor and api server; return when all are healthy.

        :raises LocalAirflowError: as :meth:`claim`, and if they do not start; contains the last lines of their log
        """
        self.claim()
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow_megatron.cli.local.airflow_components"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,  # stopped as a group, because children survive a signal to the parent
                pass_fds=self._lock.descriptors,  # it may survive this process
            )
        left = f"if that has ended: kill -- -{self._process.pid}"
        self._lock.describe(f"process {os.getpid()}, {self.address}; {left}")
        wait = StartupWait(self._process.pid, START_WORK_S, STILL_S)
        started = set[str]()
        while wait.lasts():
            if self._process.poll() is not None:
                raise LocalAirflowError(f"Airflow ended while it started:\n{self._log_tail()}")
            started |= self._components()
            if len(started) == len(COMPONENTS):
                self.expect_alive()
            if self._healthy():
                return
            time.sleep(0.5)
        raise LocalAirflowError(f"Airflow did not become ready:\n{self._log_tail()}")

    def _choose_ports(self) -> None:
        if self._reserved:
            return
        chosen = os.environ.get(_PORT, "")
        if chosen and not (chosen.isdecimal() and 0 < int(chosen) < 65536):
            raise LocalAirflowError(f"{_PORT} is {chosen!r}, not a port; write a number from 1 to 65535")
        try:
            if not self.port:
                self.port = self._reserve(int(chosen), others=False) if chosen else self._reserve(8080)
            # another Airflow on this machine may use the default ports of the log servers
            self._log_ports = {
                "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._reserve(8793)),
                "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._reserve(8794)),
            }
        except OSError as error:
            hint = f"{_PORT}: {error}; write another one, or unset it" if chosen and not self.port else error
            raise LocalAirflowError(str(hint)) from error

    def _reserve(self, wanted: int, *, others: bool = True) -> int:
        """Return a free port, which no other start gets until :meth:`stop`."""
        holder = reserve_port(wanted, others=others)
        self._reserved.append(holder)
        return port_of(holder)

    def expect_alive(self) -> None:
        """Check that no component of Airflow has ended; the others go on without it.

        :raises LocalAirflowError: if one has ended; contains the last lines of the log
        """
        assert self._process is not None
        if self._process.poll() is not None:
            raise LocalAirflowError(f"Airflow has ended{_START_AGAIN}:\n{self._log_tail()}")
        alive = self._components()
        if len(alive) < len(COMPONENTS):  # a process that changes its title has none for a moment
            time.sleep(TITLE_PAUSE_S)
            alive |= self._components()
        for name in COMPONENTS:
            if name not in alive:
                raise LocalAirflowError(f"Airflow's {name} has ended{_START_AGAIN}:\n{self._log_tail(name)}")

    def _components(self) -> set[str]:
        """Return the components that run."""
        assert self._process is not None
        return set(_processes_of_components(self._process.pid))

    def stop(self) -> None:
        """Stop everything that :meth:`start` started."""
        while self._reserved:
            self._reserved.pop().close()
        if client := vars(self).pop("_client", None):
            client.close()
        if self._process is not None:
            self._stop_processes(self._process)
            self._process = None
        self._lock.release()

    def _stop_processes(self, parent: subprocess.Popen[bytes]) -> None:
        group = parent.pid
        for send in (_terminate_group, _kill_group):
            send(group)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline and _group_alive(group):
                parent.poll()
                time.sleep(0.2)
            if not _group_alive(group):
                break
        parent.wait()

    @property
    def address(self) -> str:
        """Address of the web page."""
        return f"http://localhost:{self.port}"

    def credentials(self) -> tuple[str, str]:
        """Return user and password of the web page."""
        path = self.home / "simple_auth_manager_passwords.json.generated"
        user, password = next(iter(json.loads(path.read_text()).items()))
        return user, password

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has loaded a DAG and can start it, and unpause it.

        :raises LocalAirflowError: if it does not appear; contains the import errors
        """
        assert self._process is not None
        wait = StartupWait(self._process.pid, DAG_WORK_S, STILL_S)
        while wait.lasts():
            # the DAG itself is stored after the row that PATCH changes
            known = self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": False}).status_code == 200
            if known and self._request("GET", f"/dags/{dag_id}/details").status_code == 200:
                return
            time.sleep(1)
        errors = self._request("GET", "/importErrors").json().get("import_errors", [])
        reasons = "\n".join(error["stack_trace"] for error in errors) or "no import errors"
        raise LocalAirflowError(f"DAG {dag_id} did not appear: {reasons}")

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run and return its id."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf or {}}
        if run_id:
            body["dag_run_id"] = run_id
        answer = self._request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        if answer.status_code >= 300:
            raise LocalAirflowError(f"Airflow did not start {dag_id}: {answer.text}")
        return str(answer.json()["dag_run_id"])

    def build_task_routes(self) -> None:
        """Let the API server build the routes of tasks now; otherwise the first task waits 3 s for them."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.get(f"{self.address}/execution/health")

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run."""
        return str(self._request("GET", f"/dags/{dag_id}/dagRuns/{run_id}").json()["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return task id → state of a run."""
        answer = self._request(
            "GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", params={"limit": 1000}
        )
        return {task["task_id"]: str(task["state"]) for task in answer.json()["task_instances"]}

    def task_seconds(self, dag_id: str, run_id: str) -> dict[str, float]:
        """Return task id → duration of the last try in seconds, for tasks that have ended."""
        answer = self._request(
            "GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", params={"limit": 1000}
        )
        tasks = answer.json()["task_instances"]
        return {task["task_id"]: task["duration"] for task in tasks if task["duration"] is not None}

    def task_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the log of all tries of a task; exceptions are shown as name and message, without the stack."""
        task = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        tries = self._request("GET", task).json().get("try_number", 0)
        lines = []
        for number in range(1, tries + 1):
            answer = self._request("GET", f"{task}/logs/{number}", params={"full_content": "true"})
            lines += [_log_line(line) for line in answer.json().get("content", [])]
        return "\n".join(lines)

    def clear(self, dag_id: str, run_id: str, task_ids: list[str], **options: Any) -> None:
        """Clear tasks of a run, as the button in the web UI does."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "only_failed": False, **options}
        answer = self._request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)
        if answer.status_code >= 300:
            raise LocalAirflowError(f"Airflow did not clear {task_ids}: {answer.text}")

    @cached_property
    def _client(self) -> httpx.Client:
        """Sender of all requests; a new one for each would read the certificates of the web each time, for 20 ms."""
        return httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False)  # no proxy

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; repeat it if Airflow is too busy to answer, or another process locks its database."""
        for attempt in range(5):
            try:
                if not self._token:
                    user, password = self.credentials()
                    login = {"username": user, "password": password}
                    answer = self._client.post(f"{self.address}/auth/token", json=login)
                    answer.raise_for_status()
                    self._token = answer.json()["access_token"]
                answer = self._client.request(
                    method,
                    f"{self.address}/api/v2{path}",
                    headers={"Authorization": f"Bearer {self._token}"},
                    **options,
                )
            except httpx.TransportError:
                if attempt == 4:
                    raise
                time.sleep(1 + attempt)
                continue
            if answer.status_code == 500 and _DATABASE_ERROR in answer.text:
                time.sleep(1 + attempt)
                continue
            if answer.status_code != 401:
                return answer
            self._token = ""
        return answer

    def _healthy(self) -> bool:
        try:
            answer = self._client.get(f"{self.address}/api/v2/monitor/health", timeout=5)
            parts = answer.json() if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return False
        needed = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((parts.get(name) or {}).get("status") == "healthy" for name in needed)

    def _airflow(self, *words: str) -> None:
        try:
            run_airflow(*words, environment=self.environment())
        except AirflowCommandError as error:
            raise LocalAirflowError(str(error)) from None

    def _log_tail(self, component: str = "") -> str:
        """Return the last lines of the log, or of one component in it."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if component in line][-25:])


def _without_proxy() -> dict[str, str]:
    """Return the variables with which Airflow's processes, which send requests to each other, use no proxy for them."""
    exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exceptions != "*":
        exceptions = ",".join([*filter(None, [exceptions]), "localhost", LOOPBACK])
    return {"no_proxy": exceptions, "NO_PROXY": exceptions}


def _log_line(line: dict[str, Any] | str) -> str:
    if isinstance(line, str):
        return line
    raised = [
        f"{error.get('exc_type')}: {error.get('exc_value')}" for error in line.get("error_detail") or []
    ]
    return "\n".join([str(line.get("event", "")), *raised])


def _terminate_group(group: int) -> None:
    """Send SIGTERM to a process group, but not to its leader, and to the triggerer only if it does not end by itself.

    A triggerer that gets SIGTERM stops its runner. If the runner ends meanwhile, or closes its connections a moment
    before its end, Airflow 3.3 notices that 10 s later. A triggerer whose runner has ended ends at once.
    """
    triggerers = []
    with contextlib.suppress(psutil.NoSuchProcess, KeyError):
        triggerers.append(_processes_of_components(group)["triggerer"])
    spared = {group, *(triggerer.pid for triggerer in triggerers)}
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if pid not in spared and os.getpgid(pid) == group:
                os.kill(pid, signal.SIGTERM)
    _, waiting = psutil.wait_procs(triggerers, TRIGGERER_END_S)
    for triggerer in waiting:
        with contextlib.suppress(psutil.NoSuchProcess):
            triggerer.terminate()


def _processes_of_components(parent: int) -> dict[str, psutil.Process]:
    """Return the components that run, by name.

    :param parent: the process that has started them
    :raises psutil.NoSuchProcess: if it has ended
    """
    found: dict[str, psutil.Process] = {}
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # also if it has ended and nothing waits for it
            # the api server calls itself api_server
            words = " ".join(child.cmdline()).replace("_", "-").split()
            found |= {name: child for name in COMPONENTS if name in words}
    return found


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
