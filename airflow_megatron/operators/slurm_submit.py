"""Operator that submits a job to Slurm and returns at once."""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_megatron.hooks.job_secrets import secret_values
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.operators.described_job import JOB_RECORD, DescribedJobOperator, submitted_job
from airflow_megatron.plan.described_job import seconds_of
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.slurm.remote.records import TaskOrigin
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.attempt_chain import current_attempt
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.single_job import SubmissionOutcome
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.trust.json_records import real, whole, word
from airflow_megatron.supervision.attempt_preparation import RunNotFitError, StillWriting
from airflow_megatron.supervision.attempts import (
    JobAttempts,
    NextAttempt,
    SubmissionRefusedError,
    attempt_after_giving_up,
    next_attempt,
    slurm_commands,
)
from airflow_megatron.supervision.conditions_before_submission import holds
from airflow_megatron.supervision.job_event import DueAttempt
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.supervision.submission.attempt_chain import is_chained, withdraw_chain
from airflow_megatron.supervision.submission.attempt_submission import submit_attempt
from airflow_megatron.supervision.submission.login_commands import LONGEST_S, run_on_login_node
from airflow_megatron.supervision.submission.remembered_cancellations import drop_cancellation
from airflow_megatron.supervision.submission.stages_ahead import take_up, withdraw_ahead
from airflow_megatron.task_runtime.stored_plan import job_plan_environment, report_changes, without_job
from airflow_megatron.task_runtime.task_tries import just_cleared
from airflow_megatron.triggers.pause import PauseTrigger, wait_for_login
from airflow_megatron.triggers.queue_room import QueueRoomTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_megatron.slurm.verdicts.stage_records import StageRecord

ATTEMPT_RECORD = "attempt"
STILL_WRITING_PAUSE_S = 5


@dataclass(frozen=True)
class ChosenAttempt:
    """The attempt that a task submits, in its state store under :data:`ATTEMPT_RECORD`.

    :param number: number of the attempt, from 1
    :param fresh: whether it starts without the checkpoints of earlier attempts
    :param phase: ``submitting`` from before the submission on, ``done`` after it; empty before
    """

    number: int
    fresh: bool = False
    phase: str = ""

    @classmethod
    def from_json(cls, value: object) -> ChosenAttempt | None:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; return None for any other value."""
        number = whole(value.get("number")) if isinstance(value, dict) else None
        if not isinstance(value, dict) or number is None:
            return None
        return cls(number, value.get("fresh") is True, word(value.get("phase")) or "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to store."""
        return asdict(self)


def job_attempts(job: Job, log: Any) -> JobAttempts:
    """Return the attempts of a job, for use in a worker.

    :raises AirflowFailException: if the job's cluster profile or its pinned copy is invalid
    """
    plan_environment = job_plan_environment(job)
    cluster = plan_environment.cluster
    hook = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster), kept=True)
    return JobAttempts(job, cluster, hook.run, log, plan_environment.templates, secret_values)


def wait_for_room(
    attempts: JobAttempts,
    number: int,
    outcome: SubmissionOutcome,
    *,
    poll_interval: float,
    since: float | None = None,
) -> QueueRoomTrigger:
    """Return the trigger that waits until a deferred attempt may be submitted.

    :param outcome: outcome of the submission
    :param poll_interval: seconds between two polls of the cluster
    :param since: Unix time of the first deferral; default: now
    :returns: a trigger whose event is a :class:`~airflow_megatron.supervision.job_event.DueAttempt`
    """
    since = time.time() if since is None else since
    return QueueRoomTrigger(
        ssh_conn_id=attempts.cluster.ssh_conn_id,
        commands=attempts.commands.to_json(),
        job_name=attempt_of(attempts.job, number).job_name,
        since=since,
        limits=[(limit.jobs, limit.name_prefix) for limit in attempts.limits],
        refused_at=outcome.queued,
        recovers=outcome.waits_for == "recovery",
        poll_interval=poll_interval,
        carry=DueAttempt(number, since).to_json(),
    )


def wait_for_login_node(
    attempts: JobAttempts,
    number: int,
    error: TransportError,
    *,
    poll_interval: float,
) -> QueueRoomTrigger:
    """Return the trigger that waits until the cluster is available again and has room for an attempt.

    Maintenance takes longer than all tries of a task. All waiting tasks share the poller, which polls rarely meanwhile.

    :param number: number of the attempt, if known
    :param error: the error of the connection
    :param poll_interval: seconds between two polls of the cluster
    """
    attempts.log.warning("%s; waiting until the login node answers", error)
    away = SubmissionOutcome("deferred", None, str(error), waits_for="room")
    return wait_for_room(attempts, number, away, poll_interval=poll_interval)


class SlurmSubmitOperator(DescribedJobOperator):
    """Submit a job to Slurm, exactly once, and return a handle for the operators that watch it.

    The job is part of a sweep (``job``), or the other arguments describe it. In the second case the result is the input
    of :class:`~airflow_megatron.sensors.slurm_job.SlurmJobSensor`: ``job_id``, ``attempt``, ``run_dir``, ``log_file``,
    ``job`` and ``handle``.

    A job that has finished before is not submitted. A task that was killed between submission and record continues with
    the job that it submitted. A task that is cleared after it succeeded submits the next attempt, and cancels the
    previous attempt if it still runs.

    :param job: the job as JSON of :meth:`airflow_megatron.spec.model.jobs.Job.to_json`; None skips the task (templated)
    :param fresh_start: submit the job even if it has finished before (templated)
    :param poll_interval: time between two polls of a full queue: seconds, ``30s`` or a timedelta
    :param attempt: the attempt that an array of this run has submitted, None without one (templated)
    :param shared: whether other runs use the job too; then neither a fresh start nor clearing this task repeats a
        finished job or replaces a running one
    :param kwargs: description of a job, see :class:`~airflow_megatron.operators.described_job.DescribedJobOperator`
    """

    template_fields: Sequence[str] = ("job", "fresh_start", "attempt", *DescribedJobOperator.template_fields)
    template_fields_renderers = {"job": "json", **DescribedJobOperator.template_fields_renderers}  # noqa: RUF012
    ui_color = "#dbe9f6"
    operator_extra_links = (SweepResultsLink(),)

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str | None = None,
        fresh_start: bool | str = False,
        poll_interval: float | str | timedelta = 15.0,
        attempt: int | str | None = None,
        shared: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.fresh_start = fresh_start
        self.poll_interval = seconds_of("poll_interval", poll_interval)
        self.attempt = attempt
        self.shared = shared

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job, or continue with the submission of an earlier try."""
        if self.describes_job:
            try:
                self.job = (not just_cleared(context) and submitted_job(context)) or self.described_job(
                    context
                ).to_json()
            except LoginExpiredError as error:
                wait_for_login(self, error, "execute_again")
            except LoginRefusedError as error:
                raise AirflowFailException(str(error)) from None
            context["task_state_store"].set(JOB_RECORD, self.job)
        if self.job is not None and just_cleared(context):
            report_changes(context, Job.from_json(self.job), self.log)  # type: ignore[arg-type]
        return self._submit(context)

    def execute_again(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Describe the job after a wait for the login."""
        return self.execute(context)

    def submit_again(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after there is room in the queue, or after other jobs of the run have ended."""
        return self._submit(context, since=real(event.get("since")))  # the state store has the number

    def submit_when_reached(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Start again after the login node is available; the records there show an interrupted submission."""
        return self._submit(context)

    def _submit(self, context: Context, since: float | None = None) -> dict[str, Any]:
        if self.job is None:
            raise without_job()
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        attempts = job_attempts(job, self.log)
        drop_cancellation(attempts.cluster.ssh_conn_id, job.stage_dir, run_of(context))
        record = ChosenAttempt.from_json(context["task_state_store"].get(ATTEMPT_RECORD))
        state: StageRecord | None = None
        try:
            if since is not None and record is not None:
                number = record.number
            elif (
                self.attempt is not None
                and record is None
                and not just_cleared(context)
                and (state := self._with_submission(attempts, int(self.attempt))) is not None
            ):
                number = int(self.attempt)
                record = ChosenAttempt(number)
            else:
                cleared = just_cleared(context)
                chosen, state = self._next_attempt(job, attempts, record, cleared=cleared)
                number = chosen.number
                if chosen.finished:
                    self.log.info(
                        "%s has finished in attempt %d; it is not submitted again", job.name, number
                    )
                    return self._done(context, _ended_handle(job, state, finished=True))
                if chosen.cancelled:
                    self.log.info(
                        "%s was cancelled by its own condition in attempt %d; it is not submitted again",
                        job.name,
                        number,
                    )
                    return self._done(context, _ended_handle(job, state, cancelled=True))
                if number > state.latest_attempt > 0:
                    withdraw_ahead(attempts)
                if chosen.replaces is not None and state.job_id:
                    attempts.cancel(chosen.replaces, state.job_id, state.job_name)
                if record is None or record.number != number:
                    fresh = bool(self.fresh_start) and not (cleared or self.shared)
                    record = ChosenAttempt(number, fresh)
            if job.stage_kind.runs_first_on_login_node(job) and record.phase != "submitting":
                self._run_on_login_node(attempts)
            submitting = dataclasses.replace(record, phase="submitting")
            context["task_state_store"].set(ATTEMPT_RECORD, submitting.to_json())
            submitted = submit_attempt(
                attempts,
                number,
                functools.partial(self._decided_early, attempts, state, number),
                state=state,
                fresh_start=record.fresh,
                origin=task_origin(context),
            )
        except RunNotFitError as error:
            context["task_state_store"].delete(ATTEMPT_RECORD)
            raise AirflowFailException(f"{job.name}: {error}") from None
        except (SubmissionRefusedError, LoginRefusedError) as error:
            context["task_state_store"].delete(ATTEMPT_RECORD)
            raise AirflowFailException(str(error)) from None
        except TransportError as error:
            number = record.number if record is not None else 1
            self.defer(
                trigger=wait_for_login_node(attempts, number, error, poll_interval=self.poll_interval),
                method_name="submit_when_reached",
            )
        if isinstance(submitted, StillWriting):
            self._pause(STILL_WRITING_PAUSE_S)
        if isinstance(submitted, SubmissionOutcome):
            self.defer(
                trigger=wait_for_room(
                    attempts, number, submitted, poll_interval=self.poll_interval, since=since
                ),
                method_name="submit_again",
            )
        return self._done(context, submitted)

    def _with_submission(self, attempts: JobAttempts, number: int) -> StageRecord | None:
        """Return the recorded state if an array has submitted an attempt.

        The number comes from the run's configuration, which whoever starts a run writes.
        """
        state = attempts.state()
        if any(one.number == number and (one.claimed or one.job_id) for one in state.attempts):
            return state
        self.log.warning(
            "%s: attempt %d of the run's configuration was not submitted", attempts.job.name, number
        )
        return None

    def _run_on_login_node(self, attempts: JobAttempts) -> None:
        job, cluster = attempts.job, attempts.cluster
        self.log.info("%s: its command runs on the login node of %s first", job.name, cluster.name)
        hook = SlurmHook(cluster.ssh_conn_id, attempts.commands)
        with hook.session(LONGEST_S) as run:
            done = run_on_login_node(job, cluster, run)
        for line in done.lines:
            self.log.info("%s", line)
        if not done.succeeded:
            raise AirflowException(
                f"{job.name}: its command failed on the login node of {cluster.name}: "
                f"{done.lines[-1] if done.lines else 'no output'}"
            )

    def _decided_early(
        self, attempts: JobAttempts, state: StageRecord | None, number: int, first: int
    ) -> JobHandle | None:
        """Return the handle of a job that is not submitted because its cancel or finish condition already holds.

        The watch task handles earlier submissions, and the finish condition of a job that runs again.
        """
        job = attempts.job
        if job.cancel is None and job.finish is None:
            return None
        state = attempts.state() if state is None else state
        own = next((attempt for attempt in state.attempts if attempt.number == number), None)
        if own is not None and (own.claimed or own.job_id is not None):
            return None
        latest = state.latest_attempt
        if holds(job.cancel, attempts, number, first):
            verdict = Verdict(Outcome.CANCELLED, f"its cancel condition holds already: {job.cancel}")
            attempts.record_end(latest, verdict, intended=True)
            self.log.warning("%s is not submitted: %s", job.name, verdict.reason)
            return JobHandle(job.name, latest, state.job_id, cancelled=True, first=first)
        if first == 1 and holds(job.finish, attempts, number, first):
            verdict = attempts.record_finished(f"its finish condition holds already: {job.finish}")
            self.log.info("%s is not submitted: %s", job.name, verdict.reason)
            return JobHandle(job.name, latest, state.job_id, finished=True, first=first)
        return None

    def _pause(self, seconds: float) -> NoReturn:
        self.defer(trigger=PauseTrigger(until=time.time() + seconds), method_name="submit_again")
        raise AssertionError("defer does not return")

    def _next_attempt(
        self, job: Job, attempts: JobAttempts, record: ChosenAttempt | None, *, cleared: bool
    ) -> tuple[NextAttempt, StageRecord]:
        ahead, state = take_up(attempts, attempts.state())
        if ahead and record is None:
            return NextAttempt(state.latest_attempt), state  # this run submitted it, even with a fresh start
        if record is not None:
            number = record.number
            # An earlier try was killed before it recorded its submission, unless its job was given up since then.
            died = record.phase == "submitting" and attempt_after_giving_up(state) != number + 1
            if died or not (cleared or record.phase == "submitting"):
                return NextAttempt(number), state
        rerun = not self.shared and (cleared or (bool(self.fresh_start) and record is None))
        if rerun and is_chained(job):
            withdraw_chain(attempts, after=current_attempt(state))
            state = attempts.state()
        return next_attempt(state, rerun=rerun, digest=job_digest(job)), state

    def _done(self, context: Context, handle: JobHandle) -> dict[str, Any]:
        context["task_state_store"].set(ATTEMPT_RECORD, ChosenAttempt(handle.attempt, phase="done").to_json())
        if not self.describes_job:
            return handle.to_json()
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        return {
            "job_id": handle.job_id,
            "attempt": handle.attempt,
            "run_dir": job.run_dir,
            "log_file": job.log_file(handle.attempt),
            "job": self.job,
            "handle": handle.to_json(),
        }


def _ended_handle(
    job: Job, state: StageRecord, *, finished: bool = False, cancelled: bool = False
) -> JobHandle:
    """Return the handle of a job without a new submission."""
    first = record.first if (record := state.submission) is not None else 0
    return JobHandle(
        job.name, state.latest_attempt, state.job_id, finished=finished, cancelled=cancelled, first=first
    )


def sweep_run(context: Context) -> str:
    """Return the id of the sweep's run of a task; the sweep's run launches the runs of its points."""
    run = context.get("dag_run")
    conf: Mapping[str, Any] = (run.conf if run else None) or {}
    return str(conf.get("run") or context["ti"].run_id)


def run_of(context: Context) -> str:
    """Return the DAG and the run of a task."""
    task_instance = context["ti"]
    return f"{task_instance.dag_id} {task_instance.run_id}"


def task_origin(context: Context) -> TaskOrigin:
    """Return the submitting task for ``job.json``."""
    task_instance = context["ti"]
    return TaskOrigin(
        dag_id=task_instance.dag_id,
        run_id=task_instance.run_id,
        run=sweep_run(context),
        task_id=task_instance.task_id,
        try_number=task_instance.try_number,
    )
