"""Process that cancels the job of a killed task if the task's own process is ended before it has done so.

Airflow ends a task's process, with its process group, 5 s after SIGTERM. A login to a busy login node may take longer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_megatron.supervision.submission.remembered_cancellations import Cancellation

GRACE_S: Final = 60.0
"""Seconds after which the process no longer waits for the end of the task's process."""
TRIED_FOR_S: Final = 1800.0
"""Seconds for which the cancellation is tried; after that it stays remembered."""
PAUSE_S: Final = 15.0
STEP_S: Final = 60.0
LOG_NAME: Final = "cancellations.log"
_START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from airflow_megatron.hooks.cancellation_process import main; main()"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CancellationOrder:
    """What the process needs; it is sent over a pipe, because it contains the login.

    :param cancellation: the cancellation
    :param connection: JSON of the Airflow connection to the login node
    :param taken: as for :func:`~airflow_megatron.supervision.submission.remembered_cancellations.remember`
    """

    cancellation: Cancellation
    connection: str
    taken: int

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, in a session of its own; it waits until this process calls :func:`release` or has ended.

        :raises OSError: if no process can be started
        """
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(self)).encode() + b"\n")
        process.stdin.flush()
        return process


def release(process: subprocess.Popen[bytes]) -> None:
    """End a started process, because the job is cancelled."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(b"done\n")
        process.stdin.close()


def main() -> None:
    """Read an order, wait until the task's process has ended, and carry the order out unless it was released."""
    received, deadline = b"", time.monotonic() + GRACE_S
    while select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        received += piece
    order, _, released = received.partition(b"\n")
    if order and not released:
        asyncio.run(_carry_out(json.loads(order)))


async def _carry_out(order: dict[str, Any]) -> None:
    # imported here, because a process that is released needs none of it
    from airflow.sdk import Connection

    from airflow_megatron.hooks.late_cancellations import cancel_killed
    from airflow_megatron.hooks.slurm import SlurmHook
    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.supervision.submission.remembered_cancellations import (
        Cancellation,
        cancellations_dir,
    )

    os.umask(0o077)
    cancellations_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.basicConfig(
        filename=cancellations_dir() / LOG_NAME,
        format="%(asctime)s %(levelname)s %(message)s",
        level=logging.WARNING,
        force=True,
    )
    log.setLevel(logging.INFO)
    cancellation = Cancellation.from_json(order["cancellation"])
    if cancellation is None:
        return
    conn_id = cancellation.ssh_conn_id
    connection = Connection.from_json(order["connection"], conn_id=conn_id)
    hook = SlurmHook(conn_id, SlurmCommands.from_json(cancellation.commands), connection=connection)
    log.info("%s: its task's process has ended before the cancellation", cancellation.job_name)
    deadline = time.monotonic() + TRIED_FOR_S
    while not await cancel_killed(cancellation, hook, log, taken=order["taken"], step_s=STEP_S):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(PAUSE_S * random.uniform(0.75, 1.25))
