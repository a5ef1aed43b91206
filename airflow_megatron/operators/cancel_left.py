"""Operator that cancels the jobs that a run leaves in Slurm's queue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.late_cancellations import carry_out_all
from airflow_megatron.operators.slurm_submit import job_attempts, run_of, sweep_run
from airflow_megatron.requirements.queue_order import can_follow
from airflow_megatron.slurm.remote.records import TaskOrigin
from airflow_megatron.slurm.remote.transport import LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.attempt_chain import current_attempt
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.supervision.submission.attempt_chain import is_chained, withdraw_chain
from airflow_megatron.supervision.submission.remembered_cancellations import claim_of, remembered
from airflow_megatron.supervision.submission.stages_ahead import stages_behind, withdrawn_stages
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import own_job
from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

AWAY_PAUSE_S = 60
_NEVER_SUBMITTED = (None, "skipped", "upstream_failed", "removed")


class CancelLeftJobsOperator(EndsTestRun, DeferringTask):
    """Cancel jobs for which no task waits any more; the teardown of a run in any state.

    When a user marks or clears a task that waits for a job, its trigger cancels the job. This operator cancels the jobs
    of tasks without a running trigger: while the triggerer is down, or when a run is stopped during a submission.
    Without such a stage it does not connect to the cluster.

    :param source: id of the task that pushed each stage's job as an XCom
    :param stages: names of the stages
    """

    ui_color = "#f3ecd9"

    def __init__(self, *, source: str, stages: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.stages = list(stages)

    def execute(self, context: Context) -> list[str]:
        """Cancel the jobs and return their names."""
        task_instance: Any = context["ti"]
        states = task_instance.get_task_states(dag_id=task_instance.dag_id, run_ids=[task_instance.run_id])
        of_run = states.get(task_instance.run_id, {})
        cancelled = self._carry_out_remembered(context)
        own_run = TaskOrigin(task_instance.dag_id, task_instance.run_id, sweep_run(context))
        cancelled += self._cancel_ahead(context, of_run, own_run)
        for stage in left_stages(self.stages, of_run):
            job = self._job(context, stage)
            if job is None:
                continue
            attempts = job_attempts(job, self.log)
            taken_by = claim_of(attempts.cluster.ssh_conn_id, job.stage_dir).taken_by
            if taken_by not in ("", run_of(context)):
                self.log.info("%s is not cancelled: run %s uses it now", job.name, taken_by)
                continue
            try:
                if attempts.is_of_another_run(own_run):
                    self.log.info("%s is not cancelled: another run's command runs", job.name)
                    continue
                if is_chained(attempts.job):
                    withdraw_chain(attempts, after=current_attempt(attempts.state()))
                if attempts.withdraw():
                    cancelled.append(attempts.job.name)
            except LoginRefusedError as error:
                was_submitted = bool(task_instance.xcom_pull(task_ids=f"{stage}.submit", key="return_value"))
                raise AirflowFailException(
                    _unknown_state_message(attempts.job.name, error, was_submitted)
                ) from None
            except TransportError as error:
                self._retry_later(attempts.job.name, error)
        return cancelled

    def _carry_out_remembered(self, context: Context) -> list[str]:
        """Cancel the jobs of this run whose cancellation by a trigger failed; return their names."""
        left = remembered()
        if not left:
            return []
        jobs = [job for stage in self.stages if (job := self._job(context, stage)) is not None]
        own = {(job_attempts(job, self.log).cluster.ssh_conn_id, job.stage_dir): job for job in jobs}
        due = {key: each for each in left if (key := (each.ssh_conn_id, each.stage_dir)) in own}
        what = ", ".join(own[key].name for key in due)
        try:
            cancelled = asyncio.run(carry_out_all(due.values()))
        except LoginRefusedError as error:
            raise AirflowFailException(f"{what} may continue in Slurm: {error}") from None
        except TransportError as error:
            self._retry_later(what, error)
        return [own[key].name for key, each in due.items() if each.job_name in cancelled]

    def _cancel_ahead(
        self, context: Context, states: Mapping[str, str | None], own_run: TaskOrigin
    ) -> list[str]:
        """Cancel jobs that were queued ahead and whose tasks never ran; return their names."""
        if not any(states.get(f"{stage}.submit") not in _NEVER_SUBMITTED for stage in self.stages):
            return []
        unbegun = [stage for stage in self.stages if states.get(f"{stage}.submit") in _NEVER_SUBMITTED]
        if not unbegun:
            return []
        jobs = [job for stage in self.stages if (job := self._job(context, stage)) is not None]
        behind = {job.stage_dir: job for job in queued_behind(jobs, unbegun)}
        if not behind:
            return []
        first = job_attempts(next(iter(behind.values())), self.log)
        left_jobs = [job for job in jobs if job.stage in left_stages(self.stages, states)]
        try:
            for job in left_jobs:
                if first.of_another(job).is_of_another_run(own_run):  # which has queued what is behind it
                    for stage_dir in stages_behind(job, self.log):
                        behind.pop(stage_dir, None)
            if not behind:
                return []
            started = withdrawn_stages(first, [*behind][::-1])
            left = [job for stage_dir, _ in started if first.of_another(job := behind[stage_dir]).withdraw()]
        except LoginRefusedError as error:
            raise AirflowFailException(
                f"jobs queued behind those of this run may continue in Slurm: {error}"
            ) from None
        except TransportError as error:
            self._retry_later("what is queued behind the jobs of this run", error)
        return [job.name for job in left]

    def _job(self, context: Context, stage: str) -> Job | None:
        data = own_job(context, self.source, stage)
        return Job.from_json(data) if data else None

    def _retry_later(self, what: str, error: TransportError) -> NoReturn:
        self.log.warning("%s; checking again later whether %s is in Slurm", error, what)
        self.defer(trigger=PauseTrigger(until=time.time() + AWAY_PAUSE_S), method_name="try_again")
        raise AssertionError("defer does not return")

    def try_again(self, context: Context, event: Any = None) -> list[str]:
        """Continue after a failed connection to the login node; cancelled jobs are not cancelled again."""
        return self.execute(context)


def _unknown_state_message(name: str, error: LoginRefusedError, was_submitted: bool) -> str:
    if was_submitted:
        return f"{name} may continue in Slurm: {error}"
    return f"{name} was not submitted as far as is known, and Slurm cannot be asked: {error}"


def queued_behind(jobs: Sequence[Job], unbegun: Sequence[str]) -> list[Job]:
    """Return the jobs of a run that may have been queued ahead, parents first.

    :param jobs: jobs of the run, parents first
    :param unbegun: stages whose tasks never ran
    """
    by_name = {job.name: job for job in jobs}
    found: list[Job] = []
    for job in jobs:
        before = by_name.get(job.depends_on[0].job) if job.depends_on else None
        if job.stage in unbegun and before is not None and before.ahead and can_follow(job, before):
            found.append(job)
    return found


def left_stages(stages: Sequence[str], states: Mapping[str, str | None]) -> list[str]:
    """Return the stages that may have a job in Slurm although their watch task has ended or never started.

    :param stages: all stages of a run
    :param states: id of the task → its state in the run
    """
    return [
        stage
        for stage in stages
        if states.get(f"{stage}.submit") not in _NEVER_SUBMITTED and states.get(f"{stage}.watch") != "success"
    ]
