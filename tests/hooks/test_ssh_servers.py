"""Both transports with a real sshd in the configurations of sites."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest
from airflow.sdk import Connection
from ssh_server import USER, SshServer, make_key

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.remote import transport as transport_limits
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import (
    CommandResult,
    LoginRefusedError,
    SessionRefusedError,
    TransportError,
)
from airflow_megatron.slurm.states.observation import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("transport", ["asyncssh", "openssh"])


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("key") / "id")


@pytest.fixture
def start(tmp_path: Path, key: Path) -> Iterator[Callable[..., SshServer]]:
    """Start an sshd; everything ends with the test."""
    servers: list[SshServer] = []

    def start(**settings: Any) -> SshServer:
        server = SshServer(tmp_path / f"sshd{len(servers)}", key, **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An SSH configuration in place of the account's own."""
    path = tmp_path / "ssh_config"
    path.write_text("")
    return path


@pytest.fixture
def hook(key: Path, config: Path) -> Callable[..., SlurmHook]:
    def make(
        server: SshServer | None, transport: str, *, attempts: int = 1, host: str = "127.0.0.1", **extra: Any
    ) -> SlurmHook:
        values = {
            "transport": transport,
            "ssh_config": str(config),
            "key_file": str(key),
            "host_key": server.public_host_key if server else None,
            **extra,
        }
        connection = Connection(
            conn_id="site",
            conn_type="ssh",
            host=host,
            port=server.port if server else None,
            login=USER if server else None,
            extra=json.dumps({name: value for name, value in values.items() if value is not None}),
        )
        return SlurmHook("site", conn_retry_attempts=attempts, connection=connection)

    return make


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent without keys."""
    socket = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as process:
        while not socket.exists():
            time.sleep(0.01)
        yield
        process.terminate()


async def answer(hook: SlurmHook, script: str = "echo hello", timeout: float = 20) -> CommandResult:
    async with hook.connected() as transport:
        return await transport.run(script, timeout=timeout)


class TestOpenssh:
    async def test_commands_share_one_login(self, start, hook) -> None:
        server = start()
        async with hook(server, "openssh").connected() as transport:
            for number in range(4):
                assert (await transport.run(f"echo {number}", timeout=60)).stdout == f"{number}\n"
            many = await asyncio.gather(*(transport.run(f"echo {n}", timeout=60) for n in range(5)))
            assert [result.stdout for result in many] == [f"{n}\n" for n in range(5)]
        assert server.logins == 1
        deadline = time.monotonic() + 60
        while server.sessions():
            assert time.monotonic() < deadline, "the master connection outlived its transport"
            await asyncio.sleep(0.05)

    async def test_output_status_and_text_arrive_whole(self, start, hook) -> None:
        script = "printf '%s\\n' 'ü \"$HOME\" $(x)'; echo wrong >&2; exit 3"
        result = await answer(hook(start(), "openssh"), script)
        assert result == CommandResult(3, 'ü "$HOME" $(x)\n', "wrong\n")

    async def test_a_worker_without_an_event_loop(self, start, hook) -> None:
        result = await asyncio.to_thread(hook(start(), "openssh").run, "echo hello")
        assert result.stdout == "hello\n"

    async def test_a_script_may_end_as_a_failed_ssh_does(self, start, hook) -> None:
        """ssh(1) returns 255 for its own failures and for a command that returned 255."""
        async with hook(start(), "openssh").connected() as transport:
            result = await transport.run(framed("echo whole") + "exit 255\n", timeout=60)
            assert (result.exit_status, unframed(result)) == (255, ["whole"])
            with pytest.raises(TransportError, match="connection lost"):
                await transport.run("echo half; exit 255", timeout=60)

    async def test_a_key_in_the_connection_is_not_left_behind(self, start, hook, key: Path) -> None:
        server = start()
        async with hook(
            server, "openssh", key_file=None, private_key=key.read_text()
        ).connected() as transport:
            assert (await transport.run("echo hello", timeout=60)).stdout == "hello\n"
            folder = Path(transport._folder.name)
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "key").stat().st_mode & 0o777 == 0o600
        assert not folder.exists()

    async def test_passwords_and_passphrases_are_refused(self, start, hook) -> None:
        with pytest.raises(LoginRefusedError, match="'site': transport openssh cannot type a password"):
            await answer(hook(start(), "openssh", private_key_passphrase="secret"))

    async def test_no_ssh_here(self, start, hook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        server = start()
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(LoginRefusedError, match="install an OpenSSH client"):
            await answer(hook(server, "openssh"))

    async def test_a_configuration_that_ssh_refuses(self, start, hook, config: Path) -> None:
        config.write_text("NoSuchOption yes\n")
        with pytest.raises(LoginRefusedError, match=r"cannot be used: .*terminating"):
            await answer(hook(start(), "openssh"))


class TestMasters:
    """ControlMaster: a user has logged in, perhaps with a second factor, and Airflow uses that login."""

    @pytest.fixture
    def server(self, start) -> SshServer:
        return start()

    @pytest.fixture
    def log_in(self, server: SshServer, key: Path, tmp_path: Path) -> Iterator[Callable[[], str]]:
        """Log in manually, as the messages request."""
        path = f"{tmp_path}/cm"
        options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-q"]
        target = ["-p", str(server.port), f"{USER}@127.0.0.1"]

        def log_in() -> str:
            subprocess.run(
                ["ssh", *options, "-i", str(key), "-M", "-S", path, "-f", "-N", *target], check=True
            )
            return path

        yield log_in
        subprocess.run(["ssh", *options, "-S", path, "-O", "exit", *target], check=False)

    async def test_the_session_of_a_person_is_used_and_left_open(self, server, hook, log_in) -> None:
        path = log_in()
        found = hook(server, "openssh", control_path=path, key_file=None)
        assert (await answer(found)).stdout == "hello\n"
        assert (await answer(found)).stdout == "hello\n"
        assert server.logins == 1
        assert Path(path).exists()

    async def test_its_path_may_begin_at_home(
        self, server, hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The command to copy holds the whole path: a shell would not expand a quoted ``~``."""
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(TransportError, match=f"log in once with: ssh -M -f -N -S {tmp_path}/cm "):
            await answer(hook(server, "openssh", control_path="~/cm"))

    async def test_without_it_there_is_no_login(self, server, hook, tmp_path: Path, key: Path) -> None:
        with pytest.raises(TransportError) as caught:
            await answer(hook(server, "openssh", control_path=f"{tmp_path}/cm"))
        assert f"no login session is open at control_path {tmp_path}/cm of connection 'site'" in str(
            caught.value
        )
        assert str(caught.value).endswith(
            f"log in once with: ssh -M -f -N -S {tmp_path}/cm -p {server.port} {USER}@127.0.0.1"
        )
        assert not caught.value.permanent, "a person logs in again, and all goes on"
        assert server.logins == 0

    async def test_a_session_that_ends_and_is_replaced(self, server, hook, log_in) -> None:
        path = log_in()
        async with hook(server, "openssh", control_path=path).connected() as transport:
            await transport.run("true", timeout=60)
            server.signal_sessions(signal.SIGKILL)
            for _ in range(2):
                with pytest.raises(TransportError, match=r"connection lost|no login session"):
                    await transport.run("true", timeout=60)
            log_in()
            assert (await transport.run("echo again", timeout=60)).stdout == "again\n"
        assert server.logins == 2

    async def test_the_control_path_of_the_configuration(self, server, hook, log_in, config: Path) -> None:
        config.write_text(f"Host 127.0.0.1\n  ControlPath {log_in()}\n  ControlMaster auto\n")
        assert (await answer(hook(server, "openssh", key_file=None))).stdout == "hello\n"
        assert server.logins == 1

    async def test_only_openssh_has_them(self, server, hook) -> None:
        with pytest.raises(LoginRefusedError, match='add "transport": "openssh"'):
            await answer(hook(server, "asyncssh", control_path="/tmp/cm"))


@both
class TestWaysIn:
    async def test_proxy_jump(
        self, start, hook, config: Path, key: Path, transport: str, tmp_path: Path
    ) -> None:
        jump, login = start(), start()
        known = tmp_path / "known_hosts"
        known.write_text(
            "".join(f"[127.0.0.1]:{each.port} {each.public_host_key}\n" for each in (jump, login))
        )
        config.write_text(
            f"Host cluster\n  HostName 127.0.0.1\n  Port {login.port}\n  User {USER}\n  ProxyJump gate\n"
            f"Host gate\n  HostName 127.0.0.1\n  Port {jump.port}\n  User {USER}\n"
            f"Host *\n  IdentityFile {key}\n  UserKnownHostsFile {known}\n"
        )
        found = hook(None, transport, host="cluster", key_file=None)
        result = await answer(found, "echo $SSH_CONNECTION")
        assert result.stdout.split()[3] == str(login.port)
        assert (jump.logins, login.logins) == (1, 1)

    @pytest.mark.usefixtures("agent")
    async def test_ssh_agent_with_a_key_that_has_a_passphrase(
        self, start, hook, transport: str, tmp_path: Path
    ) -> None:
        server = start()
        locked = make_key(tmp_path / "locked", passphrase="open sesame")
        (server.place / "authorized_keys").write_text(locked.with_suffix(".pub").read_text())
        askpass = tmp_path / "ask"
        askpass.write_text("#!/bin/sh\necho open sesame\n")
        askpass.chmod(0o755)
        environment = {
            **os.environ,
            "SSH_ASKPASS": str(askpass),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": ":0",
        }
        subprocess.run(["ssh-add", "-q", str(locked)], env=environment, check=True, stdin=subprocess.DEVNULL)
        assert (await answer(hook(server, transport, key_file=None))).stdout == "hello\n"

    async def test_a_key_with_a_passphrase(self, start, hook, transport: str, tmp_path: Path) -> None:
        server = start()
        locked = make_key(tmp_path / "locked", passphrase="open sesame")
        (server.place / "authorized_keys").write_text(locked.with_suffix(".pub").read_text())
        found = hook(server, transport, key_file=str(locked), private_key_passphrase="open sesame")
        if transport == "asyncssh":
            assert (await answer(found)).stdout == "hello\n"
        with pytest.raises(LoginRefusedError, match=r"login refused|cannot be read"):
            await answer(hook(server, transport, key_file=str(locked)))

    async def test_another_host_key(self, start, hook, transport: str, tmp_path: Path) -> None:
        server = start()
        other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
        with pytest.raises(LoginRefusedError, match="host key is not the one that connection 'site' trusts"):
            await answer(hook(server, transport, host_key=other))
        assert server.logins == 0

    async def test_another_key(self, start, hook, transport: str, tmp_path: Path) -> None:
        found = hook(start(), transport, key_file=str(make_key(tmp_path / "other")))
        with pytest.raises(
            LoginRefusedError, match=r"login refused .*check login and key_file of connection 'site'"
        ):
            await answer(found)

    async def test_no_server_listens(self, start, hook, transport: str) -> None:
        server = start()
        server.stop()
        with pytest.raises(TransportError, match=r"cannot be reached: .*check host and port") as caught:
            await answer(hook(server, transport))
        assert not caught.value.permanent


@both
class TestLoginShells:
    @pytest.fixture
    def profile(self, start) -> SshServer:
        """A home whose start-up files print text, and where only the login profile has Slurm on the PATH."""
        server = start()
        slurm = server.home / "slurm" / "bin"
        slurm.mkdir(parents=True)
        (slurm / "sinfo").write_text("#!/bin/sh\necho slurm 25.05.1\n")
        (slurm / "sinfo").chmod(0o755)
        noise = "echo 'Welcome! Quota: 97 %'; printf 'no line break'; echo 'module: command not found' >&2\n"
        (server.home / ".bashrc").write_text(noise)
        (server.home / ".bash_profile").write_text(f"{noise}PATH={slurm}:$PATH\n")
        return server

    async def test_noise_of_start_up_files(self, profile: SshServer, hook, transport: str) -> None:
        result = await answer(hook(profile, transport), framed("echo answer; echo complaint >&2"))
        assert "Quota" in result.stdout
        assert "module" in result.stderr
        assert unframed(result) == ["answer"]

    async def test_slurm_on_the_path_of_login_shells_alone(
        self, profile: SshServer, hook, transport: str
    ) -> None:
        found = hook(profile, transport)
        works, message = await asyncio.to_thread(found.test_connection)
        assert (works, "sinfo fails" in message) == (False, True)
        found = SlurmHook("site", SlurmCommands(login_shell=True), connection=found.connection)
        works, message = await asyncio.to_thread(found.test_connection)
        assert works
        assert "slurm 25.05.1" in message


def test_an_account_without_a_home_needs_a_work_dir(start, hook) -> None:
    server = start()
    assert hook(server, "openssh").work_dir() == f"{server.home.resolve()}/airflow-jobs"
    server.home.rename(f"{server.home}.gone")
    with pytest.raises(TransportError, match=r"'site' has no home directory .*set work_dir"):
        hook(server, "openssh").work_dir()
    assert hook(server, "openssh", work_dir="/scratch/me").work_dir() == "/scratch/me"


async def test_a_connection_that_breaks_as_a_session_begins_is_lost(
    start, hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncssh reports it as a refused session, and only a moment later that the connection is closed."""
    begin = asyncssh.SSHClientConnection.create_process

    async def broken(connection: asyncssh.SSHClientConnection, *args: Any, **kwargs: Any) -> Any:
        connection.abort()
        return await begin(connection, *args, **kwargs)

    async with hook(start(), "asyncssh", attempts=1).connected() as opened:
        await opened.run("true", timeout=60)
        with monkeypatch.context() as patched:
            patched.setattr(asyncssh.SSHClientConnection, "create_process", broken)
            with pytest.raises(TransportError, match="connection lost"):
                await opened.run("true", timeout=60)
        assert (await opened.run("echo again", timeout=60)).stdout == "again\n"


@both
class TestTrouble:
    async def test_one_session_at_a_time(self, start, hook, transport: str) -> None:
        """MaxSessions 1: a second command on the same connection has to wait for the first."""
        async with hook(start(MaxSessions=1), transport, attempts=5).connected() as opened:
            await opened.run("true", timeout=60)
            results = await asyncio.gather(
                *(opened.run(f"sleep 0.2; echo {n}", timeout=60) for n in range(3))
            )
        assert [result.stdout for result in results] == ["0\n", "1\n", "2\n"]

    async def test_the_wait_for_ends_takes_the_only_session(
        self, start, hook, transport: str, tmp_path: Path
    ) -> None:
        """A poll for another job ends the wait and does not fail."""
        squeue = tmp_path / "squeue"
        squeue.write_text("#!/bin/sh\necho '7|RUNNING|1|1|1|1|n1|None|a'\n")
        squeue.chmod(0o755)
        commands = SlurmCommands(slurm_bin=str(tmp_path))
        site = hook(start(MaxSessions=1), transport, attempts=2)
        async with site.connected() as opened:

            async def factory() -> Any:
                return opened

            poller = Poller(factory, interval=60, commands=commands)
            async with poller.subscribe(Watch(key="x", job_id="7", attempt_dir=str(tmp_path))) as first:
                assert (await asyncio.wait_for(anext(first), 60)).queue is not None
                await asyncio.sleep(1)
                async with poller.subscribe(Watch(key="y", job_id="7")) as second:
                    assert (await asyncio.wait_for(anext(second), 60)).queue is not None
            assert (poller.stats.waits, poller.stats.failures) == (1, 0)

    async def test_a_refused_session_has_an_error_of_its_own(self, start, hook, transport: str) -> None:
        async with hook(start(MaxSessions=1), transport, attempts=1).connected() as opened:
            await opened.run("true", timeout=60)
            results = await asyncio.gather(
                *(opened.run("sleep 2", timeout=60) for _ in range(2)), return_exceptions=True
            )
        assert any(isinstance(result, SessionRefusedError) for result in results), results

    async def test_many_at_once_where_sshd_drops_some(self, start, hook, transport: str) -> None:
        server = start(MaxStartups="1:60:2")
        results = await asyncio.gather(
            *(answer(hook(server, transport, attempts=8), f"echo {n}", 60) for n in range(6))
        )
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(6)]

    async def test_sshd_killed_during_a_command(self, start, hook, transport: str) -> None:
        server = start()
        began = server.home / "began"
        async with hook(server, transport).connected() as opened:
            running = asyncio.create_task(opened.run(f"touch {began}; sleep 600", timeout=300))
            while not began.exists():
                await asyncio.sleep(0.02)
            server.signal_sessions(signal.SIGKILL)
            with pytest.raises(TransportError, match="connection lost"):
                await running
            assert (await opened.run("echo again", timeout=60)).stdout == "again\n"

    async def test_a_half_open_connection(self, start, hook, transport: str) -> None:
        server = start()
        async with hook(server, transport).connected() as opened:
            await opened.run("true", timeout=60)
            server.signal_sessions(signal.SIGSTOP)
            started = time.monotonic()
            with pytest.raises(TransportError, match="no answer within 1 s"):
                await opened.run("echo never", timeout=1)
            assert time.monotonic() - started < 30
            assert (await opened.run("echo again", timeout=60)).stdout == "again\n"

    def test_a_session_shares_one_login_and_outlives_a_broken_connection(
        self, start, hook, transport: str
    ) -> None:
        server = start()
        with hook(server, transport).session() as run:
            assert [run(f"echo {number}").stdout for number in range(3)] == ["0\n", "1\n", "2\n"]
            assert server.logins == 1
            server.signal_sessions(signal.SIGKILL)
            assert run("echo again").stdout == "again\n"
            assert server.logins == 2
            server.stop()
            with pytest.raises(TransportError):
                run("echo never")

    async def test_a_stopped_wait_stops_the_command(self, start, hook, transport: str) -> None:
        server = start()
        began = server.home / "began"
        async with hook(server, transport).connected() as opened:
            running = asyncio.create_task(opened.run(f"touch {began}; sleep 600", timeout=300))
            while not began.exists():
                await asyncio.sleep(0.02)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        deadline = time.monotonic() + 60
        while server.sessions():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    @pytest.mark.parametrize("output", ["yes", "yes >&2"])
    async def test_an_answer_without_end(
        self, start, hook, transport: str, output: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport_limits, "LONGEST_ANSWER", 1 << 20)
        ssh_hook = hook(start(), transport)
        with pytest.raises(TransportError, match="longer than 1 MiB; see whether a start-up file"):
            await answer(ssh_hook, output, 60)
        assert (await answer(ssh_hook, "echo again", 60)).stdout == "again\n"

    async def test_large_scripts_and_answers(self, start, hook, transport: str) -> None:
        lines = [f"line {number}" for number in range(600_000)]
        script = framed("cat <<'EOF'\n" + "\n".join(lines) + "\nEOF\n")
        assert unframed(await answer(hook(start(), transport), script, 60)) == lines
