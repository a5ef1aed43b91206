"""The host key of a login node, shown for comparison with the key that the site publishes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 10


def host_key_hint(conn_id: str, refusal: str) -> str:
    """Return the hint for a refused login.

    :param conn_id: of the Airflow connection
    :param refusal: message of the transport
    """
    if "host key" not in refusal.lower().replace("_", " "):
        return "check the user and key of the connection; log in by hand with the same ones"
    from airflow.models.connection import Connection

    connection: Any = Connection.get_connection_from_secrets(conn_id)
    lines = presented_keys(connection.host or "", connection.port or 22)
    if not lines:
        return "the login node presents no key now"
    key = " ".join(lines[0].split()[1:3])
    return (
        f"compare with the fingerprint that the site publishes (ssh-keygen -lf -): {lines[0]}; then write into the "
        f'connection\'s extra "host_key": "{key}"'
    )


def presented_keys(host: str, port: int) -> Sequence[str]:
    """Return the ``known_hosts`` lines of the keys that a host presents, Ed25519 first; none if it does not answer."""
    if not host or host.startswith("-"):
        return []
    words = ["ssh-keyscan", "-T", str(_SECONDS), "-p", str(port), "-t", "ed25519,ecdsa,rsa", "--", host]
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=2 * _SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [line for line in answer.stdout.splitlines() if line and not line.startswith("#")]
    return sorted(found, key=lambda line: "ed25519" not in line)
