"""The SSH hook with a real SSH server in the process of the test."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest
from airflow.sdk import Connection
from login_node import HOST_KEY, OTHER_KEY, PASSWORD, USER_KEY, LoginNode, public

from airflow_megatron.hooks import kept_connection
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote import transport as transport_limits
from airflow_megatron.slurm.remote.transport import CommandResult, LoginRefusedError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
async def node() -> AsyncIterator[LoginNode]:
    node = LoginNode()
    await node.start()
    yield node
    await node.stop()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "id_ed25519"
    USER_KEY.write_private_key(path)
    path.chmod(0o600)
    return path


def hook(
    node: LoginNode,
    key_file: Path | None = None,
    *,
    port: int | None = None,
    password: str | None = None,
    **extra: Any,
) -> SlurmHook:
    values = {"host_key": public(HOST_KEY), **({"key_file": str(key_file)} if key_file else {}), **extra}
    connection = Connection(
        conn_id="alps",
        conn_type="ssh",
        host="127.0.0.1",
        port=port or node.port,
        login="me",
        password=password,
        extra=json.dumps({name: value for name, value in values.items() if value is not None}),
    )
    return SlurmHook("alps", conn_retry_attempts=1, connection=connection)


async def answer(hook: SlurmHook, script: str = "echo hello", timeout: float = 60) -> CommandResult:
    transport = await hook.transport()
    try:
        return await transport.run(script, timeout=timeout)
    finally:
        await transport.close()


class TestRunning:
    async def test_output_status_and_text_arrive_whole(self, node: LoginNode, key_file: Path) -> None:
        script = "printf '%s\\n' 'ü \"$HOME\" $(x)'; echo wrong >&2; exit 3"
        assert await answer(hook(node, key_file), script) == CommandResult(3, 'ü "$HOME" $(x)\n', "wrong\n")

    async def test_a_worker_without_an_event_loop(self, node: LoginNode, key_file: Path) -> None:
        result = await asyncio.to_thread(hook(node, key_file).run, "echo hello")
        assert result == CommandResult(0, "hello\n", "")

    @pytest.mark.slow
    async def test_refused_credentials_are_refused_again(self, node: LoginNode) -> None:
        transport = await hook(node, password=PASSWORD, transport="openssh").transport()
        for _ in range(2):  # the second time not without the options of the connection
            with pytest.raises(LoginRefusedError, match="cannot type a password"):
                await transport.run("echo hello", timeout=60)
        await transport.close()

    @pytest.mark.slow
    async def test_scripts_that_follow_each_other_share_a_login(
        self, node: LoginNode, key_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scripts() -> list[object]:
            answers: list[object] = []
            for step in ("one", "two", "cut", "three", "idle", "four"):
                first, again = hook(node, key_file), hook(node, key_file)
                first.kept = again.kept = True
                if step == "cut":
                    asyncio.run_coroutine_threadsafe(cut(), loop).result()
                elif step == "idle":
                    monkeypatch.setattr(kept_connection, "MOST_IDLE_S", -1.0)
                else:
                    answers.append(first.run(f"echo {step}").stdout)
                    answers.append(node.logins)
                if step == "cut":
                    with pytest.raises(TransportError):  # whether the script may run twice is not known here
                        again.run("echo lost")
            return answers

        async def cut() -> None:
            node.cut()

        loop = asyncio.get_running_loop()
        answers = await asyncio.to_thread(scripts)
        assert answers == ["one\n", 1, "two\n", 1, "three\n", 2, "four\n", 3]

    async def test_large_scripts_and_answers(self, node: LoginNode, key_file: Path) -> None:
        lines = [f"line {number}" for number in range(20_000)]
        script = "cat <<'EOF'\n" + "\n".join(lines) + "\nEOF\n"
        assert (await answer(hook(node, key_file), script)).stdout.splitlines() == lines

    @pytest.mark.parametrize("where", ["", " >&2"])
    async def test_an_answer_that_is_too_long(
        self, node: LoginNode, key_file: Path, where: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport_limits, "LONGEST_ANSWER", 1 << 20)
        with pytest.raises(TransportError, match="longer than 1 MiB; see whether a start-up file"):
            await answer(hook(node, key_file), f"yes | head -c 3000000{where}")
        assert (await answer(hook(node, key_file))).stdout == "hello\n"

    async def test_bytes_that_are_not_text(self, node: LoginNode, key_file: Path) -> None:
        assert (
            await answer(hook(node, key_file), "printf 'a\\377b'")
        ).stdout == "a\N{REPLACEMENT CHARACTER}b"

    async def test_one_connection_serves_many_commands(self, node: LoginNode, key_file: Path) -> None:
        transport = await hook(node, key_file).transport()
        for number in range(5):
            assert (await transport.run(f"echo {number}", timeout=60)).stdout == f"{number}\n"
        await transport.close()
        await transport.close()
        assert (node.logins, len(node.commands)) == (1, 5)

    async def test_the_test_button(self, node: LoginNode, key_file: Path, tmp_path: Path) -> None:
        found = hook(node, key_file, slurm_bin=str(tmp_path))
        works, message = await asyncio.to_thread(found.test_connection)
        assert not works
        assert message.startswith(f"me@127.0.0.1:{node.port} is reached, but sinfo fails: ")
        (tmp_path / "sinfo").write_text("#!/bin/sh\necho slurm 25.05.1\n")
        (tmp_path / "sinfo").chmod(0o755)
        assert await asyncio.to_thread(found.test_connection) == (
            True,
            f"me@127.0.0.1:{node.port}: slurm 25.05.1",
        )

    async def test_the_test_button_of_airflows_page(
        self, node: LoginNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow.models.connection import Connection as StoredConnection

        (tmp_path / "sinfo").write_text("#!/bin/sh\necho slurm 25.05.1\n")
        (tmp_path / "sinfo").chmod(0o755)
        values = node.connection(tmp_path)
        extra = {**values.pop("extra"), "slurm_bin": str(tmp_path)}
        stored = StoredConnection("asked", **{**values, "conn_type": "slurm", "extra": json.dumps(extra)})
        # as the endpoint of the page passes an unsaved connection to its hook
        monkeypatch.setenv("AIRFLOW_CONN_ASKED", stored.as_json())
        assert await asyncio.to_thread(stored.test_connection) == (
            True,
            f"me@127.0.0.1:{node.port}: slurm 25.05.1",
        )


class TestHostKeys:
    async def test_another_key_is_refused_for_good(self, node: LoginNode, key_file: Path) -> None:
        with pytest.raises(LoginRefusedError) as caught:
            await answer(hook(node, key_file, host_key=public(OTHER_KEY)))
        assert (
            f"me@127.0.0.1:{node.port}: the login node's host key is not the one that connection 'alps'"
            in str(caught.value)
        )
        assert "host_key extra" in str(caught.value)
        assert caught.value.permanent
        assert (node.logins, node.commands) == (0, [])

    async def test_known_hosts_file(self, node: LoginNode, key_file: Path, tmp_path: Path) -> None:
        known = tmp_path / "known hosts"
        known.write_text(f"[127.0.0.1]:{node.port} {public(HOST_KEY)}\n")
        assert (await answer(hook(node, key_file, host_key=None, known_hosts=str(known)))).stdout == "hello\n"
        known.write_text(f"[127.0.0.1]:{node.port} {public(OTHER_KEY)}\n")
        with pytest.raises(LoginRefusedError, match="host key is not the one"):
            await answer(hook(node, key_file, host_key=None, known_hosts=str(known)))

    async def test_an_unknown_host_key_is_refused(
        self, node: LoginNode, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(LoginRefusedError, match="has no host_key, and known_hosts no entry") as caught:
            await answer(hook(node, key_file, host_key=None))
        assert "trusts" not in str(caught.value)  # no key was given, so the message names none
        assert node.logins == 0

    async def test_the_check_can_be_switched_off(self, node: LoginNode, key_file: Path) -> None:
        found = hook(node, key_file, host_key=None, no_host_key_check="true")
        assert (await answer(found)).stdout == "hello\n"

    async def test_a_given_key_is_checked_even_then(self, node: LoginNode, key_file: Path) -> None:
        with pytest.raises(LoginRefusedError, match="host key is not the one"):
            await answer(hook(node, key_file, host_key=public(OTHER_KEY), no_host_key_check=True))

    @pytest.mark.parametrize("text", ["ssh-ed25519 AAAA", "no key at all"])
    async def test_a_host_key_that_cannot_be_read(self, text: str, node: LoginNode, key_file: Path) -> None:
        with pytest.raises(
            LoginRefusedError, match=r"host_key extra of connection 'alps' is not a public key \(write"
        ):
            await answer(hook(node, key_file, host_key=text))
        assert node.logins == 0


class TestCredentials:
    async def test_another_key_is_refused_for_good(self, node: LoginNode, tmp_path: Path) -> None:
        OTHER_KEY.write_private_key(tmp_path / "other")
        with pytest.raises(LoginRefusedError) as caught:
            await answer(hook(node, tmp_path / "other"))
        assert f"me@127.0.0.1:{node.port}: login refused (" in str(caught.value)
        assert "check login and key_file of connection 'alps'" in str(caught.value)
        assert node.commands == []

    async def test_a_key_file_that_is_not_there(self, node: LoginNode, tmp_path: Path) -> None:
        with pytest.raises(LoginRefusedError, match=r"key_file .*/gone of connection 'alps' does not exist"):
            await answer(hook(node, tmp_path / "gone"))
        assert node.connections == []

    @pytest.mark.filterwarnings("ignore:.*bcrypt.kdf:UserWarning")  # a secure number of rounds takes a second
    @pytest.mark.parametrize("passphrase", [None, "pass phrase"])
    async def test_a_key_in_the_connection_itself(self, node: LoginNode, passphrase: str | None) -> None:
        text = USER_KEY.export_private_key(passphrase=passphrase, rounds=4).decode()
        found = hook(node, private_key=text, private_key_passphrase=passphrase)
        assert (await answer(found)).stdout == "hello\n"

    @pytest.mark.filterwarnings("ignore:.*bcrypt.kdf:UserWarning")
    @pytest.mark.parametrize("extra", [{"private_key": "no key"}, {"private_key_passphrase": "wrong"}])
    async def test_a_key_that_cannot_be_read(self, node: LoginNode, extra: dict[str, str]) -> None:
        text = USER_KEY.export_private_key(passphrase="right", rounds=4).decode()
        with pytest.raises(LoginRefusedError, match="private_key of connection 'alps' cannot be read"):
            await answer(hook(node, **{"private_key": text, **extra}))

    @pytest.mark.parametrize(
        ("name", "hint"),
        [("key_file", "private_key"), ("known_hosts", "host_key"), ("ssh_config", ""), ("work_dir", "")],
    )
    @pytest.mark.parametrize(
        "change", [str, lambda text: text.replace("\n", "\\n"), lambda text: text[40:90] * 9]
    )
    async def test_a_key_in_place_of_a_path_is_not_repeated(
        self, node: LoginNode, name: str, hint: str, change: Callable[[str], str]
    ) -> None:
        text = change(USER_KEY.export_private_key().decode())
        with pytest.raises(
            LoginRefusedError, match=f"{name} of connection 'alps' is not a path.*{hint}"
        ) as caught:
            await answer(hook(node, **{name: text}))
        assert text[45:60] not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize(
        "name", ["private_key", "private_key_passphrase", "known_hosts", "host_proxy_cmd"]
    )
    @pytest.mark.parametrize("value", [12345678, True, ["12345678"], {"12345678": 1}], ids=str)
    async def test_an_extra_that_is_not_a_text(self, node: LoginNode, name: str, value: object) -> None:
        with pytest.raises(LoginRefusedError, match=f"{name} of connection 'alps' is not a text") as caught:
            await answer(hook(node, **{name: value}))
        assert "12345678" not in str(caught.value)

    @pytest.mark.parametrize("value", ["soon", -1, float("nan"), float("inf"), [1]], ids=str)
    async def test_a_timeout_that_is_no_time(self, node: LoginNode, key_file: Path, value: object) -> None:
        with pytest.raises(
            LoginRefusedError, match="conn_timeout of connection 'alps' is not a number of seconds"
        ):
            await answer(hook(node, key_file, conn_timeout=value))

    @pytest.mark.parametrize("name", ["no_host_key_check", "compress", "login_shell", "restricted"])
    @pytest.mark.parametrize("value", ["yes", "1", 1, [True]], ids=str)
    async def test_a_switch_that_is_neither_true_nor_false(
        self, node: LoginNode, key_file: Path, name: str, value: object
    ) -> None:
        with pytest.raises(LoginRefusedError, match=f"{name} of connection 'alps' is neither true nor false"):
            await answer(hook(node, key_file, **{name: value}))

    async def test_switches_in_an_address_are_texts(self, node: LoginNode, key_file: Path) -> None:
        switches = {"compress": "True", "login_shell": "false", "restricted": ""}
        assert (await answer(hook(node, key_file, **switches))).stdout == "hello\n"

    async def test_a_key_file_that_cannot_be_read(self, node: LoginNode, tmp_path: Path) -> None:
        (tmp_path / "key").write_text("no key")
        with pytest.raises(
            LoginRefusedError, match=f"connection 'alps': key_file {tmp_path / 'key'} cannot be read"
        ):
            await answer(hook(node, tmp_path / "key"))

    async def test_a_public_key_in_place_of_the_private_one(self, node: LoginNode, tmp_path: Path) -> None:
        (tmp_path / "key.pub").write_text(public(USER_KEY))
        with pytest.raises(LoginRefusedError, match=r"key.pub \(a public key: name the private one\)"):
            await answer(hook(node, tmp_path / "key.pub"))

    @pytest.mark.parametrize(("password", "works"), [(PASSWORD, True), ("guess", False)])
    async def test_passwords_are_used_and_never_shown(
        self, node: LoginNode, password: str, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        found = hook(node, password=password)
        if works:
            assert (await answer(found)).stdout == "hello\n"
        else:
            with pytest.raises(LoginRefusedError) as caught:
                await answer(found)
            assert password not in str(caught.value)


class TestTrouble:
    async def test_no_server_listens(self, node: LoginNode, key_file: Path) -> None:
        port = node.port
        node.acceptor.close()
        await node.acceptor.wait_closed()
        with pytest.raises(TransportError) as caught:
            await answer(hook(node, key_file, port=port))
        assert f"me@127.0.0.1:{port} cannot be reached: " in str(caught.value)
        assert "check host and port of connection 'alps'" in str(caught.value)
        assert not isinstance(caught.value, LoginRefusedError)
        await node.start()

    async def test_something_else_listens(self, key_file: Path, node: LoginNode) -> None:
        async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(web_server, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TransportError, match="cannot be reached"):
                await answer(hook(node, key_file, port=port))

    async def test_a_login_node_that_accepts_connections_and_says_nothing(
        self, key_file: Path, node: LoginNode
    ) -> None:
        async def hung_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hung_server, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TransportError) as caught:
                await answer(hook(node, key_file, port=port, conn_timeout=0.2))
        assert "cannot be reached: no answer within 0.2 s; check host and port" in str(caught.value)

    async def test_a_connection_that_is_cut_and_made_again(self, node: LoginNode, key_file: Path) -> None:
        transport = await hook(node, key_file).transport()
        running = asyncio.create_task(transport.run("exec sleep 600", timeout=300))
        while not node.commands:
            await asyncio.sleep(0.01)
        node.cut()
        with pytest.raises(TransportError, match="connection lost") as caught:
            await running
        assert not isinstance(caught.value, LoginRefusedError)
        assert (await transport.run("echo again", timeout=60)).stdout == "again\n"
        await transport.close()

    @pytest.mark.slow
    async def test_a_connection_that_broke_between_two_commands(
        self, node: LoginNode, key_file: Path
    ) -> None:
        transport = await hook(node, key_file).transport()
        await transport.run("true", timeout=60)
        node.cut()
        await asyncio.sleep(0.05)
        with pytest.raises(TransportError, match="connection lost"):
            await transport.run("true", timeout=60)
        assert (await transport.run("echo again", timeout=60)).stdout == "again\n"
        await transport.close()

    async def test_a_command_that_has_ended_before_it_gets_the_script(
        self, node: LoginNode, key_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create = asyncssh.SSHClientConnection.create_session

        async def ended_session(*args: Any, **options: Any) -> Any:
            channel, session = await create(*args, **options)
            await channel.wait_closed()
            return channel, session

        monkeypatch.setattr(asyncssh.SSHClientConnection, "create_session", ended_session)
        node.refusal = "programs of another version"
        assert await answer(hook(node, key_file)) == CommandResult(77, "", node.refusal)

    @pytest.mark.slow
    async def test_a_command_that_takes_too_long(self, node: LoginNode, key_file: Path) -> None:
        transport = await hook(node, key_file).transport()
        started = time.monotonic()
        with pytest.raises(TransportError, match=rf"me@127\.0\.0\.1:{node.port}: no answer within 1 s"):
            await transport.run("exec sleep 30", timeout=0.6)
        assert time.monotonic() - started < 25
        assert (await transport.run("echo again", timeout=60)).stdout == "again\n"
        await transport.close()

    @pytest.mark.slow
    async def test_a_login_node_that_does_not_answer(self, key_file: Path, node: LoginNode) -> None:
        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
            found = hook(node, key_file, port=server.sockets[0].getsockname()[1])
            with pytest.raises(TransportError, match="no answer within 0 s"):
                await answer(found, timeout=0.3)

    @pytest.mark.slow
    async def test_a_second_connect_after_a_refused_one(self, node: LoginNode, key_file: Path) -> None:
        """sshd drops some of many simultaneous connections before they log in (MaxStartups)."""
        dropped = 0

        async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dropped
            if not dropped:
                dropped += 1
                writer.close()
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", node.port)
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        server = await asyncio.start_server(gate, "127.0.0.1", 0)
        found = hook(node, key_file, port=server.sockets[0].getsockname()[1])
        found.conn_retry_attempts = 2
        assert (await answer(found)).stdout == "hello\n"
        assert dropped == 1
        server.close()


RELAY = """\
import os, socket, sys, threading
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    os.write(1, data)
"""


@pytest.mark.slow
async def test_through_a_proxy_command(node: LoginNode, key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    command = f"{sys.executable} {tmp_path}/relay.py 127.0.0.1 {node.port}"
    assert (await answer(hook(node, key_file, host_proxy_cmd=command))).stdout == "hello\n"


class TestLookUp:
    async def test_the_connection_is_found_by_its_id(
        self, node: LoginNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored = node.connection(tmp_path)
        monkeypatch.setenv("AIRFLOW_CONN_SLURM_TEST", json.dumps(stored))
        assert (await answer(SlurmHook("slurm_test"))).stdout == "hello\n"

    async def test_there_is_none(self) -> None:
        with pytest.raises(
            LoginRefusedError,
            match=r"there is no Airflow connection 'slurm_none' .*add one of type slurm or ssh",
        ):
            await answer(SlurmHook("slurm_none"))

    async def test_one_without_a_host(self) -> None:
        empty = SlurmHook("alps", connection=Connection(conn_id="alps", conn_type="ssh"))
        with pytest.raises(LoginRefusedError, match="connection 'alps' names no host"):
            await answer(empty)


SWITCHES = (
    *(
        "UserKnownHostsFile none",
        "UserKnownHostsFile None",
        "UserKnownHostsFile NONE",
        "userknownhostsfile none",
    ),
    *(
        "UserKnownHostsFile=none",
        "UserKnownHostsFile /dev/null",
        "UserKnownHostsFile /nowhere",
        'UserKnownHostsFile "none"',
    ),
    *(
        "UserKnownHostsFile none\nGlobalKnownHostsFile none",
        "GlobalKnownHostsFile none",
        "GlobalKnownHostsFile /dev/null",
    ),
    *("StrictHostKeyChecking no", "StrictHostKeyChecking off", "StrictHostKeyChecking accept-new"),
    *(
        "NoHostAuthenticationForLocalhost yes",
        "VerifyHostKeyDNS yes",
        "UpdateHostKeys yes",
        "HostKeyAlias other",
    ),
    *("CheckHostIP no", "HashKnownHosts yes", "UserKnownHostsFile none\nStrictHostKeyChecking no"),
)


@pytest.mark.parametrize("place", ["home", "extra"])
@pytest.mark.parametrize("scope", ["", "Host *\n", "Host 127.*\n", "Match host 127.0.0.1\n"])
@pytest.mark.parametrize("switch", SWITCHES)
async def test_no_configuration_switches_host_keys_off(
    switch: str, scope: str, place: str, node: LoginNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown server never gets a password, for any SSH configuration of the user."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    config = home / ".ssh" / "config" if place == "home" else tmp_path / "ssh_config"
    config.write_text(f"{scope}{switch}\n")
    extra = {"ssh_config": str(config)} if place == "extra" else {}
    with pytest.raises(LoginRefusedError, match="host key is not the one"):
        await answer(hook(node, host_key=None, password=PASSWORD, **extra))
    assert (node.logins, node.commands) == (0, [])


@pytest.mark.parametrize("file", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2", "~/elsewhere", "ELSEWHERE"])
async def test_a_key_that_the_configurations_files_hold(
    file: str, node: LoginNode, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(file.replace("ELSEWHERE", str(tmp_path / "other"))).expanduser()
    path.parent.mkdir(exist_ok=True)
    (tmp_path / ".ssh").mkdir(exist_ok=True)
    path.write_text(f"[127.0.0.1]:{node.port} {public(HOST_KEY)}\n")
    if ".ssh" not in file:
        (tmp_path / ".ssh" / "config").write_text(
            f"UserKnownHostsFile ~/nothing {file.replace('ELSEWHERE', str(path))}\n"
        )
    assert (await answer(hook(node, key_file, host_key=None))).stdout == "hello\n"
