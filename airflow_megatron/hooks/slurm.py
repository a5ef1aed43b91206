"""Hook that reaches a cluster's login node over SSH."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
from airflow.sdk import BaseHook

from airflow_megatron.slurm.profile import SlurmCommands
from airflow_megatron.slurm.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT_SSH_PORT = 22

# asyncssh reports every step of every connection as INFO, which would drown the task logs
logging.getLogger("asyncssh").setLevel(logging.WARNING)


class LoginRefusedError(TransportError):
    """The login node was reached, but its host key or our credentials were not accepted: trying again cannot help."""

    permanent = True


class AsyncsshTransport:
    """One SSH connection to a login node, opened on first use and again after it broke.

    :param hook: knows the connection and the remote shell
    """

    def __init__(self, hook: SlurmHook) -> None:
        self._hook = hook
        self._connection: asyncssh.SSHClientConnection | None = None

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run a script in the login node's shell; see :class:`~airflow_megatron.slurm.transport.Transport`."""
        try:
            async with asyncio.timeout(timeout):
                if self._connection is None:
                    self._connection = await self._hook.connect()
                result = await self._connection.run(
                    self._hook.commands.remote_shell(),
                    input=script,
                    check=False,
                    encoding="utf-8",
                    errors="replace",
                )
        except TransportError:
            raise
        except TimeoutError as error:
            self._abort()
            raise TransportError(f"{self._hook.address}: no answer within {timeout:.0f} s") from error
        except (OSError, asyncssh.Error) as error:
            self._abort()
            raise TransportError(f"{self._hook.address}: connection lost: {_reason(error)}") from error
        except asyncio.CancelledError:
            self._abort()
            raise
        if result.exit_status is None:
            # asyncssh returns what had arrived when the connection broke
            self._abort()
            raise TransportError(f"{self._hook.address}: connection lost before the command ended")
        return CommandResult(result.exit_status, str(result.stdout or ""), str(result.stderr or ""))

    async def close(self) -> None:
        """Close the connection; it may be closed already."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class SlurmHook(BaseHook):
    """Run scripts on the login node of a Slurm cluster.

    Uses a connection of type ``ssh`` with the extras of the SSH provider: ``key_file``, ``private_key``,
    ``private_key_passphrase``, ``host_key``, ``known_hosts``, ``no_host_key_check``, ``host_proxy_cmd``,
    ``conn_timeout``, ``compress``. The host key is always checked unless ``no_host_key_check`` says otherwise:
    against ``host_key``, else ``known_hosts``, else ``~/.ssh/known_hosts``. ``~/.ssh/config`` (ProxyJump) and the
    ssh-agent are honoured.

    :param ssh_conn_id: id of the Airflow connection
    :param commands: how Slurm's commands are found there
    :param conn_retry_attempts: connects before giving up; sshd refuses some of many simultaneous ones
    :param connection: the connection itself, for callers outside of tasks, which cannot look it up
    """

    conn_name_attr = "ssh_conn_id"
    default_conn_name = "ssh_default"
    conn_type = "ssh"
    hook_name = "Slurm over SSH"

    def __init__(
        self,
        ssh_conn_id: str = default_conn_name,
        commands: SlurmCommands | None = None,
        conn_retry_attempts: int = 5,
        connection: Connection | None = None,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self.commands = commands or SlurmCommands()
        self.conn_retry_attempts = conn_retry_attempts
        self.connection = connection
        self.address = f"connection {ssh_conn_id!r}"

    def run(self, script: str, *, timeout: float = 120.0) -> CommandResult:
        """Run one script over a connection of its own; for workers, which are not asynchronous.

        :raises TransportError: when the outcome is unknown
        """

        async def once() -> CommandResult:
            transport = AsyncsshTransport(self)
            try:
                return await transport.run(script, timeout=timeout)
            finally:
                await transport.close()

        return asyncio.run(once())

    async def transport(self) -> AsyncsshTransport:
        """Return a transport for long use; it connects on first use."""
        return AsyncsshTransport(self)

    def test_connection(self) -> tuple[bool, str]:
        """Answer the *Test* button: can the login node be reached, and does Slurm answer there."""
        try:
            result = self.run(f"{self.commands.command('sinfo')} --version", timeout=30)
        except TransportError as error:
            return False, str(error)
        if result.exit_status:
            return False, f"{self.address} is reached, but sinfo fails: {result.stderr.strip()}"
        return True, f"{self.address}: {result.stdout.strip()}"

    async def connect(self) -> asyncssh.SSHClientConnection:
        """Open an SSH connection.

        :raises LoginRefusedError: on a wrong host key or refused credentials
        :raises TransportError: when the login node cannot be reached
        """
        # in a thread: the only look-up that works in a triggerer and under `dags test` alike (Airflow 3.3.2)
        connection = await asyncio.to_thread(self._airflow_connection)
        if not connection.host:
            raise LoginRefusedError(
                f"connection {self.ssh_conn_id!r} names no host; give it the login node's name"
            )
        options = self._options(connection)
        self.address = f"{options.get('username') or ''}@{options['host']}:{options['port']}".lstrip("@")
        for attempt in range(1, self.conn_retry_attempts + 1):
            try:
                return await asyncssh.connect(**options)
            except asyncssh.HostKeyNotVerifiable as error:
                raise LoginRefusedError(
                    f"{self.address}: the login node's host key is not the one that connection {self.ssh_conn_id!r} "
                    f"trusts ({_reason(error)}); if the key changed for a good reason, put the new one into the "
                    "connection's host_key extra"
                ) from error
            except asyncssh.PermissionDenied as error:
                raise LoginRefusedError(
                    f"{self.address}: login refused ({_reason(error)}); check login and key_file of connection "
                    f"{self.ssh_conn_id!r}"
                ) from error
            except ValueError as error:
                raise LoginRefusedError(
                    f"{self.address}: key_file or known_hosts of connection {self.ssh_conn_id!r} cannot be read: "
                    f"{_reason(error)}"
                ) from error
            except (OSError, asyncssh.Error) as error:
                if attempt == self.conn_retry_attempts:
                    raise TransportError(
                        f"{self.address} cannot be reached: {_reason(error)}; check host and port of connection "
                        f"{self.ssh_conn_id!r}"
                    ) from error
                await asyncio.sleep(random.uniform(0.5, 1.5) * attempt)
        raise AssertionError("the last attempt raises")

    def _airflow_connection(self) -> Connection:
        if self.connection is not None:
            return self.connection
        try:
            return BaseHook.get_connection(self.ssh_conn_id)
        except Exception as error:
            raise LoginRefusedError(
                f"there is no Airflow connection {self.ssh_conn_id!r} ({_reason(error)}); add one of type ssh"
            ) from error

    def _options(self, connection: Connection) -> dict[str, Any]:
        """Translate an ``ssh`` connection into asyncssh's options."""
        extra = connection.extra_dejson
        port = connection.port or DEFAULT_SSH_PORT
        options: dict[str, Any] = {
            "host": connection.host,
            "port": port,
            "keepalive_interval": 30,
            "connect_timeout": float(extra.get("conn_timeout") or 15),
            "login_timeout": 60,
        }
        if connection.login:
            options["username"] = connection.login
        if connection.password:
            options["password"] = connection.password
        passphrase = extra.get("private_key_passphrase") or extra.get("passphrase") or None
        if passphrase:
            options["passphrase"] = passphrase
        if extra.get("private_key"):
            options["client_keys"] = [self._private_key(extra["private_key"], passphrase)]
        elif extra.get("key_file"):
            key_file = Path(extra["key_file"]).expanduser()
            if not key_file.is_file():
                raise LoginRefusedError(
                    f"key_file {key_file} of connection {self.ssh_conn_id!r} does not exist"
                )
            options["client_keys"] = [str(key_file)]
        if extra.get("host_proxy_cmd"):
            options["proxy_command"] = extra["host_proxy_cmd"]
        if str(extra.get("compress", "true")).lower() == "false":
            options["compression_algs"] = None
        options |= self._host_key_options(extra, str(connection.host), port)
        return options

    def _private_key(self, text: str, passphrase: str | None) -> asyncssh.SSHKey:
        try:
            return asyncssh.import_private_key(text, passphrase)
        except ValueError as error:
            raise LoginRefusedError(
                f"private_key of connection {self.ssh_conn_id!r} cannot be read: {_reason(error)}"
            ) from error

    def _host_key_options(self, extra: dict[str, Any], host: str, port: int) -> dict[str, Any]:
        if extra.get("host_key"):
            words = str(extra["host_key"]).split()
            key = " ".join(words[:2]) if len(words) > 1 else f"ssh-rsa {words[0]}"
            name = host if port == DEFAULT_SSH_PORT else f"[{host}]:{port}"
            try:
                return {"known_hosts": asyncssh.import_known_hosts(f"{name} {key}\n")}
            except ValueError as error:
                raise LoginRefusedError(
                    f"host_key of connection {self.ssh_conn_id!r} cannot be read: {_reason(error)}"
                ) from error
        if str(extra.get("no_host_key_check", "false")).lower() == "true":
            self.log.warning("connection %s does not check the host key of %s", self.ssh_conn_id, host)
            return {"known_hosts": None}
        if extra.get("known_hosts"):
            return {"known_hosts": str(Path(extra["known_hosts"]).expanduser())}
        return {}


def _reason(error: BaseException) -> str:
    """Return the error's own words, or its kind when it has none."""
    return str(getattr(error, "reason", "") or error or type(error).__name__)
