"""Submission of a job's attempts: the choice of the next attempt, and the retries of the submission protocol."""

from __future__ import annotations

import dataclasses
import logging
import posixpath
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_megatron import __version__
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.commands.commands import branch_arguments
from airflow_megatron.plan.job_scripts import job_digest, job_script
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.records import JobRecord, TaskOrigin
from airflow_megatron.slurm.remote.secret_delivery import parse_removal, removal_script
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.attempt_chain import current_attempt
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel, withdraw_script
from airflow_megatron.slurm.submission.job_script import attempt_of, sweep_prefix
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.refusals import described_refusal
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    parse_submission,
    submission_script,
)
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    OtherAccountError,
    StageRecord,
    other_account_message,
    parse_stage_states,
    parse_written,
    stage_state_script,
    write_record_script,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.layout.run_layout import submitting_dir
from airflow_megatron.supervision.attempt_changes import AS_PLANNED, AttemptChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from airflow_megatron.slurm.submission.queue_ahead import StageBefore
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

SecretLookup: TypeAlias = "Callable[[Job], Mapping[str, str]]"
"""Looks up the secrets that Airflow delivers to a job: variable → value; raises :class:`SubmissionRefusedError`."""
AnswerT = TypeVar("AnswerT")

ASK_AGAIN_S = 3.0
TROUBLE_WINDOW_S = 300.0


@dataclass(frozen=True)
class NextAttempt:
    """The attempt of a job to submit or to watch.

    :param number: number of the attempt
    :param finished: whether the job has finished in that attempt, so that nothing is submitted
    :param cancelled: whether a condition of the job cancelled it in that attempt, so that nothing is submitted
    :param replaces: number of an attempt in Slurm's queue that must be cancelled first, or None
    """

    number: int
    finished: bool = False
    cancelled: bool = False
    replaces: int | None = None


def next_attempt(state: StageRecord, *, rerun: bool, digest: str) -> NextAttempt:
    """Choose the next attempt of a job.

    :param state: recorded state of the stage
    :param rerun: whether a user requested a new run (cleared the task, or triggered a fresh start), so that a finished
        job runs again and a running one is replaced
    :param digest: current digest of the job; a job that finished with another digest runs again
    """
    latest = state.latest_attempt
    judged = state.verdict_on_newest
    if judged is not None and judged.digest == digest and not rerun:
        if judged.outcome is Outcome.FINISHED:
            return NextAttempt(latest, finished=True)
        if judged.intended:
            return NextAttempt(latest, cancelled=True)
    if judged is not None or latest == 0:
        return NextAttempt(latest + 1)
    if rerun and state.job_id is not None:
        return NextAttempt(latest + 1, replaces=latest)
    return NextAttempt(current_attempt(state))


def attempt_after_giving_up(state: StageRecord) -> int | None:
    """Return the number of a new attempt to submit when the watch task of a job starts, None to wait for the newest
    one.

    A job whose newest attempt has a verdict other than finished was given up. A user who clears the failed watch task
    wants the job to run again.

    :param state: recorded state of the stage
    """
    judged = state.verdict_on_newest
    given_up = state.latest_attempt > 0 and judged is not None and judged.outcome is not Outcome.FINISHED
    return state.latest_attempt + 1 if given_up else None


def was_waited_for(state: StageRecord, submitted: int, waited_for: int | None) -> bool:
    """Return whether the newest attempt has no verdict and an earlier try of the watch task waited for it.

    :param state: recorded state of the stage
    :param submitted: the attempt from the submit task; the watch task submits later attempts
    :param waited_for: the first attempt of the earlier try; less than ``submitted`` if the submit task was cleared too
        and has submitted a new attempt
    """
    latest = state.latest_attempt
    judged = state.verdict_on_newest is not None
    return state.job_id is not None and not judged and (latest > submitted or latest == waited_for)


class SubmissionRefusedError(AirflowMegatronError, RuntimeError):
    """sbatch refused the job; the message is that of sbatch."""


class JobAttempts:
    """The attempts of one job on its cluster.

    :param job: the job with its command
    :param cluster: its cluster profile
    :param run: runs a script on the login node
    :param log: logger for progress messages
    :param templates: the sbatch templates, their folder or name → text; default: those of the project
    :param secrets: looks up the secrets that Airflow delivers; None if nothing is submitted
    :param window_s: seconds for which failed connections to the login node are retried
    """

    def __init__(
        self,
        job: Job,
        cluster: ClusterProfile,
        run: Callable[[str], CommandResult],
        log: logging.Logger | Any = None,
        templates: Path | Mapping[str, str] | None = None,
        secrets: SecretLookup | None = None,
        window_s: float | None = None,
    ) -> None:
        self.templates = templates
        self._window_s = window_s
        self._secrets = secrets
        self.job, self.cluster, self.run = job, cluster, run
        self.log = log or logging.getLogger(__name__)
        self.commands = slurm_commands(cluster)

    def of_another(self, job: Job) -> JobAttempts:
        """Return the attempts of another job of the same point."""
        return JobAttempts(
            job, self.cluster, self.run, self.log, self.templates, self._secrets, self._window_s
        )

    @property
    def limits(self) -> tuple[QueueLimit, ...]:
        """The limits on queued jobs."""
        return queue_limits(self.job, self.cluster)

    def state(self) -> StageRecord:
        """Return the recorded state of the job's stage.

        :raises OtherAccountError: if another account of the cluster runs the job
        """
        state = self._recorded()
        if state.other_account:
            raise OtherAccountError(
                other_account_message(self.job.name, self.job.stage_dir, state.other_account)
            )
        return state

    def _recorded(self) -> StageRecord:
        stage_dir = self.job.stage_dir
        result = self.answered(
            stage_state_script([stage_dir]), lambda answer: parse_stage_states([stage_dir], answer)
        )
        return result[stage_dir]

    def submit(
        self,
        number: int,
        changes: AttemptChanges = AS_PLANNED,
        *,
        origin: TaskOrigin | None = None,
        before: StageBefore | None = None,
        limits: Sequence[QueueLimit] | None = None,
    ) -> SubmissionOutcome:
        """Submit attempt ``number`` exactly once; repeat the request while its outcome is unknown.

        :param changes: differences from the plan
        :param origin: the submitting task, recorded in ``job.json``
        :param before: the previous stage, for whose end the job waits in Slurm's queue
        :param limits: limits on queued jobs; default: those of the job
        :return: an outcome with a job id, or ``deferred`` if Slurm cannot accept the job now
        :raises SubmissionRefusedError: if sbatch refuses the script, or a secret is not available
        :raises TransportError: if the login node stays unreachable
        """
        attempt = attempt_of(self.job, number)
        dependencies = [f"afterany:{changes.after_job}"] if changes.after_job else []
        if before is not None:
            dependencies.append(before.dependency)
        request = SubmissionRequest(
            attempt=attempt,
            script=job_script(
                changes.applied(self.job),
                self.cluster,
                number,
                changes.exclude,
                chained=bool(changes.after_job),
                before=before,
                templates=self.templates,
            ),
            dependencies=tuple(dependencies),
            chained=bool(changes.after_job),
            ahead=before.behind.to_record(attempt.job_name) if before is not None else "",
            job_json=attempt_record(self.job, number, origin, changes, before),
            claim_token=uuid.uuid4().hex,
            log_dir=posixpath.dirname(self.job.log_file(number)),
            visibility_window_s=float(self.cluster.visibility_window),
            limits=self.limits if limits is None else tuple(limits),
            places_dir=places_dir(self.cluster),
            secrets=looked_up(self.job, self._secrets),
        )
        script = submission_script(request, self.commands)
        logged = ""
        while True:
            outcome = self.answered(script, parse_submission)
            if outcome.status == "refused":
                raise SubmissionRefusedError(
                    f"{self.job.name}: {described_refusal(outcome.message)} "
                    f"(script: {attempt.files.script}, or `airflow-megatron render`)"
                )
            if outcome.status != "pending":
                for warning in outcome.warnings:
                    self.log.warning("sbatch: %s", warning)
                return outcome
            if outcome.message != logged:
                self.log.info("waiting: %s", outcome.message)
                logged = outcome.message
            time.sleep(ASK_AGAIN_S)

    def cancel(self, number: int, job_id: str, job_name: str | None = None) -> None:
        """Cancel an attempt's job if the id still belongs to it.

        :param job_name: Slurm's name of the job if it differs from the attempt's name
        """
        jobs = [(job_id, job_name or attempt_of(self.job, number).job_name)]
        outcome = self.answered(cancel_script(jobs, self.commands), lambda answer: parse_cancel(jobs, answer))
        self._remove_secrets(number)
        if outcome.cancelled:
            self.log.info("cancelled job %s (attempt %d)", job_id, number)

    def is_of_another_run(self, origin: TaskOrigin) -> bool:
        """Return whether another run has submitted the newest attempt, with another command.

        :param origin: a task of this run
        """
        record = self._recorded().submission
        if record is None or record.origin is None or record.digest in ("", job_digest(self.job)):
            return False
        by = record.origin
        return (by.dag_id, by.run_id, by.run) != (origin.dag_id, origin.run_id, origin.run)

    def withdraw(
        self, why: str = "its run was stopped, or its task was marked", *, always: bool = False
    ) -> bool:
        """Withdraw the newest attempt: cancel its job, and prevent a concurrent submission of it.

        :param why: reason for the verdict
        :param always: record the withdrawal also for a job that has ended, so that its result does not count
        :return: whether there was, or may have been, a job, so that the next run starts another attempt
        """
        state = self._recorded()
        latest = state.latest
        if state.other_account:
            self.log.warning(
                "not cancelled: %s",
                other_account_message(self.job.name, self.job.stage_dir, state.other_account),
            )
            return False
        if latest is None or state.verdict_on_newest is not None:
            return False
        if latest.job_id is None and not latest.claimed:
            return False
        attempt = attempt_of(self.job, latest.number)
        jobs = [(latest.job_id, latest.job_name or attempt.job_name)] if latest.job_id else []
        outcome = self.answered(
            withdraw_script(attempt, jobs, self.commands), lambda answer: parse_cancel(jobs, answer)
        )
        self._remove_secrets(latest.number)
        if not outcome.cancelled and latest.job_id is not None and not always:
            return False  # it had ended; the next run judges it
        ids = ", ".join(outcome.cancelled) or "that may yet come"
        self.log.warning("cancelled job %s of %s: no task waits for it any more", ids, self.job.name)
        verdict = Verdict(Outcome.CANCELLED, why, job_id=latest.job_id)
        self.record_end(latest.number, verdict, withdrawn=True)
        return True

    def run_command(self, command: str, variables: Mapping[str, str]) -> str:
        """Run a user's command on the login node, in the job's run directory; return its output, for the log.

        It is not repeated after a lost connection, because it may have run.
        """
        exports = "".join(f"export {name}={quote(text)}\n" for name, text in variables.items())
        script = f"cd {quote(self.job.run_dir)} || exit\n{exports}timeout 60 bash -c {quote(command)} 2>&1 </dev/null\n"
        try:
            result = self.run(script)
        except TransportError as error:
            return f"{command}: {error}"
        return f"{command}: exit code {result.exit_status}\n{result.stdout[-4096:]}".strip()

    def record_finished(self, reason: str) -> Verdict:
        """Record that the job has finished without a further attempt; return the verdict."""
        verdict = Verdict(Outcome.FINISHED, reason)
        self.record_end(self.state().latest_attempt, verdict)
        return verdict

    def record_verdict(self, number: int, verdict: Verdict, *, given_up: str = "") -> None:
        """Write the verdict on an attempt.

        :param given_up: why no further attempt follows, empty if one may follow
        """
        files = attempt_of(self.job, number).files
        record = self._record(number, verdict, given_up=given_up)
        script = write_record_script(files.verdict, record.to_json(), remove=files.secrets)
        self.answered(script, parse_written)

    def record_end(
        self, number: int, verdict: Verdict, *, intended: bool = False, withdrawn: bool = False
    ) -> None:
        """Write the final verdict on the job.

        :param intended: whether a condition of the job cancelled it
        :param withdrawn: whether a user stopped it, so that no attempt may follow
        """
        record = self._record(number, verdict, intended=intended, withdrawn=withdrawn)
        self.answered(write_verdict_script(self.job.stage_dir, record), parse_written)

    def _remove_secrets(self, number: int) -> None:
        """Remove the delivered secrets of an attempt that no longer needs them."""
        if self.job.delivered and number > 0:
            self.answered(removal_script(attempt_of(self.job, number).directory), parse_removal)

    def _record(self, number: int, verdict: Verdict, **marks: Any) -> RecordedVerdict:
        return RecordedVerdict.of(verdict, number, job=self.job.name, digest=job_digest(self.job), **marks)

    def answered(self, script: str, parse: Callable[[CommandResult], AnswerT]) -> AnswerT:
        """Repeat an idempotent script until its complete output arrives; see :func:`answered`."""
        return answered(self.run, script, parse, self.log, self._window_s)


def looked_up(job: Job, secrets: SecretLookup | None) -> Mapping[str, str]:
    """Return the values of the secrets that Airflow delivers to a job: variable → value.

    :raises SubmissionRefusedError: if a secret is not available
    """
    if not job.delivered:
        return {}
    if secrets is None:
        names = ", ".join(job.delivered)
        raise SubmissionRefusedError(f"{job.name}: its secrets {names} are Airflow's, which submits it")
    return secrets(job)


def queue_limits(job: Job, cluster: ClusterProfile) -> tuple[QueueLimit, ...]:
    """Return the limits on queued jobs, of the user and of the job's sweep."""
    limits = ((cluster.limits.max_jobs, ""), (job.max_jobs, sweep_prefix(job)))
    return tuple(QueueLimit(jobs, prefix) for jobs, prefix in limits if jobs is not None)


def places_dir(cluster: ClusterProfile) -> str:
    """Return the directory of announcements of the processes that submit to a cluster."""
    return submitting_dir(cluster.run_root)


def answered(
    run: Callable[[str], CommandResult],
    script: str,
    parse: Callable[[CommandResult], AnswerT],
    log: logging.Logger | Any,
    window_s: float | None = None,
) -> AnswerT:
    """Repeat an idempotent script until its complete output arrives.

    :param window_s: maximum time for retries in seconds; default: :data:`TROUBLE_WINDOW_S`
    :raises TransportError: if the login node stays unreachable
    """
    deadline = time.monotonic() + (TROUBLE_WINDOW_S if window_s is None else window_s)
    pause = 2.0
    while True:
        try:
            return parse(run(script))
        except TransportError as error:
            if getattr(error, "permanent", False) or time.monotonic() + pause > deadline:
                raise
            log.warning("%s; asking again in %.0f s", error, pause)
            time.sleep(pause)
            pause = min(pause * 2, 30.0)


def attempt_record(
    job: Job,
    number: int,
    origin: TaskOrigin | None = None,
    changes: AttemptChanges = AS_PLANNED,
    before: StageBefore | None = None,
) -> dict[str, Any]:
    """Return the content of an attempt's ``job.json``.

    :param origin: the submitting task
    :param changes: differences from the plan
    :param before: the previous stage, for whose end the job waits in Slurm's queue
    """
    return JobRecord(
        job=job.name,
        attempt=number,
        job_name=attempt_of(job, number).job_name,
        digest=job_digest(job),
        command=job.command,
        log_file=job.log_file(number),
        params=dict(job.params),
        loads=branch_arguments(job) or None,
        origin=origin,
        package=__version__,
        pin=job.pin,
        behind=before.behind.stage if before is not None else "",
        behind_jobs=before.behind.job_ids if before is not None else (),
        **dataclasses.asdict(changes),
    ).to_json()


def slurm_commands(cluster: ClusterProfile) -> SlurmCommands:
    """Return the commands of Slurm on a cluster."""
    return SlurmCommands(
        cluster.name,
        cluster.slurm_bin or "",
        cluster.login_shell,
        cluster.login_budget or 0,
        cluster.min_poll_interval or 0.0,
    )
