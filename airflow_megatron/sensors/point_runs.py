"""Sensor for the runs of a point DAG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.point_runs import runs_without_scheduler
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.triggers.point_runs import PointRunsTrigger, count_ended_runs, count_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class PointRunsSensor(EndsTestRun, DeferringTask, BaseSensorOperator):
    """Wait until the runs of all points have ended, in any state, or were deleted.

    :param point_dag_id: the point DAG
    :param runs: point → run id (templated)
    :param poll_interval: maximum seconds between two polls
    """

    template_fields: Sequence[str] = ("runs",)
    ui_color = "#f3ecd9"

    def __init__(
        self, *, point_dag_id: str, runs: Mapping[str, str] | str, poll_interval: float = 15.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.point_dag_id = point_dag_id
        self.runs = runs
        self.poll_interval = poll_interval

    def execute(self, context: Context) -> None:
        """Wait, unless all runs have ended."""
        if runs_without_scheduler():
            return  # the launching task has executed the runs
        run_ids = list(self.runs.values())  # type: ignore[union-attr]
        if count_ended_runs(self.point_dag_id, run_ids) < len(run_ids):
            self.defer(
                trigger=PointRunsTrigger(
                    dag_id=self.point_dag_id, run_ids=run_ids, poll_interval=self.poll_interval
                ),
                method_name="execute_complete",
            )
        self.log.info("all %d points have ended", len(run_ids))
        if deleted := len(run_ids) - count_runs(self.point_dag_id, run_ids):
            self.log.warning("the runs of %d of them were deleted in Airflow", deleted)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """End the task; the report task fails if a point has not finished.

        The runs are counted again, because a task that an older version has deferred may be sent the event of another's
        trigger (:class:`~airflow_megatron.task_runtime.deferring_trigger.DeferringTask`).
        """
        self.execute(context)
