"""Operator that watches a submitted job through its attempts to a verdict."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pendulum
from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.megatron.commands.commands import leaves_checkpoints
from airflow_megatron.megatron.health.training_health import HealthSettings
from airflow_megatron.notices.notice import end_notice, event_notice
from airflow_megatron.notifications.notices import send
from airflow_megatron.operators.slurm_submit import (
    job_attempts,
    run_of,
    sweep_run,
    task_origin,
    wait_for_login_node,
    wait_for_room,
)
from airflow_megatron.plan.described_job import seconds_of
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.requirements.training_arguments import JobArguments, TrainingArguments
from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.store.job_rows import source_values
from airflow_megatron.slurm.remote.transport import LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.attempt_chain import current_attempt
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.single_job import SubmissionOutcome
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.restarts import (
    Done,
    Follow,
    GiveUp,
    Restart,
    explained,
    given_up,
    next_step,
)
from airflow_megatron.slurm.verdicts.stage_records import RemoteWriteError
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.layout.run_layout import RunLayout
from airflow_megatron.spec.model.checkpoint_sources import escaped
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.trust.json_records import whole
from airflow_megatron.supervision.attempt_preparation import (
    RunNotFitError,
    StillWriting,
    restart_policy,
)
from airflow_megatron.supervision.attempts import (
    SubmissionRefusedError,
    attempt_after_giving_up,
    was_waited_for,
)
from airflow_megatron.supervision.condition_watch import AttemptConditions
from airflow_megatron.supervision.conditions_before_submission import conditions_of, holds, runs_of_others
from airflow_megatron.supervision.evaluation_results import store_evaluations
from airflow_megatron.supervision.expected_outcomes import ends_with_evaluation
from airflow_megatron.supervision.job_event import DueAttempt, JobEvent, UnwrittenVerdict
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.supervision.live_log import harmless
from airflow_megatron.supervision.next_steps import at_end, concluded, history, while_running
from airflow_megatron.supervision.submission.attempt_chain import (
    follows_by_itself,
    is_chained,
    withdraw_chain,
    without_later_attempts,
)
from airflow_megatron.supervision.submission.attempt_submission import submit_attempt
from airflow_megatron.supervision.submission.remembered_cancellations import claim_of, drop_cancellation
from airflow_megatron.supervision.submission.stages_ahead import stages_behind, withdraw_ahead
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.serial_execution import serial_deadline, stages_of, yield_to_watch_tasks
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import (
    job_plan_environment,
    pinned_outline,
    report_changes,
    without_job,
)
from airflow_megatron.task_runtime.task_tries import just_cleared
from airflow_megatron.task_runtime.wait_event import WaitEvent
from airflow_megatron.triggers.condition import ConditionTrigger
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_megatron.slurm.verdicts.restarts import NextStep
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import NotifySection
    from airflow_megatron.supervision.attempt_memory import AttemptMemory
    from airflow_megatron.supervision.attempts import JobAttempts

LINES_OF_FAILURE = 20
WRITE_PAUSE_S = 60.0
"""Seconds until a verdict that could not be written is written again."""
REPLACEMENT_S = 20.0
"""Seconds until a cleared task has submitted the next attempt: it waits until the cancelled job has left the queue."""
_NOTIFIED_REFUSAL = 2
WAITED_FOR = "waited_for"
"""Key of the first attempt for which a try of the task waited."""


class SlurmWatchOperator(EndsTestRun, DeferringTask):
    """Wait for a job; if an attempt ends before the job has finished, submit the next one as its restart policy allows.

    The outputs of the job decide whether it has finished (for a training, the complete checkpoint of the last
    iteration), not Slurm's state COMPLETED. Marking the task failed, or clearing it, cancels the Slurm job. Clearing a
    task that has given a job up submits the next attempt.

    :param job: the job as JSON of :meth:`airflow_megatron.spec.model.jobs.Job.to_json` (templated)
    :param handle: result of :class:`~airflow_megatron.operators.slurm_submit.SlurmSubmitOperator` (templated)
    :param poll_interval: time between two polls of the cluster: seconds, ``30s`` or a timedelta
    :param timeout: time after which the task fails while the job continues; None for no limit
    :param cancel_on_kill: cancel the job if the waiting task is marked failed or cleared
    :param notify: notifiers for ends of attempts and for events, for a job without a stored plan
    """

    template_fields: Sequence[str] = ("job", "handle")
    template_fields_renderers = {"job": "json", "handle": "json"}  # noqa: RUF012
    ui_color = "#e4f1dc"
    operator_extra_links = (SweepResultsLink(),)

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str | None,
        handle: Mapping[str, Any] | str | None,
        poll_interval: float | str | timedelta = 15.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        notify: Sequence[NotifySection] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.handle = handle
        self.poll_interval = seconds_of("poll_interval", poll_interval)
        self.timeout = None if timeout is None else seconds_of("timeout", timeout)
        self.cancel_on_kill = cancel_on_kill
        self.notify = tuple(notify)

    def execute(self, context: Context) -> dict[str, Any]:
        """Start waiting, or continue after an earlier try of this task was killed."""
        return self._start_waiting(context)

    def _start_waiting(self, context: Context, *, again: bool = False) -> dict[str, Any]:
        """Wait for the newest attempt, or submit the next one.

        :param again: whether this try has waited before, and so has acted on a clearing of the task
        """
        if self.job is None or self.handle is None:
            raise without_job()
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        handle = self._own_handle(job)
        if handle.finished:
            return {"job": job.name, "attempt": handle.attempt, "outcome": "finished", "passed_over": True}
        cleared = not again and just_cleared(context)
        if handle.cancelled and not again and not cleared:
            raise AirflowSkipException(f"{job.name} was cancelled before, by its own condition")
        if cleared:
            report_changes(context, job, self.log)
        attempts = job_attempts(job, self.log)
        drop_cancellation(attempts.cluster.ssh_conn_id, job.stage_dir, run_of(context))
        try:
            state = attempts.state()
        except LoginRefusedError as error:
            raise AirflowFailException(str(error)) from None
        except TransportError as error:
            self.log.warning("%s; waiting for the job that was submitted", error)
            drop_cancellation(attempts.cluster.ssh_conn_id, job.stage_dir, run_of(context), unseen=True)
            return self._wait(job, handle)
        number = attempt_after_giving_up(state)
        if number is not None and cleared:
            self.log.info("attempt %d of %s failed for good, and this task was cleared", number - 1, job.name)
            withdraw_ahead(attempts)
            return self._submit_next(job, number)
        due = current_attempt(state)
        latest = next((attempt for attempt in state.attempts if attempt.number == due), None)
        waited_for: Any = context["task_state_store"].get(WAITED_FOR)
        if latest and cleared and was_waited_for(state, handle.attempt, waited_for):
            # Airflow starts this try before the trigger of the last one cancels the job
            self.log.info("this task was cleared while attempt %d ran", due)
            withdraw_ahead(attempts)
            withdraw_chain(attempts, after=due)
            attempts.cancel(due, str(latest.job_id), latest.job_name)
            return self._submit_next(job, due + 1)
        context["task_state_store"].set(WAITED_FOR, state.latest_attempt)
        if latest is None or latest.number < handle.attempt:
            return self._wait(job, handle)
        if number is not None and (end := state.verdict) is not None and end.intended:
            attempts.cancel(latest.number, str(latest.job_id), latest.job_name)
            raise AirflowSkipException(f"{job.name} was cancelled: {end.reason}")
        judged = latest.judged
        if judged is not None:
            # an earlier try of this task was killed between its verdict and the next step
            handle = JobHandle(job.name, latest.number, latest.job_id, job_name=latest.job_name)
            step = next_step(history(state, latest.number), judged, restart_policy(job))
            return self._execute_step(job, handle, judged, step, None)
        if latest.number > handle.attempt:
            return self._submit_next(job, latest.number)  # an earlier try started the submission
        return self._wait(job, handle)

    def _own_handle(self, job: Job) -> JobHandle:
        """Return the result of `submit`; whoever may write XComs cannot have another sweep's job watched or cancelled.

        :raises AirflowFailException: if it is not an attempt of the job
        """
        value, handle = self.handle, None
        if isinstance(value, Mapping) and whole(value.get("attempt"), -1) >= 0:
            handle = JobHandle.from_json(value)
        if handle is None or not handle.is_of(job):
            raise AirflowFailException(f"the result of `submit` is not a job of {job.name}; clear `submit`")
        return handle

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Act on a verdict, or on occurrences of a running job."""
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        what = JobEvent.from_json(event)
        handle = what.handle
        if handle.job != job.name:  # see DeferringTask; of a task that an older version deferred
            self.log.warning("this task was sent the end of %s; waiting for %s again", handle.job, job.name)
            return self._start_waiting(context, again=True)
        if what.is_deadline:
            self._show_tail(what)
            raise AirflowFailException(
                f"{job.name}: no verdict before the task's timeout; the job continues in Slurm"
            )
        seen = what.seen or ()
        if what.verdict is None:
            self._carry_out(job, handle, seen, what)
            ended = while_running(seen, handle.job_id)
            if ended is None:
                self._keep_tail(what)
                return self._wait(job, handle, what.memory)
        else:
            if what.verdict.outcome is not Outcome.DUPLICATE:
                self._carry_out(job, handle, seen, what)
            ended = at_end(job, what.verdict, seen)
        if ended.cancelled:
            self._cancelled(job, handle, ended.verdict)
        # recorded before the job is cancelled, so that a later try knows the intention if this process is killed
        return self._follow_up(job, handle, ended.verdict, what)

    def record_again(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Record a verdict for which the run root had no space."""
        job, kept = Job.from_json(self.job), UnwrittenVerdict.from_json(event)  # type: ignore[arg-type]
        return self._follow_up(job, kept.event.handle, kept.verdict, kept.event, refused=kept.refused)

    def conclude_cancelled(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Follow the attempt that has replaced a cancelled one, or record the cancellation."""
        job, kept = Job.from_json(self.job), UnwrittenVerdict.from_json(event)  # type: ignore[arg-type]
        return self._follow_up(job, kept.event.handle, kept.verdict, kept.event, looked_again=True)

    def _follow_up(
        self,
        job: Job,
        handle: JobHandle,
        verdict: Verdict,
        event: JobEvent,
        *,
        refused: int = 0,
        looked_again: bool = False,
    ) -> dict[str, Any]:
        """Record a verdict and carry out the next step.

        :param refused: number of earlier failures to write it
        :param looked_again: whether another run has had time to replace a cancelled attempt
        """
        attempts, seen = job_attempts(job, self.log), verdict
        state = attempts.state()
        recorded = state.verdict
        if recorded is not None and recorded.withdrawn and recorded.attempt == handle.attempt:
            raise AirflowFailException(f"{job.name} was cancelled: {recorded.reason}")
        if verdict.outcome is Outcome.CANCELLED and not verdict.stopped:
            if state.was_replaced(handle.attempt):
                return self._follow_replacement(job, handle, state)
            if job.pin and not job.point and not (looked_again or refused):
                self._look_again(handle, verdict, event)
        own = without_later_attempts(job, verdict, state, handle.attempt)
        decided = [own, verdict] if verdict.outcome is Outcome.FINISHED and own != verdict else [own]
        for found in decided:
            verdict, step = concluded(
                found,
                history(state, handle.attempt),
                restart_policy(job),
                now=time.time(),
                tracker=state.tracker,
                trains=job.trains,
            )
            if not isinstance(step, GiveUp):
                break  # otherwise a budget is used up, but a later attempt has finished the job
        if isinstance(step, Follow):
            return self._wait(job, dataclasses.replace(handle, job_id=step.job_id))
        given_up_for = step.reason if isinstance(step, GiveUp) else ""
        try:
            attempts.record_verdict(handle.attempt, verdict, given_up=given_up_for)
        except RemoteWriteError as error:
            if verdict.stopped:
                raise  # the job runs: the next try cancels it
            self._record_later(job, handle, seen, event, error, refused=refused + 1)
        send(self._notify(job), end_notice(job, handle.attempt, verdict, step, event.log_tail))
        return self._execute_step(job, handle, verdict, step, event)

    def _look_again(self, handle: JobHandle, verdict: Verdict, event: JobEvent) -> NoReturn:
        """Give another run, whose task was cleared, the time to submit the next attempt of a stage that runs share."""
        pause = max(REPLACEMENT_S, 2 * self.poll_interval)
        self.log.info(
            "attempt %d was cancelled; looking in %.0f s whether another run replaces it",
            handle.attempt,
            pause,
        )
        carry = UnwrittenVerdict(event, verdict, 0).to_json()
        trigger = PauseTrigger(until=time.time() + pause, carry=carry)
        self.defer(trigger=trigger, method_name="conclude_cancelled")
        raise AssertionError("defer does not return")

    def _follow_replacement(self, job: Job, handle: JobHandle, state: StageRecord) -> dict[str, Any]:
        """Wait for the attempt with which another run has replaced a cancelled one; runs share stages of the sweep.

        :raises AirflowFailException: if that attempt runs another command
        """
        by = f"attempt {state.latest_attempt}, because its task in another run was cleared or started afresh"
        if state.submission is None or state.submission.digest != job_digest(job):
            raise AirflowFailException(
                f"{job.name}: attempt {handle.attempt} was cancelled and replaced by {by}, with another command; clear"
                " this task to run this run's command"
            )
        self.log.warning("attempt %d was cancelled and replaced by %s", handle.attempt, by)
        return self._start_waiting(get_current_context(), again=True)

    def _record_later(
        self,
        job: Job,
        handle: JobHandle,
        verdict: Verdict,
        event: JobEvent,
        error: Exception,
        *,
        refused: int,
    ) -> NoReturn:
        """Wait until a verdict can be written: a full disk or quota may take longer than all tries of the task.

        :param refused: number of failures to write it; the second one is reported by a notice
        """
        reason = f"the verdict cannot be written below {job.stage_dir}: {error}"
        action = f"make space there; it is written again every {WRITE_PAUSE_S:.0f} s"
        self.log.warning("%s; %s", reason, action)
        if refused == _NOTIFIED_REFUSAL:
            full = Occurrence("notify", f"{reason}; {action}")
            send(
                self._notify(job), event_notice(job, handle.attempt, str(handle.job_id), full, event.log_tail)
            )
        pause = WRITE_PAUSE_S if refused >= _NOTIFIED_REFUSAL else min(self.poll_interval, WRITE_PAUSE_S)
        carry = UnwrittenVerdict(event, verdict, refused).to_json()
        self.defer(
            trigger=PauseTrigger(until=time.time() + pause * random.uniform(0.75, 1.25), carry=carry),
            method_name="record_again",
        )
        raise AssertionError("defer does not return")

    def _execute_step(
        self, job: Job, handle: JobHandle, verdict: Verdict, step: NextStep, event: JobEvent | None
    ) -> dict[str, Any]:
        """Carry out the next step after a recorded verdict."""
        attempts = job_attempts(job, self.log)
        if isinstance(step, Restart) and follows_by_itself(attempts, handle.attempt, verdict):
            self.log.info(
                "attempt %d %s; attempt %d is queued", handle.attempt, step.reason, handle.attempt + 1
            )
            return self._submit_next(job, handle.attempt + 1)
        if not isinstance(step, Done):
            withdraw_ahead(attempts)
        withdraw_chain(attempts, after=handle.attempt)
        if verdict.stopped and handle.job_id:
            attempts.cancel(handle.attempt, handle.job_id, handle.job_name)
        if isinstance(step, Done):
            attempts.record_end(handle.attempt, verdict)
            self.log.info("finished: %s", verdict.reason)
            if verdict.warning:
                self.log.warning("finished with a warning: %s", verdict.warning)
            if job.pin:
                context = get_current_context()
                several = _is_one_of_several(job, context)
                store_evaluations(job, attempts.run, sweep_run(context), several=several)
            return {"job": job.name, "attempt": handle.attempt, **verdict.to_json()}
        if isinstance(step, Restart):
            off = f", off {', '.join(step.exclude_nodes)}" if step.exclude_nodes else ""
            pause = pendulum.duration(seconds=round(step.delay_s))
            when = f"in {pause.in_words()}" if pause else "now"
            self.log.warning("attempt %d %s; next attempt %s%s", handle.attempt, step.reason, when, off)
            if event is not None:
                self._keep_tail(event)
            return self._submit_after(job, step.delay_s, handle.attempt + 1)
        reason = step.reason if isinstance(step, GiveUp) else verdict.reason
        attempts.record_end(handle.attempt, given_up(verdict, reason))
        if event is not None:
            self._show_tail(event)
        explanation = explained(reason, verdict.line)
        error = last_error(event.error if event is not None else None, explanation)
        raise AirflowFailException(
            f"{job.name}: {explanation}.{error} Whole log: {job.log_file(handle.attempt)}"
        )

    def _carry_out(self, job: Job, handle: JobHandle, seen: Sequence[Occurrence], event: JobEvent) -> None:
        """Report occurrences, and run the commands that they request."""
        for item in seen:
            self.log.warning("%s: %s", item.do, item.reason)
            notice = event_notice(job, handle.attempt, str(handle.job_id), item, event.log_tail)
            send(self._notify(job), notice)
            if item.do == "run":
                variables = {f"am_match_{name}": text for name, text in item.groups.items()}
                self.log.info("%s", job_attempts(job, self.log).run_command(item.command, variables))

    def _notify(self, job: Job) -> Sequence[NotifySection]:
        """Return the notifiers that the job's run has pinned."""
        pinned = pinned_outline(get_current_context()) if job.pin else None
        return pinned.settings.notify if pinned else self.notify

    def _cancelled(self, job: Job, handle: JobHandle, verdict: Verdict) -> NoReturn:
        """Record the intended and final cancellation of a job, and cancel its attempts."""
        attempts = job_attempts(job, self.log)
        withdraw_ahead(attempts)
        withdraw_chain(attempts, after=handle.attempt)
        attempts.record_end(handle.attempt, verdict, intended=True)
        attempts.cancel(handle.attempt, str(handle.job_id), handle.job_name)
        raise AirflowSkipException(f"{job.name} was cancelled: {verdict.reason}")

    def submit_next(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Submit the next attempt after a pause."""
        due = DueAttempt.from_json(event)
        return self._submit_next(Job.from_json(self.job), due.number)  # type: ignore[arg-type]

    def _submit_after(self, job: Job, pause: float, number: int) -> dict[str, Any]:
        if pause > 0:
            self.defer(
                trigger=PauseTrigger(until=time.time() + pause, carry=DueAttempt(number).to_json()),
                method_name="submit_next",
            )
        return self._submit_next(job, number)

    def submit_again(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Submit the next attempt when there is room in the queue."""
        job, due = Job.from_json(self.job), DueAttempt.from_json(event)  # type: ignore[arg-type]
        return self._submit_next(job, due.number, started=True, since=due.since)

    def submit_started(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Submit the next attempt when the start condition holds again."""
        job, ended = Job.from_json(self.job), WaitEvent.from_json(event)  # type: ignore[arg-type]
        if ended.status == "finished":
            verdict = job_attempts(job, self.log).record_finished("its finish condition holds")
            return {"job": job.name, **verdict.to_json()}
        number = DueAttempt.from_json(ended.carry or {}).number
        if ended.is_timeout:
            if job.start is not None:
                yield_to_watch_tasks(stages_of(job.start), job_attempts(job, self.log).cluster, self.log)
            return self._submit_next(job, number)
        if ended.status != "holds":
            raise AirflowFailException(f"the start condition {ended.status}: {ended.reason}")
        return self._submit_next(job, number, started=True)

    def _submit_next(
        self, job: Job, number: int, *, started: bool = False, since: float | None = None
    ) -> dict[str, Any]:
        attempts = job_attempts(job, self.log)
        if job.start is not None and job.start_every_attempt and not started:
            self.log.info("before the next attempt, waiting for: %s", job.start)
            self.defer(
                trigger=ConditionTrigger(
                    ssh_conn_id=attempts.cluster.ssh_conn_id,
                    commands=attempts.commands.to_json(),
                    condition=job.start.to_json(),
                    finish=job.finish.to_json() if job.finish else None,
                    check_interval=job.check_interval or 0.0,
                    poll_interval=self.poll_interval,
                    deadline=serial_deadline(None),
                    carry=DueAttempt(number).to_json(),
                ),
                method_name="submit_started",
            )
        try:
            submitted = submit_attempt(
                attempts,
                number,
                functools.partial(_refuse_cancelled, attempts, number),
                origin=task_origin(get_current_context()),
            )
        except RunNotFitError as error:
            verdict = Verdict(Outcome.FAILED, str(error))
            attempts.record_end(max(number - 1, 1), verdict)
            raise AirflowFailException(f"{job.name}: {error}") from None
        except (SubmissionRefusedError, LoginRefusedError) as error:
            raise AirflowFailException(str(error)) from None
        except TransportError as error:
            self.defer(
                trigger=wait_for_login_node(attempts, number, error, poll_interval=self.poll_interval),
                method_name="submit_again",
            )
        if isinstance(submitted, StillWriting):
            return self._submit_after(job, self.poll_interval, number)
        if isinstance(submitted, SubmissionOutcome):
            self.defer(
                trigger=wait_for_room(
                    attempts, number, submitted, poll_interval=self.poll_interval, since=since
                ),
                method_name="submit_again",
            )
        return self._wait(job, submitted)

    def _wait(
        self,
        job: Job,
        handle: JobHandle,
        memory: AttemptMemory | None = None,
    ) -> dict[str, Any]:
        attempts = job_attempts(job, self.log)
        attempt = attempt_of(job, handle.attempt)
        trains = job.trains and leaves_checkpoints(job)
        self.log.info("watching Slurm job %s, attempt %d of %s", handle.job_id, handle.attempt, job.name)
        self.defer(
            trigger=SlurmJobTrigger(
                ssh_conn_id=attempts.cluster.ssh_conn_id,
                commands=attempts.commands.to_json(),
                job_id=str(handle.job_id),
                job_name=handle.job_name or attempt.job_name,
                attempt_dir=attempt.directory,
                log_file=job.log_file(handle.attempt),
                kind="train" if trains else "command",
                train_iters=job.last_iteration if trains else None,
                final_evaluation=trains and ends_with_evaluation(job, attempts.cluster),
                checkpoint_dir=job.checkpoint_dir if job.stage_kind.reports_checkpoints else None,
                required_files=job.outputs,
                pieces=_pieces(job),
                poll_interval=self.poll_interval,
                visibility_window=float(attempts.cluster.visibility_window),
                deadline=time.time() + self.timeout if self.timeout else None,
                cancel_on_kill=self.cancel_on_kill,
                chained=is_chained(job),
                behind=stages_behind(job, self.log),
                conditions=self._conditions(attempts, handle).to_json(),
                health=health.to_json() if (health := _health(job, attempts.cluster)) is not None else None,
                memory=memory.to_json() if memory is not None else None,
                resumes_from=handle.resumes_from,
                log_from=handle.log_from,
                signatures=job_plan_environment(job).signatures,
                secrets=job.delivered,
                results=self._results(job),
                taken_up=claim_of(attempts.cluster.ssh_conn_id, job.stage_dir).taken,
                carry={"handle": handle.to_json()},
            ),
            method_name="execute_complete",
        )
        raise AssertionError("defer does not return")

    def _results(self, job: Job) -> dict[str, Any]:
        """Return the data that the store of results keeps with the rows of a sweep's job; empty for other jobs."""
        if not job.pin:
            return {}
        context = get_current_context()
        row = sweep_jobs([job], several=_is_one_of_several(job, context))[0]
        return source_values(row, job.sweep, sweep_run(context))

    def _conditions(self, attempts: JobAttempts, handle: JobHandle) -> AttemptConditions:
        """Return the conditions and events that the trigger evaluates."""
        job = attempts.job
        return AttemptConditions(
            cancel=job.cancel,
            cancel_text=str(job.cancel) if job.cancel is not None else "",
            finish=job.finish,
            events=tuple(job.events),
            check_interval=job.check_interval or 0.0,
            runs=self._runs(attempts, handle),
        )

    def _runs(self, attempts: JobAttempts, handle: JobHandle) -> dict[str, int]:
        """Return the first attempts that count for the conditions of a job, to exclude outputs of earlier runs."""
        conditions = conditions_of(attempts.job)
        if not conditions:
            return {}
        runs: dict[str, int] = {}
        try:
            runs = runs_of_others(attempts, conditions)
        except (LoginRefusedError, TransportError) as error:
            self.log.warning("%s; the conditions of %s apply to all attempts", error, attempts.job.name)
        return {**runs, attempts.job.stage_dir: handle.run_began}

    def _keep_tail(self, event: JobEvent) -> None:
        """Write the last lines that the trigger has shown to the task's log.

        If several triggers wait in one try, Airflow 3.3 keeps only the log of the newest trigger
        (``TriggerLoggingFactory`` truncates the file).
        """
        for line in event.log_tail:
            self.log.info("| %s", line)

    def _show_tail(self, event: JobEvent) -> None:
        lines = event.log_tail[-LINES_OF_FAILURE:] or ("(the job wrote nothing)",)
        self.log.error("last lines of the job's log:\n%s", "\n".join(lines))
        decided_by = event.verdict.line if event.verdict is not None else None
        if decided_by:
            self.log.error("the line that decided: %s", harmless(decided_by.encode()))


def last_error(error: str | None, explanation: str) -> str:
    """Return a sentence with the last error of the log, empty if the explanation of the failure contains it.

    :param error: exception or kind of the error, and its message (:attr:`.JobEvent.error`)
    """
    if not error or (error.partition(": ")[2] or error) in explanation:
        return ""
    return f" The log says: {error}."


def _is_one_of_several(job: Job, context: Context) -> bool:
    """Return whether a job runs once on each of several clusters; its name in results then contains the cluster."""
    outline = None if job.point else pinned_outline(context)
    return bool(outline and outline.settings.clusters)


def _refuse_cancelled(attempts: JobAttempts, number: int, first: int) -> None:
    """Refuse an attempt of a job whose cancel condition holds.

    :raises AirflowSkipException: if the condition holds; the end of the job is recorded
    """
    job = attempts.job
    if holds(job.cancel, attempts, number, first):
        reason = f"its cancel condition holds before it is submitted: {job.cancel}"
        attempts.record_end(number - 1, Verdict(Outcome.CANCELLED, reason), intended=True)
        raise AirflowSkipException(f"{job.name} was cancelled: {reason}")


def _pieces(job: Job) -> list[str]:
    """Return the patterns of the outputs that a job writes for each checkpoint that it processes."""
    conditions = [condition for condition in (job.start, job.finish) if condition is not None]
    leaves = [leaf for condition in conditions for leaf in condition.leaves() if leaf.done]
    done = [leaf.done for leaf in leaves]
    if job.source is not None and job.source.is_pattern:
        each_run = RunLayout(escaped(job.run_dir)).of_run("*")
        done.append(job.stage_kind.done(each_run, "{iteration}"))
    return list(dict.fromkeys(pattern.replace("{iteration}", "*") for pattern in done))


def _health(job: Job, cluster: ClusterProfile) -> HealthSettings | None:
    """Return the settings with which the trigger checks the health of a training."""
    if job.health is None:
        return None
    arguments = TrainingArguments(job, JobArguments(cluster))
    intervals = (arguments.count("save_interval"), arguments.count("eval_interval"))
    return HealthSettings(job.health, tuple(every for every in intervals if every))
