"""SSH by asyncssh: one connection for all commands, without a separate process."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from airflow_megatron.hooks.connection_options import host_key_refusal
from airflow_megatron.hooks.login_gate import LoginGate
from airflow_megatron.slurm.remote import transport as limits
from airflow_megatron.slurm.remote.transport import (
    CommandResult,
    LoginRefusedError,
    LongAnswerError,
    SessionRefusedError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.hooks.connection_options import ConnectionOptions

SESSION_PAUSE_S = 0.5
PART = 1 << 18
"""Characters that are read at once."""
KNOWN_HOSTS = (
    *("~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
    *("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
)
"""Default files of host keys, by ssh_config(5)."""

log = logging.getLogger(__name__)

# asyncssh reports every step of every connection as INFO, which would drown the task logs
logging.getLogger("asyncssh").setLevel(logging.WARNING)


class AsyncsshTransport:
    """One SSH connection to a login node, opened on first use and reopened after it breaks.

    ``~/.ssh/config`` (ProxyJump) and the ssh-agent are honoured.

    :param options: the Airflow connection
    :param remote_shell: command line that runs a script given on its standard input
    :param attempts: connects before giving up; sshd refuses some of many simultaneous ones (MaxStartups)
    """

    def __init__(self, options: ConnectionOptions, remote_shell: str, attempts: int = 5) -> None:
        self._options = options
        self._remote_shell = remote_shell
        self._attempts = attempts
        self._connection: asyncssh.SSHClientConnection | None = None
        self._gate = LoginGate(options)

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run a script in the login node's shell; see :class:`~airflow_megatron.slurm.remote.transport.Transport`."""
        address = self._options.address
        try:
            async with asyncio.timeout(timeout):
                if self._connection is None:
                    self._connection = await self._connect()
                else:
                    await asyncio.to_thread(self._gate.attend)
                result = await self._command(self._connection, script)
        except TransportError:
            raise
        except TimeoutError as error:
            self._abort()
            raise TransportError(f"{address}: no answer within {timeout:.0f} s") from error
        except (OSError, asyncssh.Error) as error:
            self._abort()
            raise TransportError(f"{address}: connection lost: {_reason(error)}") from error
        except asyncio.CancelledError:
            self._abort()
            raise
        if result is None:
            self._abort()
            raise TransportError(f"{address}: connection lost before the command ended")
        return result

    async def close(self) -> None:
        """Close the connection; it may be closed already."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _command(self, connection: asyncssh.SSHClientConnection, script: str) -> CommandResult | None:
        """Run a script; a session that sshd refuses (MaxSessions) is requested again.

        :returns: None if the connection broke
        """
        attempt = 1
        while True:
            try:
                process = await connection.create_process(
                    self._remote_shell, encoding="utf-8", errors="replace"
                )
            except asyncssh.ChannelOpenError as error:
                await asyncio.sleep(0)  # a broken connection is closed in the loop's next turn
                if connection.is_closed():
                    raise
                if attempt == self._attempts:
                    self._abort()
                    raise SessionRefusedError(
                        f"{self._options.address}: session refused: {_reason(error)}"
                    ) from error
            else:
                with suppress(
                    BrokenPipeError
                ):  # the shell has ended: its message and exit status are available
                    process.stdin.write(script)
                    process.stdin.write_eof()
                output, errors = await asyncio.gather(self._read(process.stdout), self._read(process.stderr))
                await process.wait_closed()
                status = process.exit_status
                return None if status is None else CommandResult(status, output, errors)
            await asyncio.sleep(random.uniform(0.5, 1.5) * SESSION_PAUSE_S * attempt)
            attempt += 1

    async def _read(self, stream: asyncssh.SSHReader[str]) -> str:
        parts: list[str] = []
        size = 0
        while part := await stream.read(PART):
            parts.append(part)
            size += len(part)
            if size > limits.LONGEST_ANSWER:
                self._abort()
                raise LongAnswerError(self._options.address)
        return "".join(parts)

    async def _connect(self) -> asyncssh.SSHClientConnection:
        address, conn_id = self._options.address, self._options.conn_id
        options = client_options(self._options)
        await asyncio.to_thread(self._gate.enter)
        for attempt in range(1, self._attempts + 1):
            try:
                connection = await asyncssh.connect(**options)
            except asyncssh.HostKeyNotVerifiable as error:
                raise LoginRefusedError(host_key_refusal(self._options, _reason(error))) from error
            except asyncssh.PermissionDenied as error:
                message = (
                    f"{address}: login refused ({_reason(error)}); "
                    f"check login and key_file of connection {conn_id!r}"
                )
                raise await asyncio.to_thread(self._gate.refused, message) from error
            except asyncssh.KeyImportError as error:
                raise LoginRefusedError(
                    f"{address}: connection {conn_id!r}: {_key_files(self._options)} cannot be read: "
                    f"{_reason(error)}"
                ) from error
            except ValueError as error:
                raise LoginRefusedError(
                    f"{address}: key_file or known_hosts of connection {conn_id!r} cannot be read: {_reason(error)}"
                ) from error
            except (OSError, asyncssh.Error) as error:
                if attempt == self._attempts:
                    # asyncssh's own time limit raises an error without a text
                    timed_out = isinstance(error, TimeoutError) and not str(error)
                    within = f"no answer within {self._options.connect_timeout:g} s"
                    raise TransportError(
                        f"{address} cannot be reached: {within if timed_out else _reason(error)}; check host and "
                        f"port of connection {conn_id!r}"
                    ) from error
                await asyncio.sleep(random.uniform(0.5, 1.5) * attempt)
            else:
                await asyncio.to_thread(self._gate.accepted)
                return connection
        raise AssertionError("the last attempt raises")


def client_options(options: ConnectionOptions) -> dict[str, Any]:
    """Return the keyword arguments of ``asyncssh.connect``.

    :raises LoginRefusedError: if a key in the connection cannot be read
    """
    chosen: dict[str, Any] = {
        "host": options.host,
        "keepalive_interval": 30,
        "connect_timeout": options.connect_timeout,
        "login_timeout": 60,
    }
    given = {
        "port": options.port,
        "username": options.user,
        "password": options.password,
        "passphrase": options.passphrase,
        "proxy_command": options.proxy_command,
    }
    chosen |= {name: value for name, value in given.items() if value is not None}
    if options.ssh_config is not None:
        chosen["config"] = [str(options.ssh_config)]
    if options.private_key is not None:
        chosen["client_keys"] = [_private_key(options)]
    elif options.key_file is not None:
        chosen["client_keys"] = [str(options.key_file)]
    if not options.compress:
        chosen["compression_algs"] = None
    if options.host_key is not None:
        chosen["known_hosts"] = _only_host_key(options)
    elif not options.check_host_key:
        log.warning("connection %s does not check the host key of %s", options.conn_id, options.host)
        chosen["known_hosts"] = None
    elif options.known_hosts is not None:
        chosen["known_hosts"] = str(options.known_hosts)
    else:
        chosen["known_hosts"] = _usual_known_hosts(chosen)
    return chosen


def _usual_known_hosts(chosen: Mapping[str, Any]) -> list[str] | asyncssh.SSHKnownHosts:
    """Return the files in which OpenSSH would look up a host key.

    They are always passed: with ``UserKnownHostsFile none`` in an SSH configuration, asyncssh would check no host key.
    """
    configured = asyncssh.SSHClientConnectionOptions(
        **{name: chosen[name] for name in ("host", "port", "username") if name in chosen},
        config=chosen.get("config", ()),  # (): the user's own, as for asyncssh.connect
        client_keys=None,
        agent_path=None,
    ).known_hosts
    files = configured if isinstance(configured, list) else []
    paths = [Path(str(file)).expanduser() for file in files or KNOWN_HOSTS]
    return [str(path) for path in paths if path.is_file()] or asyncssh.import_known_hosts("")


def _private_key(options: ConnectionOptions) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(options.private_key or "", options.passphrase)
    except ValueError as error:
        raise LoginRefusedError(
            f"private_key of connection {options.conn_id!r} cannot be read: {_reason(error)}"
        ) from error


def _only_host_key(options: ConnectionOptions) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.import_known_hosts(f"* {options.host_key}\n")
    except ValueError as error:
        raise LoginRefusedError(
            f"host_key of connection {options.conn_id!r} cannot be read: {_reason(error)}"
        ) from error


def _key_files(options: ConnectionOptions) -> str:
    """Return the name of the file that should be a private key."""
    if options.key_file is None:
        return "a private key of the SSH configuration"
    is_public = options.key_file.suffix == ".pub"
    return f"key_file {options.key_file}{' (a public key: name the private one)' if is_public else ''}"


def _reason(error: BaseException) -> str:
    """Return the error's message, or its class name if the message is empty."""
    return str(getattr(error, "reason", "") or str(error) or type(error).__name__)
