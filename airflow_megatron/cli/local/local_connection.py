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
    """An Airflow command failed; the message contains the last lines of its output."""


def cluster_description() -> dict[str, Any]:
    """Return the description of the local cluster for clients.

    :raises FileNotFoundError: if the cluster is not running
    """
    description: dict[str, Any] = json.loads((local_dir() / "cluster" / "cluster.json").read_text())
    return description


def local_connections(description: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the connection with its host key, in the format of ``airflow connections import``.

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
    """Return the command that adds the connection to Airflow."""
    words = ["airflow", "connections", "add", CONNECTION_ID]
    for name, value in local_connections(description)[CONNECTION_ID].items():
        words += [f"--conn-{name.removeprefix('conn_')}", str(value)]
    return " ".join(quote(word) for word in words)


def import_connections(connections: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
    """Add connections to Airflow's database; replace those with the same ids.

    :param environment: environment variables of Airflow; default: those of this process
    :raises AirflowCommandError: if Airflow refuses them
    """
    with tempfile.TemporaryDirectory() as folder:  # private to this user
        file = Path(folder) / "connections.json"
        file.write_text(json.dumps(connections))
        run_airflow("connections", "import", "--overwrite", str(file), environment=environment)


def run_airflow(*words: str, environment: Mapping[str, str] | None = None) -> None:
    """Run an Airflow command.

    :raises AirflowCommandError: if it fails; contains its output
    """
    result = subprocess.run(
        [sys.executable, "-m", "airflow_megatron.airflow_commands.run_command", *words],
        env=dict(environment) if environment is not None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode:
        raise AirflowCommandError(f"airflow {' '.join(words)} failed:\n{result.stdout[-4000:]}")
