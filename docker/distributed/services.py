"""The processes of a distributed Airflow: their commands and readiness checks."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from local_cluster.errors import ClusterError
from local_cluster.packages import SEARCH_PATH
from local_cluster.processes import is_listening

from distributed.configuration import HOST
from distributed.layout import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from distributed.layout import Layout, Settings, Size

PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    "postgresql": ("pg_ctlcluster", "psql"),
    "redis-server": ("redis-server",),
}
"""Debian package → programs that must exist."""

DATABASE_USER: Final = "postgres"


@dataclass(frozen=True)
class Service:
    """One process.

    :param name: ``postgres``, ``scheduler:1`` …
    :param argv: command that runs it in the foreground
    :param is_ready: returns whether it is ready; polled until it is
    """

    name: str
    argv: tuple[str, ...]
    is_ready: Callable[[], bool]


def service_names(size: Size) -> list[str]:
    """Return the names of all services, in the order of their start."""
    return [
        "postgres",
        "redis",
        "api-server",
        *(f"scheduler:{number}" for number in range(1, size.schedulers + 1)),
        *(f"dag-processor:{number}" for number in range(1, size.dag_processors + 1)),
        *(f"triggerer:{number}" for number in range(1, size.triggerers + 1)),
        *(f"worker:{number}" for number in range(1, size.workers + 1)),
    ]


def services_of(layout: Layout, settings: Settings, python: Path) -> dict[str, Service]:
    """Return all services by name, in the order of their start; they stop in the reverse order.

    :param python: interpreter of the environment that holds Airflow
    """
    return {name: _service(name, layout, settings, python) for name in service_names(settings.size)}


def service_environment(layout: Layout, python: Path, caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all processes: the caller's, with this engine's home."""
    return {
        **caller,
        "AIRFLOW_HOME": str(layout.home),
        "PATH": os.pathsep.join([str(python.parent), caller.get("PATH", "")]),
        MARKER: str(layout.directory),
    }


def program(name: str) -> str:
    """Return the absolute path of a program; PostgreSQL's are in a folder for each version.

    :raises ClusterError: if it is not installed
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    path = os.pathsep.join([*map(str, reversed(folders)), SEARCH_PATH])
    found = shutil.which(name, path=path)
    if found is None:
        raise ClusterError(f"{name} is not installed; run: python3 docker/distributed install")
    return found


def as_database_user() -> tuple[str, ...]:
    """Return the prefix of PostgreSQL's commands that changes the user, because PostgreSQL refuses to run as root."""
    if os.geteuid():
        return ()
    try:
        pwd.getpwnam(DATABASE_USER)
    except KeyError:
        raise ClusterError(
            f"there is no user {DATABASE_USER}; run: python3 docker/distributed install"
        ) from None
    user = f"--reuid={DATABASE_USER}"
    return (program("setpriv"), user, f"--regid={DATABASE_USER}", "--init-groups", "--")


def _service(name: str, layout: Layout, settings: Settings, python: Path) -> Service:
    kind, _, number = name.partition(":")
    airflow = (str(python), "-m", "airflow")
    log = layout.log(name)
    if kind == "postgres":
        port = settings.ports["postgres"]
        options = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "300",
        }
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        argv = (*as_database_user(), program("postgres"), "-D", str(layout.database), *words)
        return Service(name, argv, lambda: _logged(log, "ready to accept connections"))
    if kind == "redis":
        port = settings.ports["redis"]
        return Service(
            name, (program("redis-server"), str(layout.redis_configuration)), lambda: is_listening(port)
        )
    if kind == "api-server":
        return Service(name, (*airflow, "api-server", "--workers", "1"), lambda: bool(health(settings)))
    if kind == "worker":
        options = {
            "--concurrency": str(settings.size.concurrency),
            "--pid": str(layout.directory / f"{log.stem}.pid"),
        }
        argv = (
            *(*airflow, "celery", "worker", "--celery-hostname", f"worker{number}@%h"),
            *(word for item in options.items() for word in item),
            # all workers of one machine share the log folder
            *("--skip-serve-logs", "--without-mingle", "--without-gossip"),
        )
        return Service(name, argv, lambda: _logged(log, " ready."))
    if kind == "triggerer":
        argv = (*airflow, "triggerer", "--skip-serve-logs")
        return Service(name, argv, lambda: health(settings).get("triggerer") == "healthy")
    if kind == "scheduler":
        argv = (*airflow, "scheduler", "--skip-serve-logs")
        return Service(name, argv, lambda: health(settings).get("scheduler") == "healthy")
    return Service(
        name, (*airflow, "dag-processor"), lambda: health(settings).get("dag_processor") == "healthy"
    )


def health(settings: Settings) -> dict[str, str]:
    """Return the state of each part as the API server sees it; empty while the server does not answer."""
    address = f"http://{HOST}:{settings.ports['api-server']}/api/v2/monitor/health"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            parts = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError):
        return {}
    return {name: str(part.get("status")) for name, part in parts.items() if part}


def _logged(log: Path, words: str) -> bool:
    try:
        return words in log.read_text(errors="replace")
    except OSError:
        return False
