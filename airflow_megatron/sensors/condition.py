"""Sensor for the start condition of a stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.operators.slurm_submit import job_attempts
from airflow_megatron.spec.layout.run_layout import StageDir
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.serial_execution import (
    has_time_left,
    serial_deadline,
    stages_of,
    yield_to_watch_tasks,
)
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import job_plan_environment, without_job
from airflow_megatron.task_runtime.wait_event import WaitEvent
from airflow_megatron.triggers.condition import ConditionTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_megatron.spec.model.conditions import Condition


class StartConditionSensor(EndsTestRun, DeferringTask, BaseSensorOperator):
    """Wait until the ``start`` condition of a job holds; fail at once if it can no longer hold. Always deferrable.

    :param job: the job as JSON of :meth:`airflow_megatron.spec.model.jobs.Job.to_json`; None skips the task (templated)
    :param producers: stage → handle of its submission, for the stages in the condition (templated)
    :param earlier: the same for other earlier stages, for whose files it may wait (templated)
    :param poll_interval: seconds between two polls of the cluster
    """

    template_fields: Sequence[str] = ("job", "producers", "earlier")
    template_fields_renderers = {  # noqa: RUF012
        "job": "json",
        "producers": "json",
        "earlier": "json",
    }
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str | None,
        producers: Mapping[str, Any] | None = None,
        earlier: Mapping[str, Any] | None = None,
        poll_interval: float = 15.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.producers = dict(producers or {})
        self.earlier = dict(earlier or {})
        self.poll_interval = poll_interval

    def execute(self, context: Context) -> None:
        """Start waiting."""
        if self.job is None:
            raise without_job()
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        if job.start is not None:
            self._wait(job, job.start)

    def _wait(self, job: Job, start: Condition) -> None:
        cluster = job_plan_environment(job).cluster
        missing = [stage for stage, handle in self.producers.items() if handle is None]
        if missing:
            raise AirflowFailException(f"{job.name} needs stage {missing[0]}, which has no job in this run")
        attempts: dict[str, int] = {}
        for leaf in start.leaves():
            for stage_dir in (leaf.producer, leaf.path):
                handle = {**self.earlier, **self.producers}.get(StageDir(stage_dir).stage)
                if isinstance(handle, Mapping):
                    attempts[stage_dir] = JobHandle.from_json(handle).run_began
        self.log.info("waiting for: %s", start)
        self.defer(
            trigger=ConditionTrigger(
                ssh_conn_id=cluster.ssh_conn_id,
                commands=slurm_commands(cluster).to_json(),
                condition=start.to_json(),
                finish=job.finish.to_json() if job.finish and job.start_every_attempt else None,
                attempts=attempts,
                check_interval=job.check_interval or 0.0,
                poll_interval=self.poll_interval,
                deadline=serial_deadline(time.time() + self.timeout),
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Return if the condition holds, or fail with the reason if it can no longer hold."""
        attempts = job_attempts(Job.from_json(self.job), self.log)  # type: ignore[arg-type]
        start, ended = attempts.job.start, WaitEvent.from_json(event)
        if ended.is_timeout and has_time_left(context, self.timeout) and start is not None:
            yield_to_watch_tasks(stages_of(start), attempts.cluster, self.log)
            self._wait(attempts.job, start)
        if ended.status == "finished":
            attempts.record_finished("its finish condition holds already")
            return
        if ended.status != "holds":
            raise AirflowFailException(f"the start condition {ended.status}: {ended.reason}")
        self.log.info("the start condition holds")
