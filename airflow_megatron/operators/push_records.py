"""Operator that sends the records of a sweep's trainings to trackers, while they run and once they have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_megatron.errors import RegistryError
from airflow_megatron.hooks.tracker_access import tracker_access
from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.store.segments import SegmentStore, StoreError, default_root
from airflow_megatron.spec.trackers.tracker import TrackerError
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.point_runs import runs_without_scheduler
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.point_runs import count_ended_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

PAUSE_S = 60.0
"""Seconds between two pushes, and between the end of the last job and the last push; its rows are then in the
store."""
SHARE = 0.05
"""Maximum share of the time that pushes take; the pause after a longer push is longer."""
LONGEST_PAUSE_S = 600.0
GIVE_UP_S = 3600.0
"""Seconds after the end of the sweep for which a tracker that does not answer is retried."""


class PushRecordsOperator(EndsTestRun, DeferringTask):
    """Send the records of all trainings to the trackers of the spec, from the store of results.

    It pushes periodically in its own process, for which no other task waits. A tracker that does not answer is
    retried; records that it misses at the end are sent by the sweep's next run or ``airflow-megatron results push``.

    :param pinned: the pinned sweep (templated)
    :param point_dag_id: the point DAG
    :param runs: point → run id (templated)
    :param plan_only: the run starts nothing (templated)
    """

    template_fields: Sequence[str] = ("pinned", "runs", "plan_only")
    template_fields_renderers = {"pinned": "json"}  # noqa: RUF012
    ui_color = "#f3ecd9"

    def __init__(
        self,
        *,
        pinned: Mapping[str, Any] | str,
        point_dag_id: str,
        runs: Mapping[str, str] | str,
        plan_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pinned = pinned
        self.point_dag_id = point_dag_id
        self.runs = runs
        self.plan_only = plan_only

    def execute(self, context: Context) -> None:
        """Push, and pause until the next push, until all points have ended and all records are sent."""
        if self.plan_only is True:
            raise AirflowSkipException("a dry run starts nothing, so there is nothing to send")
        self.push_again(context, {})

    def push_again(self, context: Context, event: Mapping[str, Any]) -> None:
        """Push after a pause.

        :param event: ``ended``: Unix time at which all points were first seen to have ended
        """
        ended, now, alone = event.get("ended"), time.time(), runs_without_scheduler()
        if ended is None and (alone or self._have_ended()):
            ended = now
        last = alone or (ended is not None and now >= ended + PAUSE_S)
        if alone:
            _write_waiting_rows()
        missing = self._push(context, ended=last)
        if last and not missing:
            return
        if alone or (ended is not None and now > ended + GIVE_UP_S):
            raise AirflowSkipException(
                f"{', '.join(missing)} did not receive all records; once it answers, run "
                f"`airflow-megatron results push SPEC`"
            )
        pause = max(PAUSE_S, min((time.time() - now) / SHARE, LONGEST_PAUSE_S))
        self.defer(
            trigger=PauseTrigger(until=time.time() + pause, carry={"ended": ended}), method_name="push_again"
        )

    def _have_ended(self) -> bool:
        run_ids = list(self.runs.values()) if isinstance(self.runs, dict) else []
        return count_ended_runs(self.point_dag_id, run_ids) >= len(run_ids)

    def _push(self, context: Context, *, ended: bool) -> list[str]:
        """Push to all trackers; return those that have not received all records."""
        from airflow_megatron.results.trackers.pushing import push_sweep  # importing polars is slow

        pinned = stored_plan(self.pinned, context)
        plan = pinned.placed_plan()
        jobs = sweep_jobs(plan.jobs, several=plan.several)
        missing: list[str] = []
        for section in pinned.outline.settings.trackers:
            try:
                access = tracker_access(section.connection)
                pushed = push_sweep(
                    SegmentStore(default_root()), pinned.sweep, jobs, section, access, ended=ended
                )
            except (TrackerError, StoreError, RegistryError) as error:
                self.log.warning("%s; missing records are sent later", error)
                missing.append(section.tracker)
            except Exception as error:
                # a tracker of another package may raise any exception, and its message may contain credentials
                self.log.warning(
                    "%s failed: %s; missing records are sent later", section.tracker, type(error).__name__
                )
                missing.append(section.tracker)
            else:
                self.log.info(
                    "%s: %d records of %d trainings sent", section.tracker, pushed.records, pushed.trainings
                )
        return missing


def _write_waiting_rows() -> None:
    """Write the rows that wait in this process, which also runs the triggers."""
    from airflow_megatron.results.store.writer import ResultWriter

    ResultWriter.shared().drain(PAUSE_S / 2)
