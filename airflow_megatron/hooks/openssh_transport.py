"""SSH by the system's ``ssh``, for features of OpenSSH: master connections behind a second factor, hardware keys."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.hooks.connection_options import host_key_refusal
from airflow_megatron.hooks.login_gate import LoginGate
from airflow_megatron.hooks.shared_master import SHARED_IDLE_S, SharedMaster
from airflow_megatron.slurm.remote import transport as limits
from airflow_megatron.slurm.remote.framing import END
from airflow_megatron.slurm.remote.transport import (
    CommandResult,
    LoginRefusedError,
    LongAnswerError,
    SessionRefusedError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.hooks.connection_options import ConnectionOptions
    from airflow_megatron.hooks.shared_master import LoginBudget

SSH_FAILED = 255
"""Exit status of ssh(1) when the connection, not the command, failed."""

MASTER_IDLE_S = 120
"""Seconds for which our own master outlives a process that was killed before closing it."""

SESSION_PAUSE_S = 0.5
CONTROL_TIMEOUT_S = 10.0
SIZE_CHECK_S = 0.5
"""Seconds between two checks of the size of an answer."""
_HOST_KEY_TROUBLE = ("host key verification failed", "remote host identification has changed")
_REFUSED = ("permission denied", "too many authentication failures")
_UNUSABLE = ("bad configuration option", "invalid format", "error in libcrypto", "bad owner or permissions")
_SESSION_REFUSED = "session open refused by peer"


class _TooLongError(AirflowMegatronError):
    """An ssh process has written more than :data:`LONGEST_ANSWER`."""


@dataclass(frozen=True)
class _Ended:
    """How a local ssh process ended."""

    status: int
    stdout: str
    stderr: str

    def mentions(self, *texts: str) -> bool:
        messages = self.stderr.lower()
        return any(text in messages for text in texts)

    @property
    def session_refused(self) -> bool:
        return self.status == SSH_FAILED and self.mentions(_SESSION_REFUSED)

    @property
    def reason(self) -> str:
        """The last line with the reason."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"ssh ended with {self.status} and no message"


class OpensshTransport:
    """Commands through one master connection (``ControlMaster`` of ssh_config(5)).

    A master that a user opened, at ``control_path`` or at the ``ControlPath`` of the SSH configuration, is used while
    it is alive, and never closed. Without one, the transport opens its own master without prompts (``BatchMode``) and
    ends it in :meth:`close`. With ``control_path`` it opens none, because sites with a second factor lock accounts
    after several failed logins. With *login_budget* all processes of the machine share one master
    (:mod:`.shared_master`), which stays open.

    :param options: the Airflow connection
    :param remote_shell: command line that runs a script given on its standard input
    :param attempts: connects before giving up; sshd refuses some of many simultaneous ones (MaxStartups)
    :param login_budget: maximum logins per hour of all processes of the machine; 0 for no limit and separate masters
    """

    def __init__(
        self,
        options: ConnectionOptions,
        remote_shell: str,
        attempts: int = 5,
        login_budget: int = 0,
    ) -> None:
        self._options = options
        self._remote_shell = remote_shell
        self._attempts = attempts
        self._login_budget = login_budget
        self._sessions_are_used = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._base: list[str] = []
        self._master: list[str] | None = None
        self._gate = LoginGate(options)

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run a script in the login node's shell; see :class:`~airflow_megatron.slurm.remote.transport.Transport`."""
        address = self._options.address
        try:
            async with asyncio.timeout(timeout):
                if self._master is None:
                    self._master = await self._find_or_open_master()
                else:
                    await asyncio.to_thread(self._gate.attend)
                ended = await self._command(self._master, script)
        except TimeoutError as error:
            await self._drop_master()
            why = ", all sessions of the shared connection are used" if self._sessions_are_used else ""
            raise TransportError(f"{address}: no answer within {timeout:.0f} s{why}") from error
        except _TooLongError:
            raise LongAnswerError(address) from None
        except asyncio.CancelledError:
            await self._drop_master()
            raise
        # a script can itself end with 255; its frame is then complete
        if ended.status == SSH_FAILED and END not in ended.stdout:
            await self._drop_master()
            if ended.session_refused:
                raise SessionRefusedError(f"{address}: session refused: {ended.reason}")
            raise TransportError(f"{address}: connection lost: {ended.reason}")
        return CommandResult(ended.status, ended.stdout, ended.stderr)

    async def close(self) -> None:
        """Close our own master connection; a user's and the shared one stay open."""
        await self._drop_master()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _command(self, master: list[str], script: str) -> _Ended:
        """Run a script through the master; a session that sshd refuses (MaxSessions) is requested again."""
        # without its master, ssh would log in for each command, which fails with a second factor
        words = ["-T", "-o", "ProxyCommand=false", "-o", "ControlMaster=no", *self._base, *master]
        for attempt in itertools.count(1):
            ended = await _ssh([*words, "--", self._options.host, self._remote_shell], script)
            self._sessions_are_used = ended.session_refused
            # other processes use the shared connection too and will free sessions
            if not ended.session_refused or (attempt == self._attempts and not self._login_budget):
                return ended
            await asyncio.sleep(random.uniform(0.5, 1.5) * SESSION_PAUSE_S * min(attempt, 5))
        raise AssertionError("the last attempt returns")

    async def _find_or_open_master(self) -> list[str]:
        """Return the options for a master that is alive."""
        if self._folder is None:
            # not TMPDIR: the path of a socket can have some 100 characters only
            folder = tempfile.TemporaryDirectory(prefix="airflow-megatron-", dir="/tmp")
            try:
                self._base = client_words(self._options, Path(folder.name))
            except BaseException:
                folder.cleanup()  # the next command must not log in without the options
                raise
            self._folder = folder
        if self._options.control_path is not None:
            given = ["-S", self._options.control_path]
            if not await self._is_alive(given):
                message = (
                    f"{self._options.address}: no login session is open at control_path "
                    f"{self._options.control_path} of connection {self._options.conn_id!r}; log in once with: "
                    f"{self._login_command()}"
                )
                await asyncio.to_thread(self._gate.no_session, message)
                raise TransportError(message)
            await asyncio.to_thread(self._gate.accepted)
            return given
        if await self._is_alive([]):
            return []
        if self._login_budget:
            return await self._find_or_open_shared_master(SharedMaster(self._options, self._login_budget))
        return await self._open_master(["-S", f"{self._folder.name}/master"])

    async def _find_or_open_shared_master(self, shared: SharedMaster) -> list[str]:
        master = ["-S", str(shared.socket).replace("%", "%%")]
        if await self._is_alive(master):
            return master
        async with shared.locked() as budget:
            if await self._is_alive(master):
                return master
            budget.check()
            shared.socket.unlink(missing_ok=True)
            return await self._open_master(master, budget)

    async def _is_alive(self, master: list[str]) -> bool:
        """Return whether a master listens; without *master*, at the configuration's ControlPath."""
        ended = await _ssh([*self._base, *master, "-O", "check", "--", self._options.host])
        if ended.mentions(*_UNUSABLE):
            raise LoginRefusedError(f"connection {self._options.conn_id!r} cannot be used: {ended.reason}")
        return ended.status == 0

    async def _open_master(self, master: list[str], budget: LoginBudget | None = None) -> list[str]:
        address, conn_id = self._options.address, self._options.conn_id
        idle_s = SHARED_IDLE_S if budget else MASTER_IDLE_S
        words = [*self._base, *master, "-o", "ControlMaster=yes", "-o", f"ControlPersist={idle_s}"]
        await asyncio.to_thread(self._gate.enter)
        if budget:
            budget.spend()
        for attempt in range(1, self._attempts + 1):
            ended = await _ssh([*words, "-f", "-N", "--", self._options.host])
            if ended.status == 0:
                await asyncio.to_thread(self._gate.accepted)
                return master
            if ended.mentions(*_HOST_KEY_TROUBLE):
                raise LoginRefusedError(host_key_refusal(self._options, ended.reason))
            if ended.mentions(*_REFUSED):
                message = (
                    f"{address}: login refused ({ended.reason}); check login and key_file of connection {conn_id!r} "
                    f"and the ssh-agent; if the site requires a second factor, log in once with: "
                    f"{self._login_command()}"
                )
                raise await asyncio.to_thread(self._gate.refused, message)
            if ended.mentions(*_UNUSABLE):
                raise LoginRefusedError(f"{address}: connection {conn_id!r} cannot be used: {ended.reason}")
            if attempt == self._attempts:
                if budget:
                    budget.refund()
                raise TransportError(
                    f"{address} cannot be reached: {ended.reason}; check host and port of connection {conn_id!r}"
                )
            await asyncio.sleep(random.uniform(0.5, 1.5) * attempt)
        raise AssertionError("the last attempt raises")

    def _login_command(self) -> str:
        options = self._options
        words = ["ssh", "-M", "-f", "-N"]
        words += ["-S", options.control_path or str(Path.home() / ".ssh" / "airflow-megatron.socket")]
        words += ["-p", str(options.port)] if options.port else []
        target = f"{options.user}@{options.host}" if options.user else options.host
        command = shlex.join([*words, target])
        hint = "" if options.control_path else " and name the socket in the connection's control_path extra"
        return command + hint

    async def _drop_master(self) -> None:
        """Forget the master; end it if it is ours, because its connection may be half open."""
        master, self._master = self._master, None
        if self._folder is None or (master is not None and self._folder.name not in " ".join(master)):
            return
        own = ["-S", f"{self._folder.name}/master"]
        if Path(own[1]).exists():
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_S):
                    await _ssh([*self._base, *own, "-O", "exit", "--", self._options.host])
            except TimeoutError:
                Path(own[1]).unlink(missing_ok=True)


def client_words(options: ConnectionOptions, folder: Path) -> list[str]:
    """Return the options of ``ssh`` for the connection.

    :param folder: private directory for keys that the connection contains as text
    :raises LoginRefusedError: for credentials that ssh can only read from a terminal
    """
    if options.password is not None or options.passphrase is not None:
        raise LoginRefusedError(
            f"connection {options.conn_id!r}: transport openssh cannot type a password or passphrase; add the key to "
            "the ssh-agent, or open a master connection and name its socket in control_path"
        )
    words: list[str] = []
    if options.ssh_config is not None:
        words += ["-F", str(options.ssh_config)]
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": f"{options.connect_timeout:.0f}",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "3",
        "LogLevel": "ERROR",
        "StrictHostKeyChecking": "yes" if options.check_host_key or options.host_key else "no",
        # the user's configuration may disable the check for localhost, through which tunnels connect
        "NoHostAuthenticationForLocalhost": "no",
    }
    if options.host_key is not None:
        settings |= _host_key_files(_written(folder / "host_key", f"* {options.host_key}\n"))
    elif not options.check_host_key:
        settings |= _host_key_files(Path("/dev/null"))
    elif options.known_hosts is not None:
        settings |= _host_key_files(options.known_hosts)
    key_file = options.key_file
    if options.private_key is not None:
        key_file = _written(folder / "key", options.private_key.rstrip("\n") + "\n")
    if key_file is not None:
        settings |= {"IdentityFile": _quoted(key_file), "IdentitiesOnly": "yes"}
    if options.proxy_command is not None:
        settings["ProxyCommand"] = options.proxy_command
    if not options.compress:
        settings["Compression"] = "no"
    words += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    words += ["-p", str(options.port)] if options.port else []
    words += ["-l", options.user] if options.user else []
    return words


def _host_key_files(path: Path) -> dict[str, str]:
    return {"UserKnownHostsFile": _quoted(path), "GlobalKnownHostsFile": "/dev/null"}


def _quoted(path: Path) -> str:
    """Return a path as one word of ssh_config(5), where ``%`` begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _written(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _in_memory() -> IO[bytes]:
    """Return a new file without a name, in memory if the system supports it."""
    return (
        os.fdopen(os.memfd_create("script"), "w+b")
        if hasattr(os, "memfd_create")
        else tempfile.TemporaryFile()
    )


async def _end(process: asyncio.subprocess.Process, *output: IO[bytes]) -> int:
    """Return the exit status of a process that writes to files, unless it writes too much.

    :raises _TooLongError: if a file is longer than the limit
    """
    ended = asyncio.ensure_future(process.wait())
    try:
        while not ended.done():
            await asyncio.wait({ended}, timeout=SIZE_CHECK_S)
            if any(os.fstat(file.fileno()).st_size > limits.LONGEST_ANSWER for file in output):
                raise _TooLongError
    finally:
        ended.cancel()
    return ended.result()


async def _ssh(words: Sequence[str], script: str = "") -> _Ended:
    """Run ssh; it is killed when the caller stops waiting.

    Its input and output are files, because a master connection inherits them and would keep pipes open until it ends
    or detects that its connection is dead.

    :param script: its standard input, which is never written to a disk, because it may contain secrets
    :raises LoginRefusedError: if this machine has no ssh
    """
    with (
        _in_memory() as given,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(script.encode())
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                "ssh", *words, stdin=given, stdout=answer, stderr=errors
            )
        except FileNotFoundError:
            raise LoginRefusedError(
                "transport openssh needs the command ssh; install an OpenSSH client"
            ) from None
        try:
            status = await _end(process, answer, errors)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answer.seek(0)
        errors.seek(0)
        return _Ended(status, answer.read().decode(errors="replace"), errors.read().decode(errors="replace"))
