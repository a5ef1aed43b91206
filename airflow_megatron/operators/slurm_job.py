"""Operator that runs a user's job on Slurm, from its submission to its end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_megatron.hooks.cancellation_process import CancellationOrder, release
from airflow_megatron.hooks.late_cancellations import cancel_killed
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.described_job import JOB_RECORD, DescribedJobOperator, submitted_job
from airflow_megatron.operators.slurm_submit import (
    ATTEMPT_RECORD,
    ChosenAttempt,
    job_attempts,
    run_of,
    wait_for_login_node,
)
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.verdicts.verdict import Outcome
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.supervision.attempts import next_attempt
from airflow_megatron.supervision.submission.remembered_cancellations import (
    Cancellation,
    claim_of,
    drop_cancellation,
)
from airflow_megatron.task_runtime.task_tries import just_cleared
from airflow_megatron.triggers.pause import wait_for_login
from airflow_megatron.triggers.slurm_job import ON_KILL_STEP_S, SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
    from airflow_megatron.supervision.attempt_memory import AttemptMemory
    from airflow_megatron.supervision.attempts import JobAttempts
    from airflow_megatron.supervision.job_reference import JobHandle

CANCEL_S = 25.0
"""Time limit in seconds for cancelling the job of a killed task in its own process."""


class SlurmJobOperator(DescribedJobOperator, SlurmWatchOperator):
    """Run a job on Slurm, exactly once, and wait until it is done.

    After a failure of the worker, the triggerer or the connection, the job is neither lost nor submitted twice: the
    next try of the task continues with it. An attempt that ends early is followed by another if ``restart`` allows it.
    The task's log shows the job's log. Marking the task failed, clearing or killing it cancels the job; clearing also
    runs it again.

    Returns ``job_id``, ``state`` (Slurm's), ``outcome``, ``reason``, ``attempt``, ``exit_code``, ``elapsed``
    (seconds), ``nodes``, ``run_dir``, ``log_file`` and ``outputs``; the XCom ``job_id`` is available while the job
    runs.

    :param deferrable: wait in the triggerer, without a worker slot; otherwise wait in the worker
    :param poll_interval: time between two polls of the cluster, which all waiting tasks share: seconds, ``30s`` or a
        timedelta
    :param timeout: time after which the task fails while the job continues; None for no limit
    :param cancel_on_kill: cancel the job if the task is marked failed, cleared or killed
    :param kwargs: the job, see :class:`~airflow_megatron.operators.described_job.DescribedJobOperator`
    """

    template_fields: Sequence[str] = DescribedJobOperator.template_fields
    template_fields_renderers = DescribedJobOperator.template_fields_renderers
    operator_extra_links = ()  # type: ignore[assignment]
    job_template: str | None = None
    """The sbatch template of a command, None for the default."""

    def __init__(
        self,
        *,
        deferrable: bool = True,
        poll_interval: float | str | timedelta = 15.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            job=None,
            handle=None,
            poll_interval=poll_interval,
            timeout=timeout,
            cancel_on_kill=cancel_on_kill,
            **kwargs,
        )
        self.deferrable = deferrable
        self._is_killed = False
        self._hook: SlurmHook | None = None
        self._order: CancellationOrder | None = None

    def execute(self, context: Context) -> Any:
        """Submit the job, or continue with the job of an earlier try, and wait for it."""
        return self._carried_out(context, partial(self._begin, context))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task after a trigger has fired, with the submitted job."""
        return self._carried_out(
            context, partial(super().resume_execution, next_method, next_kwargs, context)
        )

    def begin_again(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Start again after the login node is available."""
        return self._begin(context)

    def result(self, context: Context, job: Job, ended: Mapping[str, Any]) -> Any:
        """Return the return value of the task.

        :param ended: the verdict on the last attempt, with its number
        """
        attempt = int(ended["attempt"])
        return {
            "job_id": ended.get("job_id"),
            "state": ended.get("state"),
            "outcome": ended["outcome"],
            "reason": ended["reason"],
            "attempt": attempt,
            "exit_code": ended.get("exit_code"),
            "elapsed": ended.get("elapsed"),
            "nodes": ended.get("node_list", ""),
            "run_dir": job.run_dir,
            "log_file": job.log_file(attempt),
            "outputs": list(job.outputs),
        }

    def _begin(self, context: Context) -> dict[str, Any]:
        store: Any = context["task_state_store"]
        cleared = just_cleared(context)
        known = None if cleared else submitted_job(context)
        attempts = None
        try:
            job = Job.from_json(known) if known else self.described_job(context, template=self.job_template)
            self.job = job.to_json()
            attempts = job_attempts(job, self.log)
            if context["ti"].try_number > 1:
                drop_cancellation(attempts.cluster.ssh_conn_id, job.stage_dir, run_of(context), unseen=True)
            record = None if cleared else ChosenAttempt.from_json(store.get(ATTEMPT_RECORD))
            if record is not None:
                self._cancels_on_kill(attempts, record.number)
            state = attempts.state()
            chosen = next_attempt(state, rerun=cleared, digest=job_digest(job))
            number = chosen.number
            if record is not None:
                number = max(record.number, state.latest_attempt)
            judged = state.verdict_on_newest
            if not cleared and judged is not None and number == state.latest_attempt:
                return self._judged(job, judged)
            if chosen.replaces is not None and state.job_id:
                attempts.cancel(chosen.replaces, state.job_id, state.job_name)
        except LoginRefusedError as error:
            raise AirflowFailException(str(error)) from None
        except TransportError as error:
            if attempts is None and isinstance(error, LoginExpiredError):
                wait_for_login(self, error, "begin_again")
            if attempts is None:
                raise
            trigger = wait_for_login_node(attempts, 1, error, poll_interval=self.poll_interval)
            self.defer(trigger=trigger, method_name="begin_again")
        store.set(ATTEMPT_RECORD, ChosenAttempt(number).to_json())
        store.set(JOB_RECORD, self.job)
        return self._submit_next(job, number)

    def _judged(self, job: Job, verdict: RecordedVerdict) -> dict[str, Any]:
        """Return the verdict that an earlier try recorded before it was killed."""
        if verdict.outcome is not Outcome.FINISHED:
            raise AirflowFailException(f"{job.name}: {verdict.reason}")
        return verdict.to_json()

    def _wait(self, job: Job, handle: JobHandle, memory: AttemptMemory | None = None) -> dict[str, Any]:
        get_current_context()["ti"].xcom_push(key="job_id", value=handle.job_id)
        return super()._wait(job, handle, memory)

    def _carried_out(self, context: Context, step: Callable[[], Mapping[str, Any]]) -> Any:
        """Run the steps until the job has ended; a task that does not defer waits for the triggers in this process."""
        while True:
            try:
                ended = step()
            except TaskDeferred as deferred:
                if isinstance(deferred.trigger, SlurmJobTrigger) and self._order is not None:
                    self._order = replace(self._order, cancellation=deferred.trigger.cancellation)
                if self.deferrable:
                    raise
                event = asyncio.run(_first_event(deferred.trigger))
                step = partial(getattr(self, deferred.method_name), context, event=event)
            else:
                return self.result(context, Job.from_json(self.job), ended)  # type: ignore[arg-type]

    def _submit_next(
        self, job: Job, number: int, *, started: bool = False, since: float | None = None
    ) -> dict[str, Any]:
        attempts = job_attempts(job, self.log)
        try:
            self._cancels_on_kill(attempts, number)
        except LoginRefusedError as error:
            raise AirflowFailException(str(error)) from None
        if self._is_killed and self.cancel_on_kill:
            raise AirflowFailException(f"{job.name}: the task was killed; attempt {number} is not submitted")
        return super()._submit_next(job, number, started=started, since=since)

    def _cancels_on_kill(self, attempts: JobAttempts, number: int) -> None:
        """Prepare the cancellation of an attempt: when the task is killed, there is no time to look anything up.

        :raises LoginRefusedError: if the Airflow connection does not exist
        """
        attempt, conn_id = attempt_of(attempts.job, number), attempts.cluster.ssh_conn_id
        if self._hook is None or self._hook.ssh_conn_id != conn_id:
            connection = SlurmHook(conn_id).looked_up()
            self._hook = SlurmHook(conn_id, attempts.commands, connection=connection)
        self._order = CancellationOrder(
            Cancellation(conn_id, attempts.commands.to_json(), None, attempt.job_name, attempt.directory),
            self._hook.looked_up().as_json(),
            claim_of(conn_id, attempts.job.stage_dir).taken,
        )

    def on_kill(self) -> None:
        """Cancel the job that this process submits, or for which it waits."""
        self._is_killed = True
        if self._order is not None and self._hook is not None and self.cancel_on_kill:
            self._cancel(self._order, self._hook)
        super().on_kill()

    def _cancel(self, order: CancellationOrder, hook: SlurmHook) -> None:
        process = None
        with suppress(OSError):
            process = order.start()  # it cancels the job if this process is ended before

        def cancel() -> None:
            cancelling = cancel_killed(
                order.cancellation, hook, self.log, taken=order.taken, step_s=ON_KILL_STEP_S
            )
            if asyncio.run(cancelling) and process is not None:
                release(process)

        # in a new thread, because this thread runs an event loop
        thread = threading.Thread(target=cancel, daemon=True)
        thread.start()
        thread.join(CANCEL_S)


async def _first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AirflowFailException(f"{type(trigger).__name__} ended without an event")
