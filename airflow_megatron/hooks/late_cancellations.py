"""Background task of a process that carries out remembered cancellations after the login node is available again."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import logging
import random
import weakref
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.stage_records import RemoteWriteError
from airflow_megatron.supervision.submission.remembered_cancellations import (
    cancel_attempt,
    carry_out,
    remember,
    remembered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_megatron.supervision.submission.remembered_cancellations import Cancellation

PAUSE_S: Final = 60.0
"""Seconds between two tries; :mod:`.login_gate` makes logins rarer while they are refused."""
STEP_S: Final = 60.0

log = logging.getLogger(__name__)

_tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = weakref.WeakKeyDictionary()
_asked: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""Event loops whose task must look once more before it ends."""


def carry_out_later() -> None:
    """Let the task of this event loop carry out the remembered cancellations of all processes; start it if needed.

    After an outage there can be thousands, so only threads read their files.
    """
    loop = asyncio.get_running_loop()
    _asked.add(loop)
    task = _tasks.get(loop)
    if task is None or task.done():
        # an empty context keeps the messages out of the log of the task that happens to start it
        _tasks[loop] = loop.create_task(
            _retry_until_done(), name="late cancellations", context=contextvars.Context()
        )


async def cancel_killed(
    cancellation: Cancellation,
    hook: SlurmHook,
    task_log: Any,
    *,
    taken: int,
    step_s: float,
    cancelled: Callable[[], None] | None = None,
) -> bool:
    """Cancel the job of a killed task, unless the stage uses it again.

    :param hook: the connection to the login node
    :param task_log: the task's logger
    :param taken: as for :func:`~airflow_megatron.supervision.submission.remembered_cancellations.remember`
    :param step_s: time limit of a remote command in seconds
    :param cancelled: called if the job was in Slurm and is cancelled
    :return: False if the job may still be in Slurm
    """
    what = f"job {cancellation.job}"
    cancel, afterwards = carry_out, f"it is cancelled when {cancellation.ssh_conn_id!r} can be reached again"
    try:
        if not await asyncio.to_thread(remember, cancellation, taken):
            task_log.info("%s is not cancelled: its stage uses it again", what)
            return True
    except OSError as error:
        task_log.warning("the cancellation of %s cannot be remembered: %s", what, error)
        cancel, afterwards = (
            cancel_attempt,
            f"use scancel {cancellation.job_id or f'-n {cancellation.job_name}'}",
        )
    try:
        async with hook.connected() as transport:
            if await cancel(cancellation, transport, step_s=step_s):
                task_log.info("cancelled %s", what)
                if cancelled is not None:
                    cancelled()
    except TransportError as error:
        task_log.error("%s could not be cancelled: %s; %s", what, error, afterwards)
        return False
    except RemoteWriteError as error:
        task_log.error("the cancellation of %s could not be recorded: %s", what, error)
    return True


async def carry_out_all(cancellations: Iterable[Cancellation]) -> list[str]:
    """Carry out cancellations of one connection; return the names of the jobs that were still in Slurm.

    :raises TransportError: if some remain
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
                        log.warning("cancelled job %s (%s), as remembered", each.job, each.job_name)
                        names.append(each.job_name)
                except RemoteWriteError as error:
                    log.error("the cancellation of job %s could not be recorded: %s", each.job, error)
    return names


async def _retry_until_done() -> None:
    loop = asyncio.get_running_loop()
    logged: set[str] = set()
    while loop in _asked:
        _asked.discard(loop)
        while left := await asyncio.to_thread(remembered):
            for conn_id in sorted({each.ssh_conn_id for each in left}):
                await _try_over(conn_id, left, logged)
            if await asyncio.to_thread(remembered):
                await asyncio.sleep(PAUSE_S * random.uniform(0.75, 1.25))


async def _try_over(conn_id: str, cancellations: Iterable[Cancellation], logged: set[str]) -> None:
    """Carry out the cancellations of one connection, as far as that is possible now.

    :param logged: connections whose failure is logged already
    """
    try:
        await carry_out_all(each for each in cancellations if each.ssh_conn_id == conn_id)
    except (TransportError, OSError, TypeError, ValueError) as error:
        if conn_id not in logged:
            log.warning("jobs are cancelled later, over connection %r: %s", conn_id, error)
            logged.add(conn_id)
    else:
        logged.discard(conn_id)


def _cluster(cancellation: Cancellation) -> tuple[str, str]:
    return cancellation.ssh_conn_id, json.dumps(cancellation.commands, sort_keys=True)
