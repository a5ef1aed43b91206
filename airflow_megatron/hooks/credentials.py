"""Credentials that expire: their end, the detection of replaced ones, and the command that renews them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.hooks.connection_options import ConnectionOptions

RENEWAL_LIMIT_S: Final = 90.0
"""Time limit of ``renew_command`` in seconds."""
KEYGEN_LIMIT_S: Final = 10.0
_VALID = re.compile(r"^\s*Valid: from (\S+) to (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Validity:
    """The validity period of a certificate, in Unix time."""

    begin: float
    end: float

    def ends_within(self, seconds: float, now: float) -> bool:
        """Return whether it ends within *seconds*, or within a quarter of its lifetime if that is less."""
        return now >= self.end - min(seconds, (self.end - self.begin) / 4)


def certificate_path(options: ConnectionOptions) -> Path | None:
    """Return the file with the certificate of ``key_file`` for OpenSSH and asyncssh; None if it does not exist."""
    if options.key_file is None:
        return None
    path = options.key_file.with_name(f"{options.key_file.name}-cert.pub")
    return path if path.is_file() else None


def certificate_validity(path: Path) -> Validity | None:
    """Return the validity period of a certificate, from ``ssh-keygen -L``; None if it has no end or cannot be read."""
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-L", "-f", str(path)],
            capture_output=True,
            text=True,
            timeout=KEYGEN_LIMIT_S,
            env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    found = _VALID.search(shown)
    if found is None:
        return None
    try:
        begin, end = (datetime.fromisoformat(f"{text}+00:00").timestamp() for text in found.groups())
    except ValueError:
        return None
    return Validity(begin, end)


def credentials_stamp(options: ConnectionOptions) -> str:
    """Return a text that changes when the key, its certificate or the connection's ``private_key`` is replaced.

    The text does not depend on a password, which could be guessed from a digest.
    """
    parts: list[str] = []
    for path in (options.key_file, certificate_path(options)):
        try:
            status = path.stat() if path is not None else None
        except OSError:
            status = None
        parts.append(f"{status.st_mtime_ns} {status.st_size} {status.st_ino}" if status else "")
    parts.append(options.private_key or "")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def run_renewal(words: tuple[str, ...]) -> str:
    """Run ``renew_command`` without a shell; return why it failed, empty on success.

    Its output is discarded: it may contain tokens.
    """
    began = time.monotonic()
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=RENEWAL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"renew_command was ended after {time.monotonic() - began:.0f} s"
    except OSError as error:
        return f"renew_command cannot be run: {error.strerror or type(error).__name__}"
    return f"renew_command ended with status {ended.returncode}" if ended.returncode else ""
