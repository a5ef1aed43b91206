"""A real sshd for tests."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_megatron.cli.local.free_ports import free_port

PROGRAM = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
USER = getpass.getuser()


def make_key(path: Path, passphrase: str = "") -> Path:
    """Write a new private key."""
    words = ["ssh-keygen", "-q", "-a", "1", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(words, check=True)
    return path


class SshServer:
    """sshd on this machine; the account's own home and shell, with ``HOME`` in *place*.

    :param place: its folder; ``home`` in it is what a session has as ``HOME``
    :param authorized_key: private key whose public half may log in
    :param program: sshd; the name of this file is the name of its PAM service
    :param settings: more of sshd_config(5)
    """

    def __init__(
        self, place: Path, authorized_key: Path, program: Path | str | None = PROGRAM, **settings: Any
    ) -> None:
        self.place, self.port, self.settings = place, free_port(), settings
        self.program = program
        self.home = place / "home"
        self.home.mkdir(parents=True)
        self.host_key = make_key(place / "host_key")
        (place / "authorized_keys").write_text(authorized_key.with_suffix(".pub").read_text())
        self.log = place / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def public_host_key(self) -> str:
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    @property
    def logins(self) -> int:
        return self.log.read_text().count("Accepted publickey")

    def start(self) -> None:
        if self.program is None:
            pytest.skip("no sshd on this machine")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.host_key,
            "AuthorizedKeysFile": self.place / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "KexAlgorithms": "-sntrup761*,mlkem768*",  # ssh computes 0.2 s for these
            "UseDNS": "no",
            "PrintMotd": "no",
            "SetEnv": f"HOME={self.home}",
            **self.settings,
        }
        configuration = self.place / "sshd_config"
        configuration.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        words = [self.program, "-D", "-f", str(configuration), "-E", str(self.log)]
        begin = self.log.stat().st_size if self.log.exists() else 0
        deadline = time.monotonic() + 60
        while not (self.log.exists() and b"Server listening" in self.log.read_bytes()[begin:]):
            # a process for a connection of the one before may hold the port for a moment
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(words, start_new_session=True)
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def sessions(self) -> list[int]:
        """Return sshd's processes for open connections; each is a child of the first, in its own session."""
        assert self.process is not None
        return children(self.process.pid)

    def signal_sessions(self, number: int) -> None:
        """Send a signal to all processes of connections, including the unprivileged ones."""
        for pid in self.sessions():
            self.signal_session(pid, number)

    def signal_session(self, pid: int, number: int) -> None:
        """Send a signal to the processes of sshd for one connection."""
        for each in (pid, *children(pid)):
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"sshd" in Path(f"/proc/{each}/cmdline").read_bytes():
                    os.kill(each, number)

    def stop(self) -> None:
        if self.process is not None:
            self.signal_sessions(signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.process = None


def children(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
