"""The Airflow connection to the local cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.trust.quoting import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECTION_ID: Final = "slurm_local"


class AirflowCommandError(AirflowMegatronError):
    """A command of Airflow failed; the message holds its last lines."""


def cluster_description() -> dict[str, Any]:
    """Return what a client needs to know of the local cluster.

    :raises FileNotFoundError: when it is not up
    """
    description: dict[str, Any] = json.loads((local_dir() / "cluster" / "cluster.json").read_text())
    return description


def local_connections(description: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the connection, its host key pinned, in the form that ``airflow connections import`` reads.

    :param description: see :func:`cluster_description`
    """
    ssh = description["ssh"]
    return {
        CONNECTION_ID: {
            "conn_type": "ssh",
            "host": ssh["host"],
            "port": ssh["port"],
            "login": ssh["user"],
            "extra": json.dumps({"key_file": ssh["key_file"], "host_key": ssh["host_key"]}),
        }
    }


def connection_command(description: Mapping[str, Any]) -> str:
    """Return the command that adds the connection to an Airflow."""
    words = ["airflow", "connections", "add", CONNECTION_ID]
    for name, value in local_connections(description)[CONNECTION_ID].items():
        words += [f"--conn-{name.removeprefix('conn_')}", str(value)]
    return " ".join(quote(word) for word in words)


def import_connections(connections: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
    """Put connections into Airflow's database, in place of those of the same ids.

    :param environment: of the Airflow, that of this process when left out
    :raises AirflowCommandError: when Airflow does not take them
    """
    with tempfile.TemporaryDirectory() as folder:  # private to this user
        file = Path(folder) / "connections.json"
        file.write_text(json.dumps(connections))
        run_airflow("connections", "import", "--overwrite", str(file), environment=environment)


def run_airflow(*words: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command of Airflow.

    :raises AirflowCommandError: with Airflow's own words when it fails
    """
    result = subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        env=dict(environment) if environment is not None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise AirflowCommandError(f"airflow {' '.join(words)} failed:\n{result.stdout[-4000:]}")
