"""Trigger that waits for the runs of a point DAG."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TriggerEvent
from asgiref.sync import sync_to_async

from airflow_megatron.slurm.polling.pacing import CALM_SHARE
from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

UNDER_WAY = ("queued", "running")
RUN_IDS_IN_ONE_QUESTION = 100
"""Maximum number of ids in one request; they are part of a URL of limited length."""

SHORTEST_PAUSE_S = 1.0
SHARE_OF_TIME = 0.02
"""Maximum share of the time that queries take; thousands of runs need many requests."""


def count_runs(dag_id: str, run_ids: Sequence[str], states: Sequence[str] | None = None) -> int:
    """Return how many of the runs are in one of the states; default: how many exist."""
    total = 0
    for start in range(0, len(run_ids), RUN_IDS_IN_ONE_QUESTION):
        chunk = list(run_ids[start : start + RUN_IDS_IN_ONE_QUESTION])
        total += RuntimeTaskInstance.get_dr_count(
            dag_id=dag_id, run_ids=chunk, states=None if states is None else list(states)
        )
    return total


def count_ended_runs(dag_id: str, run_ids: Sequence[str]) -> int:
    """Return how many of the runs have ended; a run that a user has deleted counts, because it will never end."""
    return len(run_ids) - count_runs(dag_id, run_ids, UNDER_WAY)


class PointRunsTrigger(DeferringTrigger):
    """Wait until every run has ended.

    Yields one event: ``{"ended": number of runs}``.

    :param dag_id: the point DAG
    :param run_ids: its runs
    :param poll_interval: maximum seconds between two queries of Airflow's database; the pause is shorter after a run
        has ended, and if a query takes little time
    :param base: as for :class:`~airflow_megatron.task_runtime.deferring_trigger.DeferringTrigger`
    """

    def __init__(
        self, *, dag_id: str, run_ids: Sequence[str], poll_interval: float = 15.0, **base: Any
    ) -> None:
        super().__init__(**base)
        self.dag_id = dag_id
        self.run_ids = list(run_ids)
        self.poll_interval = poll_interval

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Query Airflow until all runs have ended."""
        reported, changed = -1, time.monotonic()
        while True:
            began = time.monotonic()
            ended = await sync_to_async(count_ended_runs)(self.dag_id, self.run_ids)
            if ended != reported:
                self.log.info("%d of %d points have ended", ended, len(self.run_ids))
                reported, changed = ended, began
            if ended >= len(self.run_ids):
                yield TriggerEvent({"ended": ended})
                return
            now = time.monotonic()
            rest = max(SHORTEST_PAUSE_S, (now - changed) * CALM_SHARE, (now - began) / SHARE_OF_TIME)
            await asyncio.sleep(min(rest, self.poll_interval))
