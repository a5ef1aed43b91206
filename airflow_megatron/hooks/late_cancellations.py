"""Remembered cancellations are carried out when the login node answers again; one task of a process's event loop."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import logging
import random
import weakref
from typing import TYPE_CHECKING, Final

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.stage_records import RemoteWriteError
from airflow_megatron.supervision.submission.remembered_cancellations import carry_out, remembered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.supervision.submission.remembered_cancellations import Cancellation

PAUSE_S: Final = 60.0
"""Seconds between two tries; the gate of the login makes real ones rarer while it is refused."""
STEP_S: Final = 60.0

log = logging.getLogger(__name__)

_tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = weakref.WeakKeyDictionary()


def carry_out_later() -> None:
    """Make sure that a task of the running event loop carries out what is remembered, by any process, until all is."""
    loop = asyncio.get_running_loop()
    task = _tasks.get(loop)
    if (task is None or task.done()) and remembered():
        # an empty context keeps the messages out of the log of the task that happens to start it
        _tasks[loop] = loop.create_task(
            _until_all_are(), name="late cancellations", context=contextvars.Context()
        )


async def carry_out_all(cancellations: Iterable[Cancellation]) -> list[str]:
    """Carry out cancellations of one connection; return the names of the jobs that were still in Slurm.

    :raises TransportError: when some remain
    """
    names: list[str] = []
    ordered = sorted(cancellations, key=_cluster)
    for _, group in itertools.groupby(ordered, key=_cluster):
        of_cluster = list(group)
        hook = SlurmHook(of_cluster[0].ssh_conn_id, SlurmCommands.from_json(of_cluster[0].commands))
        async with hook.connected() as transport:
            for each in of_cluster:
                try:
                    if await carry_out(each, transport, step_s=STEP_S):
                        log.warning("cancelled job %s (%s), as remembered", each.job_id, each.job_name)
                        names.append(each.job_name)
                except RemoteWriteError as error:
                    log.error("the cancellation of job %s could not be recorded: %s", each.job_id, error)
    return names


async def _until_all_are() -> None:
    logged: set[str] = set()
    while left := await asyncio.to_thread(remembered):
        for conn_id in sorted({each.ssh_conn_id for each in left}):
            try:
                await carry_out_all(each for each in left if each.ssh_conn_id == conn_id)
            except (TransportError, OSError, TypeError, ValueError) as error:
                if conn_id not in logged:
                    log.warning("jobs are cancelled later, over connection %r: %s", conn_id, error)
                    logged.add(conn_id)
            else:
                logged.discard(conn_id)
        if await asyncio.to_thread(remembered):
            await asyncio.sleep(PAUSE_S * random.uniform(0.75, 1.25))


def _cluster(cancellation: Cancellation) -> tuple[str, str]:
    return cancellation.ssh_conn_id, json.dumps(cancellation.commands, sort_keys=True)
