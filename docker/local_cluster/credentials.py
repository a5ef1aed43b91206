"""Secrets of a cluster: the munge key, the database password and the SSH keys, each created once."""

from __future__ import annotations

import os
import secrets
import subprocess
from typing import TYPE_CHECKING

from local_cluster.configuration import LOOPBACK
from local_cluster.errors import ClusterError
from local_cluster.packages import program

if TYPE_CHECKING:
    from pathlib import Path

    from local_cluster.layout import Layout

MUNGE_KEY_BYTES = 128


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only this user can read, atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        output.write(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


def make_munge_key(layout: Layout) -> None:
    """Create the key that all daemons share, unless it exists."""
    if not layout.munge_key.exists():
        write_private(layout.munge_key, secrets.token_bytes(MUNGE_KEY_BYTES))


def database_password(layout: Layout) -> str:
    """Return the database password; create it at the first call."""
    if not layout.database_password.exists():
        write_private(layout.database_password, secrets.token_hex(24))
    return layout.database_password.read_text()


def make_ssh_keys(layout: Layout, ssh_port: int) -> None:
    """Create the host key and the user key, unless they exist, and authorized_keys and known_hosts."""
    for key, comment in ((layout.host_key, "local-cluster host"), (layout.user_key, "local-cluster user")):
        if not (key.exists() and public_key_file(key).exists()):
            key.unlink(missing_ok=True)
            command = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)]
            result = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if result.returncode != 0:
                raise ClusterError(f"ssh-keygen could not create {key}: {result.stderr.strip()}")
    write_private(layout.authorized_keys, public_key_file(layout.user_key).read_bytes())
    write_private(layout.known_hosts, f"[{LOOPBACK}]:{ssh_port} {host_key_line(layout)}\n")


def host_key_line(layout: Layout) -> str:
    """Return the server's public key as ``type base64``."""
    kind, key = public_key_file(layout.host_key).read_text().split()[:2]
    return f"{kind} {key}"


def public_key_file(private: Path) -> Path:
    """Return the path of the public key that belongs to a private key."""
    return private.with_name(private.name + ".pub")
