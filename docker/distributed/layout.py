"""Size, ports, secrets and files of a distributed Airflow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.credentials import write_private
from local_cluster.errors import ClusterError
from local_cluster.settings import free_ports

MARKER = "AIRFLOW_MEGATRON_DISTRIBUTED"
"""Environment variable of all processes of an engine; its value is the engine's directory."""

PORTS = ("postgres", "redis", "api-server")
SECRETS = ("database", "broker", "jwt", "session")


@dataclass(frozen=True)
class Size:
    """The number of processes of each daemon.

    :param schedulers: number of schedulers
    :param dag_processors: number of dag processors
    :param triggerers: number of triggerers
    :param workers: number of Celery workers
    :param concurrency: tasks that one worker runs at the same time
    """

    schedulers: int = 2
    dag_processors: int = 2
    triggerers: int = 2
    workers: int = 3
    concurrency: int = 2

    def __post_init__(self) -> None:
        """Check the numbers.

        :raises ClusterError: if one is out of range
        """
        for name, value in dataclasses.asdict(self).items():
            if not 1 <= value <= 64:
                raise ClusterError(f"--{name.replace('_', '-')} {value}: must be from 1 to 64")


@dataclass(frozen=True)
class Settings:
    """Settings that a start reuses from the previous one.

    :param size: number of daemons
    :param ports: TCP port of each of :data:`PORTS`
    :param secrets: value of each of :data:`SECRETS`
    """

    size: Size
    ports: dict[str, int]
    secrets: dict[str, str]

    @classmethod
    def chosen(cls, size: Size, before: Settings | None) -> Settings:
        """Return settings with free ports; keep secrets, and ports that are still free."""
        kept = before.secrets if before else {}
        return cls(
            size,
            free_ports(PORTS, before.ports if before else {}),
            {name: kept.get(name) or secrets.token_hex(24) for name in SECRETS},
        )


@dataclass(frozen=True)
class Layout:
    """Paths of one engine.

    :param directory: configuration, logs, records of processes; survives ``down``
    :param database: PostgreSQL's data directory
    """

    directory: Path
    database: Path

    @classmethod
    def at(cls, directory: Path) -> Layout:
        """Return the layout of the engine in a directory; create nothing.

        PostgreSQL refuses to run as root. If root starts it, it runs as the user ``postgres``, who cannot enter private
        folders; its data are then below ``/var/tmp``.
        """
        resolved = directory.expanduser().resolve()
        if os.geteuid():
            return cls(resolved, resolved / "database")
        digest = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:10]
        return cls(resolved, Path("/var/tmp") / f"airflow-megatron-database-{digest}")

    @property
    def home(self) -> Path:
        """AIRFLOW_HOME of all daemons."""
        return self.directory / "airflow"

    @property
    def configuration(self) -> Path:
        """Airflow's configuration; it holds passwords."""
        return self.home / "airflow.cfg"

    @property
    def redis_configuration(self) -> Path:
        """Redis's configuration; it holds the password."""
        return self.directory / "redis.conf"

    @property
    def passwords(self) -> Path:
        """User and password of the web page, as JSON."""
        return self.home / "passwords.json"

    @property
    def settings(self) -> Path:
        """The settings of the last start."""
        return self.directory / "settings.json"

    @property
    def description(self) -> Path:
        """Connection data for clients; exists while the engine is up."""
        return self.directory / "engine.json"

    def log(self, name: str) -> Path:
        """Return the log file of a daemon."""
        return self.directory / "log" / f"{name.replace(':', '-')}.log"

    def record(self, name: str) -> Path:
        """Return the file with the identity of a daemon's process."""
        return self.directory / "daemons" / f"{name.replace(':', '-')}.json"

    def make_folders(self) -> None:
        """Create the folders, private to this user."""
        for folder in (self.directory, self.home, self.log("any").parent, self.record("any").parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, settings: Settings) -> None:
        """Write the settings of this start."""
        write_private(self.settings, json.dumps(dataclasses.asdict(settings), indent=1) + "\n")

    def saved(self) -> Settings | None:
        """Return the settings of the last start; None if there was none.

        :raises ClusterError: if the file is damaged
        """
        try:
            found: dict[str, Any] = json.loads(self.settings.read_text())
            return Settings(Size(**found["size"]), dict(found["ports"]), dict(found["secrets"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{self.settings} is damaged ({error}): run down --purge, then up") from error
