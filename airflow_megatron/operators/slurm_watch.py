"""Operator that follows a submitted job through its attempts to a verdict."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.hooks.slurm import LoginRefusedError
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.operators.slurm_submit import QUEUE_FULL_PAUSE_S, job_attempts
from airflow_megatron.operators.tries import just_cleared
from airflow_megatron.operators.turns import pass_turn, stages_of, turn_deadline
from airflow_megatron.planning.attempts import SubmissionRefusedError, attempt_after_giving_up
from airflow_megatron.planning.expected_ends import as_expected
from airflow_megatron.planning.handle import JobHandle
from airflow_megatron.planning.live_log import harmless
from airflow_megatron.planning.training_arguments import TrainingArguments
from airflow_megatron.slurm.job_script import attempt_of
from airflow_megatron.slurm.restarts import Done, Follow, GiveUp, RestartPolicy, given_up, next_step
from airflow_megatron.slurm.transport import TransportError
from airflow_megatron.slurm.verdict import Outcome, Verdict
from airflow_megatron.spec.jobs import Job
from airflow_megatron.triggers.condition import ConditionTrigger
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.spec.cluster_profile import ClusterProfile

LINES_OF_FAILURE = 20


class SlurmWatchOperator(BaseOperator):
    """Wait for a job; submit the next attempt when one ends before the job is done and its restart policy allows it.

    Done is decided by what the job left behind (for training: the last iteration's complete checkpoint), not by
    Slurm's COMPLETED. Marking the task failed, or clearing it, cancels the Slurm job. Clearing a task that has given a
    job up submits the next attempt.

    :param job: the job, as :meth:`airflow_megatron.spec.jobs.Job.to_json` gives it (templated)
    :param handle: what :class:`~airflow_megatron.operators.slurm_submit.SlurmSubmitOperator` returned (templated)
    :param poll_interval: seconds between two looks at the cluster
    :param timeout: seconds after which the task fails although the job goes on; None waits as long as it takes
    :param cancel_on_kill: cancel the job when the waiting task is marked failed or cleared
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
        poll_interval: float = 15.0,
        timeout: float | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.handle = handle
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill

    def execute(self, context: Context) -> dict[str, Any]:
        """Start waiting, or return at once for a job that had finished before."""
        if self.job is None or self.handle is None:
            raise AirflowSkipException("this point has no such stage")
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        handle = JobHandle(**self.handle)  # type: ignore[arg-type]
        if handle.finished:
            return {"job": job.name, "attempt": handle.attempt, "outcome": "finished", "passed_over": True}
        try:
            state = job_attempts(job, self.log).state()
        except LoginRefusedError as error:
            raise AirflowFailException(str(error)) from None
        except TransportError as error:
            self.log.warning("%s; waiting for the job that was submitted", error)
            return self._wait(job, handle)
        number = attempt_after_giving_up(state)
        if number is not None and just_cleared(context):
            self.log.info("attempt %d of %s was given up, and this task was cleared", number - 1, job.name)
            return self._submit_next(number, exclude=(), history=[])
        if state.latest_attempt > handle.attempt:
            # an earlier try of this task began it
            return self._submit_next(state.latest_attempt, exclude=(), history=[])
        return self._wait(job, handle)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Act on the attempt's verdict."""
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        handle = JobHandle(**event["carry"]["handle"])
        history: list[dict[str, Any]] = event["carry"]["history"]
        if "seen" in event:
            return self._act(job, handle, history, event)
        if "verdict" not in event:
            self._show_tail(event)
            raise AirflowFailException(
                f"{job.name}: no verdict before the task's timeout; the job goes on in Slurm"
            )
        verdict = as_expected(job, Verdict.from_json(event["verdict"]))
        return self._follow_up(job, handle, history, verdict, event)

    def _follow_up(
        self,
        job: Job,
        handle: JobHandle,
        history: list[dict[str, Any]],
        verdict: Verdict,
        event: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Record a verdict and do what follows from it."""
        step = next_step([Verdict.from_json(item) for item in history], verdict, _policy(job))
        if isinstance(step, Follow):
            return self._wait(job, dataclasses.replace(handle, job_id=step.job_id), history)
        attempts = job_attempts(job, self.log)
        attempts.record_verdict(handle.attempt, verdict.to_json())
        if isinstance(step, Done):
            attempts.record_end(handle.attempt, verdict.to_json())
            self.log.info("finished: %s", verdict.reason)
            return {"job": job.name, "attempt": handle.attempt, **verdict.to_json()}
        if isinstance(step, GiveUp):
            attempts.record_end(handle.attempt, given_up(verdict, step.reason).to_json())
            self._show_tail(event)
            error = f" The log says: {event['error']}" if event.get("error") else ""
            raise AirflowFailException(
                f"{job.name}: {step.reason}.{error} Whole log: {job.log_file(handle.attempt)}"
            )
        self._keep_tail(event)
        self.log.warning("attempt %d %s; next attempt in %.0f s", handle.attempt, step.reason, step.delay_s)
        return self._submit_after(
            step.delay_s, handle.attempt + 1, step.exclude_nodes, [*history, verdict.to_json()]
        )

    def _act(
        self, job: Job, handle: JobHandle, history: list[dict[str, Any]], event: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Do what an event of the running job, or its cancel condition, asks for."""
        attempts = job_attempts(job, self.log)
        for seen in event["seen"]:
            self.log.warning("%s: %s", seen["do"], seen["reason"])
            if seen["do"] == "run":
                variables = {f"am_match_{name}": text for name, text in seen["groups"].items()}
                self.log.info("%s", attempts.run_command(seen["command"], variables))
        # the first that ends the attempt decides what becomes of it
        seen = next((item for item in event["seen"] if item["do"] not in ("notify", "run")), None)
        if seen is None:
            self._keep_tail(event)
            return self._wait(job, handle, history, event["memory"])
        reason = str(seen["reason"])
        attempts.cancel(handle.attempt, str(handle.job_id))
        outcome = {
            "cancel": Outcome.CANCELLED,
            "finish": Outcome.FINISHED,
            "fail": Outcome.FAILED,
            "restart": Outcome.RETRYABLE,
        }[seen["do"]]
        verdict = Verdict(outcome, reason, job_id=str(handle.job_id))
        if outcome is Outcome.CANCELLED:
            attempts.record_verdict(handle.attempt, verdict.to_json())
            attempts.record_end(handle.attempt, {**verdict.to_json(), "intended": True})
            raise AirflowSkipException(f"{job.name} was cancelled: {reason}")
        return self._follow_up(job, handle, history, verdict, event)

    def submit_next(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Submit the next attempt after a pause."""
        return self._submit_next(event["number"], event["exclude"], event["history"])

    def _submit_after(
        self, pause: float, number: int, exclude: Sequence[str], history: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if pause > 0:
            carry = {"number": number, "exclude": list(exclude), "history": history}
            self.defer(
                trigger=PauseTrigger(until=time.time() + pause, carry=carry), method_name="submit_next"
            )
        return self._submit_next(number, exclude, history)

    def submit_started(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Submit the next attempt when the start condition holds again."""
        if event["status"] == "finished":
            verdict = job_attempts(Job.from_json(self.job), self.log).record_finished(  # type: ignore[arg-type]
                "its finish condition holds"
            )
            return {"job": self.job["name"], **verdict.to_json()}  # type: ignore[index]
        carry = event["carry"]
        if event["status"] == "timeout":
            job = Job.from_json(self.job)  # type: ignore[arg-type]
            if job.start is not None:
                pass_turn(stages_of(job.start), job_attempts(job, self.log).cluster, self.log)
            return self._submit_next(carry["number"], carry["exclude"], carry["history"])
        if event["status"] != "holds":
            raise AirflowFailException(f"the start condition {event['status']}: {event['reason']}")
        return self._submit_next(carry["number"], carry["exclude"], carry["history"], started=True)

    def _submit_next(
        self, number: int, exclude: Sequence[str], history: list[dict[str, Any]], *, started: bool = False
    ) -> dict[str, Any]:
        job = Job.from_json(self.job)  # type: ignore[arg-type]
        if job.start is not None and job.start_every_attempt and not started:
            attempts = job_attempts(job, self.log)
            self.log.info("before the next attempt, waiting for: %s", job.start)
            self.defer(
                trigger=ConditionTrigger(
                    ssh_conn_id=attempts.cluster.ssh_conn_id,
                    commands=dataclasses.asdict(attempts.commands),
                    condition=job.start.to_json(),
                    finish=job.finish.to_json() if job.finish else None,
                    check_interval=job.check_interval or 0.0,
                    poll_interval=self.poll_interval,
                    deadline=turn_deadline(None),
                    carry={"number": number, "exclude": list(exclude), "history": history},
                ),
                method_name="submit_started",
            )
        try:
            outcome = job_attempts(job, self.log).submit(number, exclude=exclude)
        except (SubmissionRefusedError, LoginRefusedError) as error:
            raise AirflowFailException(str(error)) from None
        if outcome.status == "deferred":
            self.log.warning("Slurm cannot take the job now: %s", outcome.message)
            return self._submit_after(QUEUE_FULL_PAUSE_S, number, exclude, history)
        self.log.info("%s", outcome.message)
        return self._wait(job, JobHandle(job.name, number, outcome.job_id), history)

    def _wait(
        self,
        job: Job,
        handle: JobHandle,
        history: list[dict[str, Any]] | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        attempts = job_attempts(job, self.log)
        attempt = attempt_of(job, handle.attempt)
        self.log.info("watching Slurm job %s, attempt %d of %s", handle.job_id, handle.attempt, job.name)
        self.defer(
            trigger=SlurmJobTrigger(
                ssh_conn_id=attempts.cluster.ssh_conn_id,
                commands=dataclasses.asdict(attempts.commands),
                job_id=str(handle.job_id),
                job_name=attempt.job_name,
                attempt_dir=attempt.directory,
                log_file=job.log_file(handle.attempt),
                kind="train" if job.kind == "train" else "command",
                train_iters=int(job.params["train_iters"]) if job.kind == "train" else None,
                checkpoint_dir=job.checkpoint_dir if job.kind == "train" else None,
                required_files=job.outputs,
                poll_interval=self.poll_interval,
                deadline=time.time() + self.timeout if self.timeout else None,
                cancel_on_kill=self.cancel_on_kill,
                conditions=_conditions(job),
                health=_health(job, attempts.cluster),
                memory=memory,
                carry={"handle": dataclasses.asdict(handle), "history": history or []},
            ),
            method_name="execute_complete",
        )
        raise AssertionError("defer does not return")

    def _keep_tail(self, event: Mapping[str, Any]) -> None:
        """Write the last lines that the trigger has shown into this task's own log.

        Of the triggers that wait within one try, Airflow 3.3 keeps the log of the newest only
        (``TriggerLoggingFactory`` opens the file anew).
        """
        for line in event.get("log_tail", ()):
            self.log.info("| %s", line)

    def _show_tail(self, event: Mapping[str, Any]) -> None:
        lines = event.get("log_tail", ())[-LINES_OF_FAILURE:] or ["(the job wrote nothing)"]
        self.log.error("last lines of the job's log:\n%s", "\n".join(lines))
        decided_by = event.get("verdict", {}).get("line")
        if decided_by:
            self.log.error("the line that decided: %s", harmless(decided_by.encode()))


def _conditions(job: Job) -> dict[str, Any]:
    """Return what the trigger has to look for besides the job's end."""
    conditions: dict[str, Any] = {}
    if job.cancel is not None:
        conditions |= {"cancel": job.cancel.to_json(), "cancel_text": str(job.cancel)}
    if job.finish is not None:
        conditions["finish"] = job.finish.to_json()
    if job.events:
        conditions["events"] = [event.to_json() for event in job.events]
    if job.check_interval is not None:
        conditions["check_interval"] = job.check_interval
    return conditions


def _health(job: Job, cluster: ClusterProfile) -> dict[str, Any] | None:
    """Return what the trigger has to look for in a training's log."""
    if job.health is None:
        return None
    arguments = TrainingArguments(job, cluster)
    intervals = (arguments.count("save_interval"), arguments.count("eval_interval"))
    return {"rules": job.health.model_dump(), "intervals": [every for every in intervals if every]}


def _policy(job: Job) -> RestartPolicy:
    section = job.restart
    return RestartPolicy(
        rolled_over=section.rolled_over,
        retryable=section.retryable,
        out_of_memory=section.out_of_memory,
        failed=section.failed,
        cancelled=section.cancelled,
        no_progress=section.no_progress,
        backoff_s=float(section.backoff),
        exclude_failed_nodes=section.exclude_failed_nodes,
    )
