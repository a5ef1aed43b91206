"""Logins that are refused after they worked, expired certificates, and renewal commands, with a real sshd."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Connection
from ssh_server import USER, SshServer, make_key

from airflow_megatron.hooks import credentials, login_gate
from airflow_megatron.hooks.credentials import certificate_validity
from airflow_megatron.hooks.login_gate import LoginGate
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("transport", ["asyncssh", "openssh"])


def signed(key: Path, authority: Path, validity: str) -> None:
    """Write a certificate of *key*."""
    words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", USER, "-V", validity]
    subprocess.run([*words, f"{key}.pub"], check=True, env={**os.environ, "TZ": "UTC"})


class Site:
    """An sshd whose users have a key, and a key that its certificate authority signs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.key = make_key(place / "id")
        self.authority = make_key(place / "authority")
        self.certified = make_key(place / "certified")
        (place / "ssh_config").write_text("")
        self.renewals = place / "renewals"
        self.server = SshServer(place / "sshd", self.key, TrustedUserCAKeys=f"{self.authority}.pub")

    def refuse(self) -> None:
        (self.server.place / "authorized_keys").rename(self.server.place / "revoked")

    def accept(self) -> None:
        (self.server.place / "revoked").rename(self.server.place / "authorized_keys")

    def hook(self, transport: str, key: Path, **extra: Any) -> SlurmHook:
        values = {
            "transport": transport,
            "ssh_config": str(self.place / "ssh_config"),
            "key_file": str(key),
            "host_key": self.server.public_host_key,
            **extra,
        }
        connection = Connection(
            conn_id="site",
            conn_type="ssh",
            host="127.0.0.1",
            port=self.server.port,
            login=USER,
            extra=json.dumps(values),
        )
        return SlurmHook("site", conn_retry_attempts=1, connection=connection)

    def renew_command(self, then: str = "") -> str:
        """Return a command that counts its runs, shows a secret, and signs a certificate of a day."""
        program = self.place / "renew.py"
        program.write_text(
            "import subprocess, sys\n"
            f"open({str(self.renewals)!r}, 'a').write('x')\n"
            "print('token-4711'); print('token-4711', file=sys.stderr)\n"
            f"{then}\n"
            f"subprocess.run(['ssh-keygen', '-q', '-s', {str(self.authority)!r}, '-I', 'test', '-n', {USER!r}, "
            f"'-V', '-1m:+1d', {str(self.certified)!r} + '.pub'], check=True)\n"
        )
        return f"{sys.executable} {program}"

    @property
    def renewed(self) -> int:
        return len(self.renewals.read_text()) if self.renewals.exists() else 0

    @property
    def connections(self) -> int:
        return self.server.log.read_text().count("Connection closed by") + self.server.logins


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    site = Site(tmp_path)
    site.server.start()
    yield site
    site.server.stop()


def hello(hook: SlurmHook) -> str:
    return hook.run("echo hello", timeout=120).stdout.strip()


def notices(local_dir: Path) -> list[str]:
    file = local_dir / "notices" / "logins.jsonl"
    return [json.loads(line)["what"] for line in file.read_text().splitlines()] if file.exists() else []


@both
class TestRefusedLogins:
    def test_a_login_that_worked_is_waited_for_with_one_notice(
        self, site: Site, transport: str, local_dir: Path
    ) -> None:
        assert hello(site.hook(transport, site.key)) == "hello"
        site.refuse()
        for _ in range(3):
            with pytest.raises(
                LoginExpiredError, match=r"renew the credentials of connection 'site'.*ssh -i"
            ):
                hello(site.hook(transport, site.key))
        assert notices(local_dir) == ["login refused"]
        site.accept()
        os.utime(site.key)  # replaced credentials are tried at once
        assert hello(site.hook(transport, site.key)) == "hello"
        site.refuse()
        with pytest.raises(LoginExpiredError):
            hello(site.hook(transport, site.key))
        assert notices(local_dir) == ["login refused"] * 2

    def test_refused_logins_are_rare(self, site: Site, transport: str) -> None:
        hello(site.hook(transport, site.key))
        site.refuse()
        with pytest.raises(LoginExpiredError):
            hello(site.hook(transport, site.key))
        deadline = time.monotonic() + 60
        while (before := site.connections) == site.server.logins:  # sshd logs the refusal a little later
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(4):
            with pytest.raises(LoginExpiredError):
                hello(site.hook(transport, site.key))
        assert site.connections == before

    def test_waiting_for_a_login_ends(self, site: Site, transport: str) -> None:
        hello(site.hook(transport, site.key))
        site.refuse()
        for _ in range(2):
            with pytest.raises(LoginRefusedError, match="for longer than login_patience"):
                hello(site.hook(transport, site.key, login_patience="0s"))

    def test_a_login_that_never_worked_is_final(
        self, site: Site, transport: str, tmp_path: Path, local_dir: Path
    ) -> None:
        other = make_key(tmp_path / "other")
        hello(site.hook(transport, site.key))
        for _ in range(2):
            with pytest.raises(LoginRefusedError, match="check login and key_file of connection 'site'"):
                hello(site.hook(transport, other))
        assert notices(local_dir) == []

    def test_a_certificate_that_has_ended_is_renewed(self, site: Site, transport: str) -> None:
        signed(site.certified, site.authority, "-2h:-1h")
        with pytest.raises(LoginExpiredError):
            hello(site.hook(transport, site.certified))
        renewing = site.hook(transport, site.certified, renew_command=site.renew_command())
        assert hello(renewing) == "hello"
        assert hello(renewing) == "hello"
        assert site.renewed == 1

    def test_a_command_gives_the_first_certificate(self, site: Site, transport: str) -> None:
        found = site.hook(transport, site.certified, renew_command=site.renew_command())
        with pytest.raises(LoginExpiredError):
            hello(found)
        assert hello(found) == "hello"

    def test_a_command_that_does_not_help_is_final(
        self, site: Site, transport: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = site.hook(transport, site.certified, renew_command="true")
        with pytest.raises(LoginExpiredError):
            hello(found)
        with pytest.raises(LoginRefusedError, match="login refused"):
            hello(found)

    async def test_a_connection_that_ends_with_its_certificate_costs_one_login(
        self, site: Site, transport: str, local_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(login_gate, "FIRST_PAUSE_S", 0.0)
        found = site.hook(transport, site.certified, renew_command=site.renew_command())
        signed(site.certified, site.authority, "-2h:-1h")
        async with found.connected() as connection:
            assert (await connection.run("echo hello", timeout=120)).stdout == "hello\n"
            for _ in range(4):
                signed(site.certified, site.authority, "-2h:-1h")
                site.server.signal_sessions(signal.SIGKILL)
                with pytest.raises(TransportError, match="connection lost"):
                    await connection.run("echo hello", timeout=120)
                assert (await connection.run("echo hello", timeout=120)).stdout == "hello\n"
        assert (site.server.logins, site.renewed) == (5, 5)
        assert notices(local_dir) == []


class TestRenewal:
    def test_once_for_all_processes(self, site: Site) -> None:
        signed(site.certified, site.authority, "-2h:-1h")
        options = site.hook("asyncssh", site.certified, renew_command=site.renew_command()).options()
        with ThreadPoolExecutor(8) as pool:  # each gate has its own lock of the file, as a process has
            list(pool.map(lambda _: LoginGate(options).enter(), range(8)))
        assert site.renewed == 1

    def test_before_the_end(self, site: Site, local_dir: Path) -> None:
        signed(site.certified, site.authority, "-1h:+5m")
        options = site.hook("asyncssh", site.certified, renew_command=site.renew_command()).options()
        LoginGate(options).attend()
        assert site.renewed == 1
        assert notices(local_dir) == []
        LoginGate(options).enter()
        assert site.renewed == 1

    def test_its_output_is_not_logged(
        self, site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], local_dir: Path
    ) -> None:
        signed(site.certified, site.authority, "-2h:-1h")
        caplog.set_level(logging.DEBUG)
        command = site.renew_command(then="sys.exit('token-4711')")
        found = site.hook("asyncssh", site.certified, renew_command=command)
        with pytest.raises(LoginExpiredError, match="renew_command ended with status 1"):
            hello(found)
        assert "renew_command ended with status 1" in caplog.text
        files = [path.read_text() for path in local_dir.rglob("*") if path.is_file()]
        assert "token-4711" not in "".join([caplog.text, *capfd.readouterr(), *files])

    @pytest.mark.parametrize(
        ("command", "trouble"),
        [("sleep 30", "was ended after"), ("/no/such/program", "cannot be run: No such file or directory")],
    )
    def test_a_command_that_hangs_or_is_missing(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, command: str, trouble: str
    ) -> None:
        monkeypatch.setattr(credentials, "RENEWAL_LIMIT_S", 0.3)
        signed(site.certified, site.authority, "-2h:-1h")
        with pytest.raises(LoginExpiredError, match=trouble):
            hello(site.hook("asyncssh", site.certified, renew_command=command))

    @pytest.mark.parametrize("text", ["a 'b", ["ssh"], " "])
    def test_no_command(self, site: Site, text: Any) -> None:
        with pytest.raises(LoginRefusedError, match="renew_command of connection 'site' is not a command"):
            site.hook("asyncssh", site.key, renew_command=text).options()

    @pytest.mark.parametrize("value", ["soon", -1, True])
    def test_no_patience(self, site: Site, value: Any) -> None:
        with pytest.raises(LoginRefusedError, match="login_patience of connection 'site'"):
            site.hook("asyncssh", site.key, login_patience=value).options()


class TestCertificates:
    def test_one_notice_before_the_end(self, site: Site, local_dir: Path) -> None:
        signed(site.certified, site.authority, "-23h:+30m")
        found = site.hook("asyncssh", site.certified)
        assert hello(found) == "hello"
        assert hello(found) == "hello"
        assert notices(local_dir) == ["certificate ends"]

    def test_no_notice_long_before_the_end(self, site: Site, local_dir: Path) -> None:
        signed(site.certified, site.authority, "-1m:+12h")
        assert hello(site.hook("asyncssh", site.certified)) == "hello"
        assert notices(local_dir) == []

    def test_its_validity(self, site: Site) -> None:
        signed(site.key, site.authority, "20260102030405:20260103030405")
        validity = certificate_validity(site.key.with_name("id-cert.pub"))
        assert validity is not None
        assert (validity.begin, validity.end) == (1767323045.0, 1767409445.0)
        assert validity.ends_within(3600, validity.end - 3599)
        assert not validity.ends_within(3600, validity.end - 3601)

    def test_without_an_end_or_damaged(self, site: Site, tmp_path: Path) -> None:
        signed(site.key, site.authority, "always:forever")
        assert certificate_validity(site.key.with_name("id-cert.pub")) is None
        (tmp_path / "damaged").write_text("ssh-ed25519-cert-v01@openssh.com AAAA")
        assert certificate_validity(tmp_path / "damaged") is None


def test_damaged_state_counts_as_absent(site: Site, local_dir: Path) -> None:
    found = site.hook("asyncssh", site.key)
    assert hello(found) == "hello"
    (record,) = (local_dir / "logins").iterdir()
    assert (record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    record.write_text('{"accepted": [], "refused": "x", "stamp": 5')
    assert hello(found) == "hello"
    assert json.loads(record.read_text())["accepted"] > 0


def test_a_persons_session_that_has_ended_gives_one_notice(site: Site, local_dir: Path) -> None:
    path = site.place / "session"
    found = site.hook("openssh", site.key, control_path=str(path))
    for number in (1, 2):
        for _ in range(2):
            with pytest.raises(TransportError, match="log in once with: ssh -M") as caught:
                hello(found)
            assert not isinstance(caught.value, LoginRefusedError)
        assert notices(local_dir) == ["no login session"] * number
        words = ["ssh", "-F", str(site.place / "ssh_config"), "-S", str(path), "-p", str(site.server.port)]
        words += ["-i", str(site.key), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        target = f"{USER}@127.0.0.1"
        subprocess.run([*words, "-M", "-f", "-N", target], check=True)
        assert hello(found) == "hello"
        subprocess.run([*words, "-O", "exit", target], check=True)
    assert site.server.logins == 2
