"""One SSH connection of all processes of a machine, for clusters with a budget of logins.

It is a master connection of OpenSSH (``ControlMaster`` of ssh_config(5)); its socket is in a folder that only this
user can enter. No process of Airflow owns it: ``ssh`` continues in its own session when the process that opened it
ends. A process that finds the connection dead opens a new one, under a lock, if the budget permits.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.remote.file_lock import lock_file
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.trust.json_records import read_object, real

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_megatron.hooks.connection_options import ConnectionOptions

HOUR_S: Final = 3600.0
SHARED_IDLE_S: Final = 3600
"""Seconds without a command after which the connection ends."""
LONGEST_SOCKET: Final = 107 - len(".0123456789abcdef")
"""Maximum length in bytes: Linux binds paths of 107 bytes, of which ssh needs some for its temporary name of the
socket."""
_NAME_LENGTH: Final = 16


class SharedMaster:
    """The socket of the shared connection, and the record of its logins.

    :param options: the connection
    :param budget: maximum number of logins per hour
    :raises LoginRefusedError: if the folder may be another user's
    """

    def __init__(self, options: ConnectionOptions, budget: int) -> None:
        folder = private_folder()
        # everything that determines host, user and route of the connection
        own = [
            *(platform.node(), options.conn_id, options.address, options.private_key),
            *(options.key_file, options.ssh_config, options.proxy_command),
            *(options.host_key, options.known_hosts, options.check_host_key),
        ]
        name = hashlib.sha256(json.dumps(own, default=str).encode()).hexdigest()[:_NAME_LENGTH]
        self.socket = folder / name
        self._record = folder / f"{name}.logins"
        self._conn_id, self._address, self._budget = options.conn_id, options.address, budget

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[LoginBudget]:
        """Allow one process at a time to open the connection."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._record, flags, 0o600)
        try:
            await lock_file(file)
            yield LoginBudget(file, self._budget, f"{self._address}: connection {self._conn_id!r}")
        finally:
            os.close(file)


class LoginBudget:
    """The logins of the last hour, in a locked file.

    :param file: descriptor of the file
    :param budget: maximum number of logins per hour
    :param what: beginning of a message
    """

    def __init__(self, file: int, budget: int, what: str) -> None:
        self._file, self._budget, self._what = file, budget, what

    def check(self) -> None:
        """Return if a login may be tried now.

        :raises LoginExpiredError: if the budget is used up
        """
        logins = self._logins()
        if len(logins) < self._budget:
            return
        again = datetime.fromtimestamp(sorted(logins)[-self._budget] + HOUR_S, UTC)
        raise LoginExpiredError(
            f"{self._what} has ended, and its login_budget of {self._budget} an hour is used; the next login is tried "
            f"at {again:%H:%M} UTC"
        )

    def spend(self) -> None:
        """Count a login before it is tried, because the process may be killed during the try."""
        self._write([*self._logins(), time.time()])

    def refund(self) -> None:
        """Stop counting the last login, because it did not reach the login node."""
        self._write(self._logins()[:-1])

    def _logins(self) -> list[float]:
        text = os.pread(self._file, 1 << 20, 0).decode(errors="replace")
        times = (read_object(text) or {}).get("logins")
        found = [real(each, 0.0) for each in times] if isinstance(times, list) else []
        now = time.time()
        return [each for each in found if now - HOUR_S < each <= now]

    def _write(self, logins: list[float]) -> None:
        content = json.dumps({"logins": logins}).encode()
        os.pwrite(self._file, content.ljust(os.fstat(self._file).st_size), 0)


def private_folder() -> Path:
    """Return the folder of the sockets, which only this user can enter; create it if needed.

    It is ``ssh/`` in the folder of this machine's state, or a folder in ``/tmp`` if that path is too long for a socket.

    :raises LoginRefusedError: if it is another user's, or others can enter it
    """
    local = local_dir().absolute()
    folder = local / "ssh"
    if len(os.fsencode(folder)) + 1 + _NAME_LENGTH > LONGEST_SOCKET:
        own = hashlib.sha256(os.fsencode(local)).hexdigest()[:8]
        folder = Path(f"/tmp/airflow-megatron-{os.geteuid()}-{own}")
    try:
        local.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise LoginRefusedError(
            f"login_budget needs the folder {folder} for the shared connection: {error}"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise LoginRefusedError(
            f"{folder} is not a folder of this user alone, so that others could use the shared connection; remove it, "
            f"or run chmod 700 {folder}"
        )
    return folder
