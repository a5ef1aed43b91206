"""A login node with one-time codes: a user logs in, and the package uses that connection without another login."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import Connection
from patience import wait_until
from ssh_server import PROGRAM, USER, SshServer, make_key

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sites

SECRET = bytes(range(20))
STEP_S = 30
PAM_SERVICES = Path("/etc/pam.d")


def code_at(seconds: float) -> str:
    """Return the code of a time (RFC 6238, six digits, SHA-1)."""
    digest = hmac.digest(SECRET, struct.pack(">Q", int(seconds) // STEP_S), hashlib.sha1)
    offset = digest[-1] & 15
    return f"{(struct.unpack_from('>I', digest, offset)[0] & 0x7FFFFFFF) % 10**6:06}"


def openssh_release() -> tuple[int, int]:
    """Return the installed release of OpenSSH, such as ``(9, 2)``."""
    answer = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    found = re.match(r"OpenSSH_(\d+)\.(\d+)", answer)
    assert found, answer
    return int(found[1]), int(found[2])


class SecondFactorSite:
    """An sshd that requires a key and then a code; PAM accepts each code once.

    :param place: folder for its files
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.key = make_key(place / "id")
        self.control_path = place / "control"
        self.codes_used: set[str] = set()
        users = place / "users.oath"
        users.write_text(f"HOTP/T{STEP_S} {USER} - {SECRET.hex()}\n")
        users.chmod(0o600)
        # before OpenSSH 9.8, sshd takes its own file name as the name of its PAM service
        self.program = place / f"sshd-{os.getpid()}"
        self.program.symlink_to(str(PROGRAM))
        self.service = PAM_SERVICES / self.program.name
        self.service.write_text(
            f"auth required pam_oath.so usersfile={users} window=2 digits=6\n"
            "account required pam_permit.so\nsession required pam_permit.so\n"
        )
        self.server = SshServer(
            place / "sshd",
            self.key,
            program=self.program,
            UsePAM="yes",
            KbdInteractiveAuthentication="yes",
            PermitRootLogin="yes",
            AuthenticationMethods="publickey,keyboard-interactive:pam",
            **({"PAMServiceName": self.service.name} if openssh_release() >= (9, 8) else {}),
        )
        (place / "known_hosts").write_text(f"[127.0.0.1]:{self.server.port} {self.server.public_host_key}\n")

    def new_code(self) -> str:
        """Return an unused code; wait for it if needed."""
        wait_until(lambda: code_at(time.time()) not in self.codes_used, STEP_S + 5, "the next code")
        code = code_at(time.time())
        self.codes_used.add(code)
        return code

    def log_in(self, command: str, code: str) -> subprocess.CompletedProcess[str]:
        """Run the command in the message, as a user does; SSH_ASKPASS enters the code."""
        answer = self.place / "answer"
        answer.write_text(f"#!{sys.executable}\nprint({code!r})\n")
        answer.chmod(0o700)
        configuration = self.place / "ssh_config"  # a user has these in ~/.ssh
        configuration.write_text(
            f"IdentityFile {self.key}\nUserKnownHostsFile {self.place}/known_hosts\nNumberOfPasswordPrompts 1\n"
        )
        ssh, *words = shlex.split(command)
        typed = {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "none"}
        environment = {**os.environ, **typed}
        environment.pop("SSH_AUTH_SOCK", None)
        log = self.place / "login.log"  # not a pipe, because the background connection would keep it open
        with log.open("w") as output:
            ended = subprocess.run(
                [ssh, "-F", str(configuration), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                timeout=60,
                check=False,
            )
        return subprocess.CompletedProcess(ended.args, ended.returncode, log.read_text())

    def hook(self) -> SlurmHook:
        extra = {
            "transport": "openssh",
            "control_path": str(self.control_path),
            "key_file": str(self.key),
            "host_key": self.server.public_host_key,
        }
        address = {"host": "127.0.0.1", "port": self.server.port, "login": USER}
        connection = Connection(conn_id="site", conn_type="ssh", **address, extra=json.dumps(extra))
        return SlurmHook("site", conn_retry_attempts=1, connection=connection)

    def hello(self) -> str:
        return self.hook().run("echo hello", timeout=30).stdout.strip()

    @property
    def attempts(self) -> int:
        """Return the number of login attempts."""
        text = self.server.log.read_text()
        return text.count("PAM: Authentication failure") + text.count("Accepted ")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondFactorSite]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    site = SecondFactorSite(tmp_path)
    try:
        site.server.start()
        yield site
    finally:
        site.server.stop()
        site.service.unlink()


def test_the_connection_of_a_person_with_a_code_is_used_and_waited_for(site: SecondFactorSite) -> None:
    with pytest.raises(TransportError, match="no login session") as missing:
        site.hello()
    found = re.search("log in once with: (ssh .*)", str(missing.value))
    assert found is not None
    command = found[1]
    wrong = site.log_in(command, "000000")
    assert wrong.returncode == 255
    assert "Permission denied" in wrong.stdout
    right = site.log_in(command, site.new_code())
    assert right.returncode == 0, right.stdout
    attempts_before = site.attempts
    for _ in range(3):
        assert site.hello() == "hello"

    site.server.signal_sessions(signal.SIGKILL)
    wait_until(lambda: not site.server.sessions(), 10, "the end of the connection")
    for _ in range(3):
        with pytest.raises(TransportError, match=re.escape(command)) as ended:
            site.hello()
        assert not ended.value.permanent, "tasks would fail instead of wait"
    assert site.attempts == attempts_before == 2, "a login without a person was tried"
    notices = (site.place / "local" / "notices" / "logins.jsonl").read_text().splitlines()
    # at the first call, and after the end of the connection
    assert [json.loads(line)["what"] for line in notices] == ["no login session"] * 2

    again = site.log_in(command, site.new_code())
    assert again.returncode == 0, again.stdout
    assert site.hello() == "hello"
