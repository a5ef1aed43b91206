"""One connection for all processes of a machine, with a limit of logins, with a real sshd and real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Connection
from ssh_server import USER, SshServer, make_key

from airflow_megatron.hooks import shared_master
from airflow_megatron.hooks.shared_master import LONGEST_SOCKET, private_folder
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

PROCESS = """
import json, os, sys
from airflow.sdk import Connection
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.profile import SlurmCommands
values, budget = json.loads(sys.argv[1]), int(sys.argv[2])
hook = SlurmHook("site", SlurmCommands(login_budget=budget), connection=Connection(**values))
print(hook.run("echo hello", timeout=120).stdout.strip(), flush=True)
sys.stdin.read()
"""


class Site:
    """A login node, and connections that share one connection to it."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.key = make_key(place / "id")
        (place / "ssh_config").write_text("")
        self.extra = {"ssh_config": str(place / "ssh_config"), "key_file": str(self.key)}
        self.server = SshServer(place / "sshd", self.key, **settings)

    def values(self, **extra: Any) -> dict[str, Any]:
        given = {**self.extra, "host_key": self.server.public_host_key, **extra}
        password = given.pop("password", None)
        address = {"host": "127.0.0.1", "port": self.server.port, "login": USER, "password": password}
        return {"conn_id": "site", "conn_type": "ssh", **address, "extra": json.dumps(given)}

    def hook(self, budget: int = 5, **extra: Any) -> SlurmHook:
        commands = SlurmCommands(login_budget=budget)
        return SlurmHook("site", commands, 1, connection=Connection(**self.values(**extra)))

    def hello(self, budget: int = 5, **extra: Any) -> str:
        return self.hook(budget, **extra).run("echo hello", timeout=120).stdout.strip()

    def at_once(self, number: int, script: str = "echo hello", budget: int = 5) -> list[str]:
        """Run a script over several transports at once, as several processes do."""
        with ThreadPoolExecutor(number) as pool:
            runs = [pool.submit(self.hook(budget).run, script, timeout=120) for _ in range(number)]
            return [each.result().stdout.strip() for each in runs]

    @property
    def socket(self) -> Path:
        (found,) = [path for path in private_folder().iterdir() if path.is_socket()]
        return found

    def end_master(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the shared connection's process, and wait until it has gone."""
        shown = subprocess.run(
            ["ssh", "-F", "none", "-S", str(self.socket), "-O", "check", "x"],
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"pid=(\d+)", shown.stderr)
        assert found is not None
        os.kill(int(found[1]), number)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{found[1]}/stat").exists() and "Z" not in _state(found[1]):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.fixture
def local_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="am-", dir="/tmp"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # ssh removes its socket concurrently


@pytest.fixture
def site(tmp_path: Path, local_dir: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.server.start()
    yield site
    site.server.stop()  # and with its sessions the shared connections


def test_all_share_one_login(site: Site) -> None:
    assert site.at_once(8) == ["hello"] * 8
    assert site.hello() == "hello"
    assert site.server.logins == 1


@pytest.mark.parametrize("transport", ["asyncssh", "openssh"])
def test_every_transport(site: Site, transport: str) -> None:
    assert [site.hello(transport=transport) for _ in range(2)] == ["hello"] * 2
    assert site.server.logins == 1


def test_only_the_owner_can_use_it(site: Site) -> None:
    site.hello()
    folder = private_folder()
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (folder.stat().st_mode & 0o777, modes) == (0o700, {"": 0o600, ".logins": 0o600})


def test_it_survives_the_process_that_opened_it(site: Site) -> None:
    words = [sys.executable, "-c", PROCESS, json.dumps(site.values()), "5"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as opener:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"hello\n"
        os.killpg(opener.pid, signal.SIGKILL)
    assert site.hello() == "hello"
    assert site.server.logins == 1


def test_one_process_opens_the_next_one(site: Site) -> None:
    site.hello()
    for logins in (2, 3):
        site.end_master()  # leaves its socket behind
        assert site.at_once(8) == ["hello"] * 8
        assert site.server.logins == logins


def test_a_connection_that_the_login_node_ends_is_followed_by_one_login(site: Site) -> None:
    site.hello()
    site.server.signal_sessions(signal.SIGKILL)
    assert site.at_once(8) == ["hello"] * 8
    assert site.server.logins == 2


def test_a_used_budget_is_a_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.hello(budget=2)
    site.end_master()
    site.hello(budget=2)
    site.end_master()
    for _ in range(3):
        with pytest.raises(
            LoginExpiredError, match=r"login_budget of 2 an hour is used; .* at \d\d:\d\d UTC"
        ):
            site.hello(budget=2)
    assert site.server.logins == 2
    monkeypatch.setattr(shared_master, "HOUR_S", 0.0)
    assert site.hello(budget=2) == "hello"


def test_refused_logins_count_and_others_do_not(site: Site, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    with pytest.raises(LoginRefusedError):
        site.hello(budget=1, key_file=str(other))
    with pytest.raises(LoginExpiredError, match="login_budget of 1 an hour is used"):
        site.hello(budget=1, key_file=str(other))
    site.server.stop()
    for _ in range(2):
        with pytest.raises(TransportError, match="cannot be reached"):
            site.hello(budget=1)
    site.server.start()
    assert site.hello(budget=1) == "hello"


def test_refused_sessions_are_waited_for(tmp_path: Path, local_dir: Path) -> None:
    site = Site(tmp_path, MaxSessions=2)
    site.server.start()
    try:
        assert site.at_once(8, "sleep 0.5; echo hello") == ["hello"] * 8
        assert site.server.logins == 1
    finally:
        site.server.stop()


def test_without_a_budget_each_has_its_own(site: Site) -> None:
    assert site.at_once(3, budget=0) == ["hello"] * 3
    assert site.server.logins == 3
    assert not (Path(os.environ["AIRFLOW_MEGATRON_LOCAL"]) / "ssh").exists()


def test_another_host_key_is_another_connection(site: Site, tmp_path: Path) -> None:
    site.hello()
    other = make_key(tmp_path / "other_host_key").with_suffix(".pub").read_text().split()
    with pytest.raises(LoginRefusedError, match="host key"):
        site.hello(host_key=" ".join(other[:2]))


def test_a_password_is_refused_with_what_to_do(site: Site) -> None:
    with pytest.raises(LoginRefusedError, match=r"cannot type a password .* add the key to the ssh-agent"):
        site.hello(password="x")


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_others_can_enter_is_refused(local_dir: Path, tmp_path: Path, kind: str) -> None:
    folder = local_dir / "ssh"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o755)  # for any umask
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch()
    with pytest.raises(LoginRefusedError, match=str(folder)):
        private_folder()


def test_a_path_that_is_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(long))
    folder = private_folder()
    try:
        assert folder == private_folder()
        assert str(folder).startswith(f"/tmp/airflow-megatron-{os.geteuid()}-")
        assert len(f"{folder}/0123456789abcdef") <= LONGEST_SOCKET
    finally:
        folder.rmdir()


def test_a_damaged_record_counts_as_empty(site: Site) -> None:
    site.hello(budget=1)
    site.end_master()
    (record,) = private_folder().glob("*.logins")
    record.write_text('{"logins": ["x", null, 1e99, {}]}')
    assert site.hello(budget=1) == "hello"
