"""Trigger that watches one attempt of a job until its verdict."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import redact  # type: ignore[attr-defined]
from airflow.triggers.base import TriggerEvent

from airflow_megatron.hooks.job_secrets import mask_secrets
from airflow_megatron.hooks.late_cancellations import cancel_killed, carry_out_later
from airflow_megatron.megatron.checkpoints.completeness import checkpoint_verdict
from airflow_megatron.megatron.health.training_health import Alarm, HealthSettings, TrainingHealth
from airflow_megatron.megatron.logs.final_evaluation import missing_evaluation
from airflow_megatron.megatron.logs.resume_check import ResumeCheck
from airflow_megatron.results.store.job_rows import JobRows, source_of
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.missing_job import MissingJob
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.progress import Progress
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict
from airflow_megatron.spec.layout.run_layout import AttemptDir
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.supervision.attempt_follower import AttemptFollower, OwnConditions
from airflow_megatron.supervision.attempt_memory import AttemptMemory
from airflow_megatron.supervision.condition_watch import AttemptConditions, ConditionResult, OwnAttempt
from airflow_megatron.supervision.event_watch import EventWatch
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.submission.remembered_cancellations import MARKED_OR_CLEARED, Cancellation
from airflow_megatron.task_runtime.cluster_poller import trigger_hook
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.task_runtime.condition_follower import beside_the_loop, followed
from airflow_megatron.task_runtime.job_report import JobReport
from airflow_megatron.task_runtime.site_signatures import site_signatures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.task_runtime.condition_follower import ConditionFollower

ON_KILL_STEP_S = 6.0
"""Time limit of a remote command in seconds; Airflow allows ``on_kill`` 30 s for up to five commands."""

_CANCELLING: set[asyncio.Future[None]] = set()
"""Cancellations in progress; the references keep their tasks alive."""
_QUEUED = frozenset({JobState.PENDING, JobState.CONFIGURING, JobState.REQUEUED, JobState.REQUEUE_HOLD})


class SlurmJobTrigger(ClusterTrigger):
    """Wait until an attempt has a verdict.

    Yields one event: ``{"verdict": …, "seen": [occurrences at the end], "log_tail": [last lines]}``; ``{"seen":
    [occurrences]}`` if events of the running job request an action, or its cancel condition holds; or an event without
    both after the deadline.

    :param job_id: Slurm id
    :param job_name: exact Slurm name of the attempt
    :param attempt_dir: the attempt's directory on the cluster
    :param log_file: the attempt's log
    :param kind: ``train`` or ``command``
    :param train_iters: iteration at which training is done
    :param final_evaluation: whether the training must evaluate the test set at its end; otherwise a warning is reported
    :param checkpoint_dir: directory in which a training saves, or a command may save
    :param required_files: required output files of a command
    :param pieces: patterns of the files that it writes for each checkpoint that it processes
    :param visibility_window: seconds after which a job that Slurm does not report is lost
    :param cancel_on_kill: cancel the job if a user marks the task failed or clears it
    :param chained: whether attempts may be queued behind this one; they are cancelled with it
    :param behind: directories of stages that may be queued behind this one, whose queued attempts are cancelled with
        it; a stage precedes the stages that it waits for
    :param conditions: JSON of :class:`airflow_megatron.supervision.condition_watch.AttemptConditions`
    :param health: of a training: JSON of :class:`airflow_megatron.megatron.health.training_health.HealthSettings`
    :param memory: state of an earlier trigger of this attempt, from the ``memory`` of its event
    :param resumes_from: iteration of the checkpoint that training must load, 0 for none
    :param log_from: offset of this attempt's output in its log, in bytes; attempts may share a log
    :param signatures: signature files of the cluster profile: name → content, or names relative to the profile
    :param secrets: sources of the secrets that Airflow has delivered to the job, which are masked in its log
    :param results: data that the store of results keeps with each row (:func:`.results.store.job_rows.source_values`);
        empty for a job whose results are not stored
    :param taken_up: how often the stage had taken the job up when the task began to wait; a cancellation from before
        the last time does not count
    :param carry: data that the event returns unchanged, because ``airflow dags test`` loses the arguments of ``defer``
    :param cluster: as for :class:`~airflow_megatron.task_runtime.cluster_trigger.ClusterTrigger`
    """

    def __init__(
        self,
        *,
        job_id: str,
        job_name: str,
        attempt_dir: str,
        log_file: str,
        kind: str,
        train_iters: int | None = None,
        final_evaluation: bool = False,
        checkpoint_dir: str | None = None,
        required_files: Sequence[str] = (),
        pieces: Sequence[str] = (),
        visibility_window: float = 300.0,
        cancel_on_kill: bool = True,
        chained: bool = False,
        behind: Sequence[str] = (),
        conditions: Mapping[str, Any] | None = None,
        health: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        resumes_from: int = 0,
        log_from: int = 0,
        signatures: Mapping[str, str] | Sequence[str] = (),
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        results: Mapping[str, Any] | None = None,
        taken_up: int = 0,
        carry: Mapping[str, Any] | None = None,
        **cluster: Any,
    ) -> None:
        super().__init__(**cluster)
        self.job_id = job_id
        self.job_name = job_name
        self.attempt_dir = attempt_dir
        self.log_file = log_file
        self.kind = kind
        self.train_iters = train_iters
        self.final_evaluation = final_evaluation
        self.checkpoint_dir = checkpoint_dir
        self.required_files = list(required_files)
        self.pieces = list(pieces)
        self.visibility_window = visibility_window
        self.cancel_on_kill = cancel_on_kill
        self.chained = chained
        self.behind = list(behind)
        self.conditions = dict(conditions or {})
        self.health = dict(health or {})
        self.memory = dict(memory or {})
        self._earlier = AttemptMemory.from_json(self.memory)
        self.resumes_from = resumes_from
        self.log_from = log_from
        self.signatures = dict(signatures) if isinstance(signatures, Mapping) else list(signatures)
        self.secrets = dict(secrets or {})
        self.results = dict(results or {})
        self.taken_up = taken_up
        self.carry = dict(carry or {})
        self._stored: JobRows | None = None

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Watch the job; wait while the cluster is not available."""
        carry_out_later()
        if self.secrets:
            await asyncio.to_thread(
                mask_secrets, self.secrets
            )  # in a thread, because connections are looked up
        rows = self._stored = self._rows()
        report = JobReport(self.log, self.log_file, self._earlier.log, self.log_from, rows)
        # skip the part of the log that was read before
        resume = ResumeCheck(0 if self._earlier.log is not None else self.resumes_from)
        events = EventWatch(self._watched_for.events, self._earlier.events)
        health = self._training_health()
        follower = AttemptFollower(
            self._expectation(),
            MissingJob(self.job_id, self.visibility_window),
            site_signatures(self.signatures, self.log),
        )
        async with (
            self.poller.subscribe(self._watch(report.position)) as subscription,
            self._followed(self._watched_for.cancel) as cancel,
            self._followed(self._watched_for.finish) as finish,
        ):
            async for observation in subscription:
                report.read(observation)
                if rows is not None:
                    rows.look(observation)
                if (scratch := resume.read(report.records)) is not None:
                    yield self._event(report, seen=(Occurrence("fail", scratch, permanent=True),))
                    return
                conditions = OwnConditions(
                    await cancel.look(),
                    await finish.look(),
                    finish.missing(),
                    behind=cancel.is_behind or finish.is_behind,
                )
                judge = partial(follower.look, observation, bytes(report.tail), conditions)
                look = await beside_the_loop(observation.listing_work, judge)
                report.state(look.verdict, observation)
                skipped_to = report.skip_ahead(observation, ended=look.has_ended)
                if skipped_to is not None:
                    subscription.update(log_offset=skipped_to)
                if look.is_cancelled:
                    reason = f"its cancel condition holds: {self._watched_for.cancel_text}"
                    yield self._event(report, seen=(Occurrence("cancel", reason),))
                    return
                if look.has_ended:
                    last = look.is_last(
                        log_read=skipped_to is None and not report.unread(observation),
                        incomplete=bool(self._missing(look.verdict, report)),
                    )
                    showed = await self._seen(events, observation, report, end=look.verdict if last else None)
                    ended = follower.end(look, showed, last=last)
                    if ended is None:
                        continue
                    verdict, at_end = ended
                    if self.kind == "command":
                        verdict = replace(verdict, progress=self._progress(observation, report))
                    elif missing := self._missing(verdict, report):
                        verdict = replace(verdict, warning=missing)
                    report.finish()
                    if rows is not None:
                        rows.ended(verdict, observation)
                    yield self._event(report, verdict=verdict, seen=tuple(at_end), error=report.error)
                    return
                showed = await self._seen(events, observation, report)
                showed += [_occurrence(alarm) for alarm in _alarms(health, observation, report)]
                seen = follower.see(showed)
                if seen:
                    memory = AttemptMemory(
                        log=report.memory(),
                        events=events.memory(),
                        health=health.memory() if health is not None else None,
                        announced=follower.announced,
                    )
                    yield self._event(report, seen=tuple(seen), memory=memory)
                    return
                if self.is_overdue:
                    yield self._event(report)
                    return

    def _rows(self) -> JobRows | None:
        """Return the rows of this attempt for the store of results; None for a job whose results are not stored."""
        number = AttemptDir.of(self.attempt_dir).number
        source = source_of(self.results, attempt=number, job_id=self.job_id, log=self.log_file)
        return JobRows(source, hide=_hidden if self.secrets else None) if source else None

    @cached_property
    def _watched_for(self) -> AttemptConditions:
        """The conditions and events of the job."""
        return AttemptConditions.from_json(self.conditions)

    def _followed(self, condition: Condition | None) -> AbstractAsyncContextManager[ConditionFollower]:
        interval = self._watched_for.check_interval
        return followed(self.poller, condition, self._runs(), interval, self._own())

    def _own(self) -> OwnAttempt:
        """Return this attempt, for conditions on the job itself."""
        own = AttemptDir.of(self.attempt_dir)
        return OwnAttempt(own.stage_dir, own.number, self.log_from)

    def _runs(self) -> dict[str, int]:
        """Return the first attempt of the current run of each stage that conditions refer to."""
        own = self._own()
        return {own.stage_dir: own.number, **self._watched_for.runs}

    def _training_health(self) -> TrainingHealth | None:
        settings = HealthSettings.from_json(self.health)
        return TrainingHealth(settings, self._earlier.health) if settings is not None else None

    async def _seen(
        self, events: EventWatch, observation: Observation, report: JobReport, end: Verdict | None = None
    ) -> list[Occurrence]:
        """Return the events of this observation whose conditions hold, and count them as carried out.

        :param end: end of the job, at the last poll
        """
        holding: list[Occurrence] = []
        look = replace(observation, log_chunk=report.new_bytes)
        read = partial(events.read, look, progressed=report.progressed, end=end)
        for item in await beside_the_loop(events.work(look), read):
            condition = item.event.condition
            if condition is not None:
                async with followed(self.poller, condition, self._runs(), own=self._own()) as follower:
                    if await follower.look() is not ConditionResult.YES:
                        continue
            events.count(item.event)
            holding.append(item.occurrence)
        return holding

    def _event(self, report: JobReport, **values: Any) -> TriggerEvent:
        event: Any = JobEvent(log_tail=tuple(report.last_lines()), **values).to_json()
        if self.secrets:
            event = redact(event)
        return TriggerEvent({**event, "carry": self.carry})

    async def on_kill(self) -> None:
        """Cancel the job, because a user marked the waiting task failed or success, or cleared it."""
        if not self.cancel_on_kill:
            return
        # Airflow may cancel this call while it waits: the job must still be cancelled, and the cancellation recorded
        task = asyncio.ensure_future(self._cancel_job())
        _CANCELLING.add(task)
        task.add_done_callback(_CANCELLING.discard)
        await asyncio.shield(task)

    async def _cancel_job(self) -> None:
        """Cancel the job now, or as soon as the login node answers again, unless its task still waits."""
        if await self.task_still_waits():
            self.log.info("job %s is not cancelled: its task still waits", self.job_id)
            return
        hook = trigger_hook(self.ssh_conn_id, self.commands)
        settled = await cancel_killed(
            self.cancellation,
            hook,
            self.log,
            taken=self.taken_up,
            step_s=ON_KILL_STEP_S,
            cancelled=self._store_cancellation,
        )
        if not settled:
            carry_out_later()

    def _store_cancellation(self) -> None:
        """Store the end of the attempt, whose costs would be missing otherwise: no task waits for a verdict on it."""
        rows = self._stored or self._rows()
        if rows is not None:
            verdict = Verdict(Outcome.CANCELLED, MARKED_OR_CLEARED, job_id=self.job_id)
            rows.cancelled(verdict, time.time())

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation of the job."""
        return Cancellation(
            self.ssh_conn_id,
            self.commands,
            self.job_id,
            self.job_name,
            self.attempt_dir,
            chained=self.chained,
            behind=tuple(self.behind),
        )

    def _watch(self, log_offset: int) -> Watch:
        return Watch(
            key=f"{self.job_name}#{id(self)}",
            job_id=self.job_id,
            job_name=self.job_name,
            attempt_dir=self.attempt_dir,
            checkpoint_dir=self.checkpoint_dir,
            # for a command only the tracker is read
            checkpoint_from=(self.train_iters or 0) if self.kind == "train" else sys.maxsize,
            log_file=self.log_file,
            log_offset=log_offset,
            check_files=tuple(self.required_files),
            globs=tuple(self.pieces),
        )

    def _progress(self, observation: Observation, report: JobReport) -> Progress:
        saved = tracked_iteration(observation.tracker)
        made = [path for path in self.required_files if observation.existing.get(path, False)]
        made += [path for pattern in self.pieces for path in observation.matches.get(pattern, ())]
        return Progress(report.began, report.reached, saved, tuple(made))

    def _missing(self, verdict: Verdict, report: JobReport) -> str | None:
        """Return the warning about a training that has finished without its last evaluation, else None."""
        well = verdict.outcome is Outcome.FINISHED and verdict.warning is None
        return missing_evaluation(bytes(report.tail)) if self.final_evaluation and well else None

    def _expectation(self) -> Expectation:
        announced = self._earlier.announced
        if self.kind == "train":
            return Expectation("train", self.train_iters, complete=self._is_complete, announced=announced)
        return Expectation("command", required_files=tuple(self.required_files), announced=announced)

    def _is_complete(self, files: Mapping[str, int]) -> bool:
        # called only for the checkpoint in the tracker; formats without a final file depend on the tracker
        return checkpoint_verdict(files, iteration=self.train_iters, tracked=self.train_iters).is_complete


def _hidden(text: str) -> str:
    return str(redact(text))


def _occurrence(alarm: Alarm) -> Occurrence:
    return Occurrence(
        alarm.do, alarm.reason, before_iteration=alarm.before_iteration, detector=alarm.detector
    )


def _alarms(health: TrainingHealth | None, observation: Observation, report: JobReport) -> list[Alarm]:
    if health is None:
        return []
    state = observation.queue.state if observation.queue else None
    # the clock of this machine, because the login node's clock may be set while the job runs
    return health.read(
        report.records,
        now=time.monotonic(),
        running=state is JobState.RUNNING,
        queued=state in _QUEUED,
    )
