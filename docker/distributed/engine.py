"""An engine: started and stopped as a whole, single daemons killed and started again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

from local_cluster import processes
from local_cluster.credentials import write_private
from local_cluster.errors import ClusterError

from distributed.configuration import DATABASE, HOST, USER, airflow_cfg, airflow_options, redis_conf
from distributed.layout import MARKER, Layout, Settings, Size
from distributed.services import (
    DATABASE_USER,
    Service,
    as_database_user,
    program,
    service_environment,
    service_names,
    services_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

SERVICE: Final = "AIRFLOW_MEGATRON_DISTRIBUTED_SERVICE"
"""Environment variable of a service's processes; its value is the service's name."""
START_PATIENCE_S: Final = 600.0
"""Seconds until all services must serve; ten processes import Airflow at the same time."""
STOP_PATIENCE_S: Final = 30.0
RELAUNCHES: Final = 5
"""How often a start launches dag processors again: if two store the same new DAGs, Airflow ends one of them."""
LOG_LINES_SHOWN: Final = 15


class Engine:
    """A distributed Airflow in one directory.

    :param layout: its files
    :param python: interpreter of the environment that holds Airflow
    :param say: receives one line for each step
    :param environment: environment variables of all processes; default: those of this process
    """

    def __init__(
        self,
        layout: Layout,
        python: Path,
        say: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.layout, self.python, self.say = layout, python, say
        self.environment = environment

    def up(self, size: Size) -> None:
        """Start all services and wait until they are ready; start only missing ones if it runs with this size.

        :raises ClusterError: with the last lines of a log if something does not start; what was started is stopped
        """
        if not self.python.is_file():
            raise ClusterError(f"{self.python} does not exist; run: python3 docker/distributed install")
        self.layout.make_folders()
        with self._locked():
            before = self.layout.saved()
            if before and before.size == size and all(map(self._running, service_names(size))):
                self.say("everything runs")
                return
            self._stop()
            settings = Settings.chosen(size, before)
            self.layout.save(settings)
            write_private(self.layout.configuration, airflow_cfg(airflow_options(self.layout, settings)))
            write_private(self.layout.redis_configuration, redis_conf(self.layout, settings))
            try:
                self._start_all(settings)
            except BaseException:
                self._stop()
                raise
            self._describe(settings)
        self.say(f"up: http://localhost:{settings.ports['api-server']}, password in {self.layout.passwords}")

    def down(self, *, purge: bool = False) -> None:
        """Stop everything.

        :param purge: delete database, logs and secrets, too
        """
        if not self.layout.directory.is_dir():
            self.say(f"there is no engine in {self.layout.directory}")
            return
        with self._locked():
            self._stop()
        if purge:
            shutil.rmtree(self.layout.database, ignore_errors=True)
            shutil.rmtree(self.layout.directory)
        self.say("down")

    def status(self) -> dict[str, int | None]:
        """Return the process id of each service; None for one that does not run."""
        settings = self.layout.saved()
        found = {name: self._running(name) for name in service_names(settings.size)} if settings else {}
        return {name: process.pid if process else None for name, process in found.items()}

    def kill(self, name: str, *, alone: bool = False) -> None:
        """SIGKILL a service.

        :param alone: leave its children alive, as the kernel's out-of-memory killer does; otherwise they die, too, as
            in a container that is stopped
        :raises ClusterError: if it does not run
        """
        self._service(name)
        process = self._running(name)
        if process is None:
            raise ClusterError(f"{name} does not run")
        below = [] if alone else processes.descendants([process.pid])
        victims = [process, *filter(None, map(processes.identify, below))]
        processes.end(victims, 5.0, first=signal.SIGKILL)
        _reap(process.pid)
        self.say(f"killed {name}: {len(victims)} processes")

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a service that has ended.

        :param wait: return when it serves
        :raises ClusterError: if it does not start
        """
        service = self._service(name)
        if self._running(name):
            self.say(f"{name} runs")
            return
        self._end_left(name)
        before = processes.read_record(self.layout.record(name))
        if before:
            _reap(before.pid)
        self._launch(service)
        if wait:
            self._await([service])
        self.say(f"started {name}")

    # ---- starting

    def _start_all(self, settings: Settings) -> None:
        services = services_of(self.layout, settings, self.python)
        self._make_database(settings)
        stores = [services.pop("postgres"), services.pop("redis")]
        for service in stores:
            self._launch(service)
        self._await(stores)
        self._create_database(settings)
        self.say("migrating Airflow's database")
        self._run(str(self.python), "-m", "airflow", "db", "migrate", environment=self._environment())
        self.say(f"starting {', '.join(services)}")
        for service in services.values():
            self._launch(service)
        self._await(services.values())

    def _launch(self, service: Service) -> None:
        """Start a process in its own session, and record it."""
        log = self.layout.log(service.name)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        with log.open("wb") as output:
            child = subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment() | {SERVICE: service.name},
                cwd=self.layout.directory if os.geteuid() else "/",
                start_new_session=True,
            )
        process = processes.identify(child.pid)
        child.returncode = 0  # the process continues after this program, which must not wait for it
        if process is None:
            raise ClusterError(f"{service.name} ended immediately\n{self._log_tail(service.name)}")
        processes.write_record(self.layout.record(service.name), process)

    def _await(self, services: Iterable[Service]) -> None:
        waiting = {service.name: service for service in services}
        relaunches = RELAUNCHES

        def settled() -> bool:
            nonlocal relaunches
            for name, service in list(waiting.items()):
                if not self._running(name):
                    if not name.startswith("dag-processor:") or not relaunches:
                        return True
                    relaunches -= 1
                    self._launch(service)
                elif service.is_ready():
                    del waiting[name]
            return not waiting

        in_time = processes.wait_until(settled, START_PATIENCE_S, interval=0.5)
        if waiting:
            dead = [name for name in waiting if not self._running(name)]
            name = next(iter(dead or waiting))
            what = "ended while it started" if in_time else "is not ready"
            raise ClusterError(f"{name} {what}\n{self._log_tail(name)}")

    def _make_database(self, settings: Settings) -> None:
        if (self.layout.database / "PG_VERSION").exists():
            return
        self.say("creating PostgreSQL's database")
        new = self.layout.database.with_name(f"{self.layout.database.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password = new.with_name(f"{new.name}.password")
        write_private(password, settings.secrets["database"])
        if not os.geteuid():
            for path in (new, password):
                shutil.chown(path, DATABASE_USER, DATABASE_USER)
        options = (f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8")
        try:
            self._run(*as_database_user(), program("initdb"), "-D", str(new), "--locale=C.UTF-8", *options)
        finally:
            password.unlink()
        new.replace(self.layout.database)

    def _create_database(self, settings: Settings) -> None:
        """Create Airflow's database, unless it exists."""
        command = (program("psql"), "-h", HOST, "-p", str(settings.ports["postgres"]), "-U", USER, "-At")
        environment = {**os.environ, "PGPASSWORD": settings.secrets["database"]}
        names = self._run(
            *command, "-d", "postgres", "-c", "SELECT datname FROM pg_database", environment=environment
        )
        if DATABASE not in names.split():
            create = f"CREATE DATABASE {DATABASE}"  # a constant of this package
            self._run(*command, "-d", "postgres", "-c", create, environment=environment)

    def _run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        result = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode:
            last = "\n".join(result.stdout.splitlines()[-LOG_LINES_SHOWN:])
            raise ClusterError(f"{' '.join(command[:4])} … failed:\n{last}")
        return result.stdout

    def _describe(self, settings: Settings) -> None:
        description: dict[str, Any] = {
            "address": f"http://localhost:{settings.ports['api-server']}",
            "passwords": str(self.layout.passwords),
            "home": str(self.layout.home),
            "services": service_names(settings.size),
        }
        write_private(self.layout.description, json.dumps(description, indent=1) + "\n")

    # ---- stopping

    def _stop(self) -> None:
        self.layout.description.unlink(missing_ok=True)
        settings = self.layout.saved()
        names = service_names(settings.size) if settings else []
        stores, daemons = names[:2], names[2:]
        for group in (daemons, stores):
            running = [process for process in map(self._running, group) if process]
            if running:
                self.say(f"stopping {', '.join(name for name in group if self._running(name))}")
                # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for its clients
                first = signal.SIGINT if group is stores else signal.SIGTERM
                processes.end(running, STOP_PATIENCE_S, first=first)
        left = [process for process in map(processes.identify, self._pids()) if process]
        processes.end(left, 2.0)
        for name in names:
            self.layout.record(name).unlink(missing_ok=True)

    def _pids(self, service: str = "") -> list[int]:
        """Return the processes of this engine, or those of one service."""
        found = []
        for pid in processes.own_pids():
            variables = processes.environment(pid)
            if variables.get(MARKER) == str(self.layout.directory) and (
                not service or variables.get(SERVICE) == service
            ):
                found.append(pid)
        return found

    def _end_left(self, name: str) -> None:
        """End remaining processes of a killed service, which would occupy the port or run tasks like the new one."""
        left = [process for process in map(processes.identify, self._pids(name)) if process]
        processes.end(left, 5.0)

    # ---- records and locks

    def _running(self, name: str) -> processes.ProcessIdentity | None:
        process = processes.read_record(self.layout.record(name))
        return process if process and processes.is_running(process) else None

    def _service(self, name: str) -> Service:
        settings = self.layout.saved()
        if settings is None:
            raise ClusterError(f"there is no engine in {self.layout.directory}; run: up")
        if name not in service_names(settings.size):
            raise ClusterError(f"no service {name}; there are {', '.join(service_names(settings.size))}")
        return services_of(self.layout, settings, self.python)[name]

    def _environment(self) -> dict[str, str]:
        return service_environment(self.layout, self.python, self.environment)

    def _log_tail(self, name: str) -> str:
        log = self.layout.log(name)
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"last lines of {log}:", *(f"  {line}" for line in lines)])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one command at a time start or stop the engine."""
        with (self.layout.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _reap(pid: int) -> None:
    """Reap a child that has ended: PostgreSQL would take the zombie of its predecessor for a running process."""
    with contextlib.suppress(ChildProcessError):  # another program started it
        os.waitpid(pid, os.WNOHANG)
