"""Hook that reaches a cluster's login node over SSH."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.connection_options import ConnectionOptions
from airflow_megatron.hooks.kept_connection import kept_connection
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.transport import (
    CommandResult,
    LoginRefusedError,
    Transport,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from airflow.sdk import Connection

    from airflow_megatron.slurm.remote.profile import SlurmCommands

SCRIPT_TIMEOUT_S: Final = 120.0
JOBS_DIR: Final = "airflow-jobs"
"""Directory of jobs outside of sweeps, in the user's home."""


class SlurmHook(BaseHook):
    """Run scripts on the login node of a Slurm cluster.

    Uses a connection of type ``slurm`` or ``ssh`` with the extras of the SSH provider (``key_file``,
    ``private_key``, ``private_key_passphrase``, ``host_key``, ``known_hosts``, ``no_host_key_check``,
    ``host_proxy_cmd``, ``conn_timeout``, ``compress``) and some of its own: ``transport``, ``control_path``,
    ``renew_command``, ``login_patience``, ``ssh_config``, ``work_dir``, ``slurm_bin``, ``login_shell``,
    ``restricted``; see :class:`~airflow_megatron.hooks.connection_options.ConnectionOptions`. The host key is checked
    unless ``no_host_key_check`` is true: against ``host_key``, else ``known_hosts``, else ``~/.ssh/known_hosts``.

    :param ssh_conn_id: id of the Airflow connection
    :param commands: how Slurm's commands are found there; default: as set in the connection
    :param conn_retry_attempts: connects before giving up; sshd refuses some of many simultaneous ones
    :param connection: the connection itself, for callers outside of tasks, which cannot look it up
    :param kept: whether :meth:`run` keeps its connection for the scripts that the task runs next
    """

    conn_name_attr = "ssh_conn_id"
    default_conn_name = "slurm_default"
    conn_type = "slurm"
    hook_name = "Slurm"

    def __init__(
        self,
        ssh_conn_id: str = default_conn_name,
        commands: SlurmCommands | None = None,
        conn_retry_attempts: int = 5,
        connection: Connection | None = None,
        *,
        kept: bool = False,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self._commands = commands
        self.conn_retry_attempts = conn_retry_attempts
        self.connection = connection
        self.kept = kept

    @property
    def commands(self) -> SlurmCommands:
        """How Slurm's commands are found.

        :raises LoginRefusedError: if the connection is needed for that and is invalid
        """
        if self._commands is None:
            self._commands = self.options().commands
        return self._commands

    def run(self, script: str, *, timeout: float = SCRIPT_TIMEOUT_S) -> CommandResult:
        """Run one script, over a separate connection unless ``kept``; for workers, which are not asynchronous.

        :raises TransportError: when the outcome is unknown
        """
        if self.kept:
            return kept_connection((self.ssh_conn_id, self._commands), self.transport).run(
                script, timeout=timeout
            )

        async def once() -> CommandResult:
            async with self.connected() as transport:
                return await transport.run(script, timeout=timeout)

        return asyncio.run(once())

    @classmethod
    def named(
        cls, slurm_conn_id: str | None, ssh_conn_id: str | None, cluster: str | None = None
    ) -> SlurmHook | None:
        """Return the hook for the connection that a task names, default ``slurm_default``; None for a cluster profile.

        :param cluster: name of a cluster profile
        :raises AirflowFailException: if the task names several
        """
        conn_ids = [name for name in (slurm_conn_id, ssh_conn_id) if name]
        if len(conn_ids) + bool(cluster) > 1:
            raise AirflowFailException("give one of slurm_conn_id, ssh_conn_id and cluster")
        return None if cluster else cls(conn_ids[0] if conn_ids else cls.default_conn_name)

    def work_dir(self) -> str:
        """Return the directory of jobs outside of sweeps: the connection's, else ``airflow-jobs`` in the user's home.

        :raises TransportError: if the login node does not answer, or the home does not exist
        """
        named = self.options().work_dir
        if named is not None:
            return named
        result = self.run(framed("cd && pwd -P"))
        home = next(iter(unframed(result)), "")
        if not home.startswith("/"):
            raise TransportError(
                f"the account of connection {self.ssh_conn_id!r} has no home directory on the login node "
                f"({result.stderr.strip() or 'no message'}); set work_dir of the connection"
            )
        return f"{home.rstrip('/')}/{JOBS_DIR}"

    @contextmanager
    def session(self, timeout: float = SCRIPT_TIMEOUT_S) -> Iterator[Callable[[str], CommandResult]]:
        """Yield a function that runs scripts like :meth:`run`, all over one connection, for frequent polls.

        The connection is opened on first use. If it breaks between two scripts, the second is run again over a new
        connection, so scripts must be idempotent.

        :param timeout: time limit of a script in seconds
        :raises LoginRefusedError: if the Airflow connection cannot be used
        """
        with asyncio.Runner() as runner:
            transport = runner.run(self.transport())
            has_answered = False

            def run(script: str) -> CommandResult:
                nonlocal has_answered
                may_be_stale, has_answered = has_answered, False
                try:
                    result = runner.run(transport.run(script, timeout=timeout))
                except LoginRefusedError:
                    raise
                except TransportError:
                    if not may_be_stale:
                        raise
                    result = runner.run(transport.run(script, timeout=timeout))
                has_answered = True
                return result

            try:
                yield run
            finally:
                runner.run(transport.close())

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Transport]:
        """Yield a transport, which is closed at the end of the context.

        :raises LoginRefusedError: if the Airflow connection cannot be used
        """
        transport = await self.transport()
        try:
            yield transport
        finally:
            await transport.close()

    async def transport(self) -> Transport:
        """Return a transport for long use; it connects on first use.

        :raises LoginRefusedError: if the Airflow connection cannot be used
        """
        # in a thread: only this look-up works both in a triggerer and under `dags test` (Airflow 3.3.2)
        options = await asyncio.to_thread(self.options)
        # imported here, because the import takes 0.25 s and every task's process imports its DAG's operators
        commands = self._commands or options.commands
        if options.restricted:
            from airflow_megatron.hooks.restricted.requests import RestrictedTransport, remote_command

            return RestrictedTransport(
                self._over(options, remote_command(commands), commands.login_budget),
                commands,
                self.ssh_conn_id,
            )
        return self._over(options, commands.remote_shell(), commands.login_budget)

    def _over(self, options: ConnectionOptions, remote_shell: str, login_budget: int) -> Transport:
        """Return a transport that runs a command line and feeds it each script."""
        # processes can share only OpenSSH's connections
        if options.transport == "openssh" or login_budget:
            from airflow_megatron.hooks.openssh_transport import OpensshTransport

            return OpensshTransport(options, remote_shell, self.conn_retry_attempts, login_budget)
        from airflow_megatron.hooks.asyncssh_transport import AsyncsshTransport

        return AsyncsshTransport(options, remote_shell, self.conn_retry_attempts)

    def options(self) -> ConnectionOptions:
        """Look up the Airflow connection.

        :raises LoginRefusedError: if it does not exist or is invalid
        """
        return ConnectionOptions.of(self.looked_up(), self.ssh_conn_id)

    def looked_up(self) -> Connection:
        """Look up the Airflow connection, unless it was given.

        :raises LoginRefusedError: if it does not exist
        """
        if self.connection is not None:
            return self.connection
        try:
            return BaseHook.get_connection(self.ssh_conn_id)
        except Exception as error:
            raise LoginRefusedError(
                f"there is no Airflow connection {self.ssh_conn_id!r} ({error}); add one of type slurm or ssh"
            ) from error

    def test_connection(self) -> tuple[bool, str]:
        """Test for the *Test* button whether the login node can be reached and Slurm answers there."""
        try:
            address = self.options().address
            result = self.run(f"{self.commands.command('sinfo')} --version", timeout=30)
        except TransportError as error:
            return False, str(error)
        if result.exit_status:
            return False, f"{address} is reached, but sinfo fails: {result.stderr.strip()}"
        return True, f"{address}: {result.stdout.strip()}"
