"""Preparation of the next attempt: repair of checkpoints and choice of nodes.

All decisions use only the records on the cluster, so that a killed task can restart at any step. Checkpoints are
changed only while no job of the run is in Slurm's queue and the next attempt was not submitted.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron import __version__
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.checkpoints.completeness import (
    RELEASE,
    CheckpointVerdict,
    verdicts_by_iteration,
)
from airflow_megatron.megatron.commands.changed_command import changed_arguments, is_harmless
from airflow_megatron.megatron.commands.commands import branch_arguments, trainer_words
from airflow_megatron.megatron.trainers.trainer_table import job_table
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.slurm.polling.poll import parse_whole_poll, poll_script
from airflow_megatron.slurm.repair.fresh_start import FreshStartError, fresh_start_script, parse_fresh_start
from airflow_megatron.slurm.repair.lost_tracker import LostTrackerError, parse_tracker, tracker_script
from airflow_megatron.slurm.repair.quarantine import (
    QUARANTINE_PREFIX,
    NoQuarantine,
    QuarantineError,
    decide,
    parse_quarantine,
    quarantine_script,
)
from airflow_megatron.slurm.repair.rollback import (
    RollbackError,
    choose_rollback,
    parse_rollback,
    rollback_script,
)
from airflow_megatron.slurm.states.observation import END_OF_LOG, Observation, Watch
from airflow_megatron.slurm.submission.allocation import (
    choose_allocation,
    lost_in_a_row,
    parse_partition,
    partition_command,
)
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.verdicts.restarts import RestartPolicy, excluded_nodes, series
from airflow_megatron.slurm.verdicts.verdict import Outcome
from airflow_megatron.spec.documents.checkpoint_directories import directory_name
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.supervision.attempt_changes import AttemptChanges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.slurm.remote.records import JobRecord
    from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import RestartSection
    from airflow_megatron.supervision.attempts import JobAttempts

_RUN = "run"
LONGEST_ANSWER = 4096
"""Maximum size of a command's output in a poll, in bytes; see
:class:`~airflow_megatron.slurm.states.observation.CommandAnswer`.
"""


class RunNotFitError(AirflowMegatronError, RuntimeError):
    """A further attempt would damage the run directory in its current state; the message gives the remedy."""


@dataclass(frozen=True)
class StillWriting:
    """A job of the run may still write; retry later.

    :param reason: one sentence
    """

    reason: str


def restart_policy(job: Job) -> RestartPolicy:
    """Return the restart policy of a job."""
    return policy_of(job.restart, training=job.trains)


def policy_of(section: RestartSection, *, training: bool) -> RestartPolicy:
    """Return the restart policy of a ``restart:`` section, for a training or another stage."""
    return RestartPolicy(
        rolled_over=section.rolled_over,
        retryable=section.retryable,
        out_of_memory=section.out_of_memory,
        failed=section.failed,
        cancelled=section.cancelled,
        no_progress=section.no_progress,
        backoff_s=float(section.backoff),
        rollbacks=section.rollbacks if training else 0,
        exclude_failed_nodes=section.exclude_failed_nodes,
        exclude_for_s=float(section.exclude_for),
    )


def prepare_attempt(
    attempts: JobAttempts, number: int, state: StageRecord | None = None, *, fresh_start: bool = False
) -> AttemptChanges | StillWriting:
    """Prepare the run directory for an attempt, and return the attempt's differences from the plan.

    :param attempts: attempts of the job
    :param number: the attempt to submit; if it was submitted before, nothing is changed
    :param state: recorded state; default: read from the cluster
    :param fresh_start: rename the run's checkpoints, so that training starts from scratch
    :raises RunNotFitError: if the attempt must not be submitted
    :raises TransportError: if the login node stays unreachable
    """
    state = attempts.state() if state is None else state
    return _Preparation(attempts, state, number, fresh_start=fresh_start).prepared()


class _Preparation:
    def __init__(self, attempts: JobAttempts, state: StageRecord, number: int, *, fresh_start: bool) -> None:
        self._attempts, self._job, self._number = attempts, attempts.job, number
        self._fresh_start = fresh_start
        self._state, self._log = state, attempts.log
        self._log_size = 0
        self._earlier = [attempt for attempt in state.attempts if attempt.number < number]
        verdicts = [attempt.verdict for attempt in self._earlier]
        self._series: list[Verdict] = [] if fresh_start else series(verdicts)
        # clearing a job that was given up repairs neither its nodes nor its checkpoints
        self._verdicts = [each.judged for each in self._earlier if each.judged is not None]
        self._policy = restart_policy(self._job)

    def prepared(self) -> AttemptChanges | StillWriting:
        own = next((attempt for attempt in self._state.attempts if attempt.number == self._number), None)
        if own is not None and (own.claimed or own.job_id is not None):
            self._refuse_job_of_another_command(own)
            began_at = self._chained_from(own) if own.chained else self._began_at
            return self._changes(began_at, {})
        nothing_there = self._state.tracker is None or not self._has_checkpoints
        if not self._earlier and nothing_there and self._job.shared_log is None:
            return self._changes(
                self._awaited(self._parents), {}
            )  # nothing to check, as for most submissions
        seen = self._look()
        run = seen[_RUN]
        self._log_size = run.log_size or 0
        writing = self._still_in_queue(seen)
        if writing is not None:
            return StillWriting(writing)
        resumes_from = 0
        if self._has_checkpoints and self._was_prepared and not self._fresh_start:
            resumes_from = self._began_at
        elif self._has_checkpoints:
            resumes_from = self._checkpoints_in_order(run)
        return self._changes(resumes_from, self._partition(run))

    def _chained_from(self, own: AttemptState) -> int:
        """Initial iteration of an attempt that was queued before that iteration was known, 0 if none is expected."""
        if own.began_at is not None:
            return self._awaited(own.began_at)
        if own.owner_job_id is not None or not self._verdicts:
            return 0  # it has started and may have saved since, so its initial iteration is unknown
        return self._awaited(self._verdicts[-1].iteration or 0)

    @property
    def _was_prepared(self) -> bool:
        """Whether the preparation was done before, for a submission that was deferred."""
        record = self._state.submission
        return (
            record is not None and record.attempt == self._number and record.digest == job_digest(self._job)
        )

    @property
    def _began_at(self) -> int:
        """Iteration of the checkpoint that the newest attempt had to load."""
        record = self._state.submission
        return record.resumes_from if record is not None else 0

    def _partition(self, run: Observation) -> dict[str, bool]:
        """Return the nodes of the partition, none if they were not requested or are too many for one answer."""
        answer = run.answers.get(self._partition_command)
        if answer is None or answer.exit_code != 0 or len(answer.output) >= LONGEST_ANSWER:
            return {}
        return parse_partition(answer.output, self._job.slurm.partition)

    @property
    def _rolls_back(self) -> bool:
        """Whether the last attempt failed numerically."""
        wanted = bool(self._verdicts) and self._verdicts[-1].rollback and self._policy.rollbacks > 0
        return wanted and not self._fresh_start

    @property
    def _has_checkpoints(self) -> bool:
        return self._job.trains and self._job.script is None

    @property
    def _set_aside(self) -> tuple[str, ...]:
        prefix = f"{self._job.checkpoint_dir}/{QUARANTINE_PREFIX}"
        return f"{prefix}iter_*", f"{prefix}global_step*"

    @property
    def _partition_command(self) -> str:
        return partition_command(self._attempts.commands, self._job.slurm.partition)

    def _look(self) -> Mapping[str, Observation]:
        """Query the queue and the checkpoints in one poll, and the partition if nodes must be chosen."""
        job = self._job
        watches = [_queue_watch(job, attempt) for attempt in self._earlier]
        # a chained attempt of this number that was withdrawn may still be ending
        own = attempt_of(job, self._number).job_name
        watches.append(Watch(own, job_name=own))
        chooses = bool(self._excluded() or lost_in_a_row(self._series))
        watches.append(
            Watch(
                _RUN,
                checkpoint_dir=job.checkpoint_dir if self._has_checkpoints else None,
                globs=self._set_aside if self._has_checkpoints else (),
                commands=(self._partition_command,) if chooses else (),
                log_file=job.shared_log,
                log_offset=END_OF_LOG,
            )
        )
        script = poll_script(watches, self._attempts.commands)
        return self._attempts.answered(script, lambda result: parse_whole_poll(watches, result))

    def _still_in_queue(self, seen: Mapping[str, Observation]) -> str | None:
        for name, observation in seen.items():
            if name == _RUN:
                continue
            if not observation.queue_ok:
                return f"squeue does not say whether {name} has left the queue"
            if observation.queue is not None and not observation.queue.state.ended:
                row = observation.queue
                return f"job {row.job_id} ({name}) is {row.state.value}: its run is not touched before it has ended"
        return None

    def _excluded(self) -> tuple[str, ...]:
        return excluded_nodes(self._verdicts, self._policy, time.time())

    def _changes(self, resumes_from: int, partition: Mapping[str, bool]) -> AttemptChanges:
        job = self._job
        wanted = job.slurm.nodes or 1
        allocation = choose_allocation(
            wanted,
            job.restart.nodes if self._has_checkpoints else (),
            self._excluded(),
            lost=lost_in_a_row(self._series),
            shrink_after=job.restart.shrink_after,
            partition=partition or None,
            kept_off=job.slurm.exclude,
        )
        if allocation.nodes != wanted:
            self._log.warning(
                "attempt %d runs on %d nodes instead of %d", self._number, allocation.nodes, wanted
            )
        arguments: list[str] = []
        if job.restart.after_rollback and (
            self._rolls_back or any(verdict.rollback for verdict in self._series)
        ):
            arguments = to_argv(job.restart.after_rollback, self._table)
        return AttemptChanges(
            allocation.exclude,
            None if allocation.nodes == wanted else allocation.nodes,
            tuple(arguments),
            resumes_from,
            first=self._first,
            log_from=self._log_from,
        )

    @property
    def _log_from(self) -> int:
        record = self._state.submission
        return record.log_from if record is not None and record.attempt == self._number else self._log_size

    @property
    def _first(self) -> int:
        """The first attempt of this run of the job: the one after a final end or after a replaced attempt."""
        record = self._state.submission
        first = record.first if record is not None else 0
        if record is not None and record.attempt == self._number:
            return first or self._number
        last = self._earlier[-1].judged if self._earlier else None
        if self._fresh_start or not self._series or last is None or last.outcome is Outcome.CANCELLED:
            return self._number
        return first or self._number - len(self._series)

    def _checkpoints_in_order(self, run: Observation) -> int:
        """Return the iteration of the checkpoint that the attempt will load, 0 for none."""
        job = self._job
        tracked = tracked_iteration(run.tracker)
        try:
            if self._fresh_start:
                # conversions and evaluations too: stages that process each checkpoint would otherwise skip the new ones
                for folder in (
                    job.checkpoint_dir,
                    *job.layout.made_of_checkpoints,
                ):
                    script = fresh_start_script(folder, self._number)
                    aside = self._attempts.answered(script, parse_fresh_start)
                    if aside:
                        self._log.info("fresh start: the earlier files are in %s", aside)
                tracked = None
            lost = tracked is None and not self._fresh_start and (run.tracker or "").strip() != RELEASE
            if lost:
                tracked = self._newest_of_lost(run)
            if tracked is None:
                if self._rolls_back and not job.restart.after_rollback:
                    raise RollbackError(
                        "there is no earlier checkpoint to load: a new start would end the same way"
                    )
                return self._awaited(self._parents)
            self._refuse_another_experiment()
            if lost:
                self._attempts.answered(tracker_script(job.checkpoint_dir, tracked), parse_tracker)
                self._log.warning(
                    "%s: the tracker %s; attempt %d continues from the newest complete checkpoint, of iteration %d",
                    job.checkpoint_dir,
                    f"holds {run.tracker!r}" if run.tracker is not None else "does not exist",
                    self._number,
                    tracked,
                )
            verdicts = verdicts_by_iteration(run.checkpoint_files, tracked)
            if self._rolls_back:
                tracked = self._roll_back(verdicts, tracked)
            else:
                tracked = self._quarantined(run, verdicts, tracked)
        except (FreshStartError, LostTrackerError, QuarantineError, RollbackError) as error:
            last = f"; the last attempt: {self._verdicts[-1].reason}" if self._verdicts else ""
            raise RunNotFitError(f"{job.checkpoint_dir}: {error}{last}") from None
        return self._awaited(tracked)

    def _newest_of_lost(self, run: Observation) -> int | None:
        """Return the newest checkpoint of a run without a valid tracker, None if it may start from scratch.

        :raises LostTrackerError: if no checkpoint can be loaded and a new start would overwrite existing ones
        """
        if not self._awaited(1):
            return None
        last = self._verdicts[-1].iteration if self._verdicts else None
        known = max(self._began_at, last or 0)  # from an earlier tracker of the run or of its parent
        known = known if known > self._parents else 0
        verdicts = verdicts_by_iteration(run.checkpoint_files, known)
        complete = [iteration for iteration, verdict in verdicts.items() if verdict.is_complete]
        if known and not verdicts:
            self._log.warning(
                "%s: the checkpoints up to iteration %d are gone", self._job.checkpoint_dir, known
            )
        elif known and not complete:
            raise LostTrackerError(
                f"the tracker is lost, which named iteration {known}, and no checkpoint is complete; a new start would "
                "overwrite what is left. Repair it, or trigger the sweep with a fresh start"
            )
        return max(complete, default=None)

    @property
    def _parents(self) -> int:
        """Iteration of the parent's checkpoint from which a branch starts, 0 for a training from scratch."""
        branch = self._job.origin_dir is not None and self._has_checkpoints
        return self._job.iteration or 0 if branch else 0

    def _awaited(self, iteration: int) -> int:
        """Return *iteration* if the command loads the run's own checkpoints, whose loss must be detected, else 0."""
        job = self._job
        words = job.command
        loads = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "--load"]
        return iteration if loads[-1:] == [job.checkpoint_dir] and job.restart.from_scratch == "fail" else 0

    @property
    def _table(self) -> ArgumentTable:
        job = self._job
        return job_table(job, self._attempts.cluster)

    def _refuse_another_experiment(self) -> None:
        """Refuse to continue from the checkpoints of a different command under the same point name."""
        job = self._job
        what = self._difference("continues from its checkpoints")
        if not what:
            return
        message = (
            f"{job.checkpoint_dir} holds checkpoints of another command under the same point name ({what})"
        )
        if job.restart.changed == "continue":
            self._log.warning("%s; it continues from them because restart.changed is continue", message)
            return
        raise RunNotFitError(
            f"{message}; choose another name for the point, trigger the sweep with a fresh start, which sets them "
            "aside, or write restart: {changed: continue} to continue from them"
        )

    def _refuse_job_of_another_command(self, own: AttemptState) -> None:
        """Refuse to wait for the job of a different command, whose results would count as those of this one.

        The spec has changed, or another person has another spec of the same name, while the job waits or runs.
        """
        job, record = self._job, self._state.submission
        if own.verdict is not None or record is None or record.attempt < own.number:
            return
        what = self._difference("waits for a job")
        if not what:
            return
        message = f"job {own.job_id or 'of an earlier submission'} runs another command under the same name ({what})"
        if self._has_checkpoints and job.restart.changed == "continue":
            self._log.warning("%s; it counts because restart.changed is continue", message)
            return
        raise RunNotFitError(
            f"{message}; wait for its end, or cancel it, or choose another name for the "
            f"{'point' if job.point else 'sweep'}; to replace it, trigger the sweep with a fresh start, or clear this "
            "task after it has succeeded"
        )

    def _difference(self, harmless: str) -> str:
        """Return how the newest attempt's command differs, empty if the difference does not affect its results.

        :param harmless: what the job does in spite of such a difference, for the log
        """
        job, record = self._job, self._state.submission
        if record is None or record.digest in ("", job_digest(job)):
            return ""
        if not self._has_checkpoints:
            return self._other_words(record)
        old = list(record.command)
        changes = changed_arguments(old, job.command, self._table)
        # regardless of the current names of the interpreter and the script
        same = trainer_words(old) == trainer_words(job.command)
        loads = list(branch_arguments(job))
        began, begins = " ".join(loads if record.loads is None else record.loads), " ".join(loads)
        if began == begins and (same or (changes and all(is_harmless(name) for name in changes))):
            what = ", ".join(changes) or "environment"
            self._log.warning("%s with another %s", harmless, what)
            return ""
        what = "; ".join(
            f"{name} was {before!r}, is {now!r}"
            for name, (before, now) in changes.items()
            if not is_harmless(name)
        )
        if began != begins:
            what = f"it began with {began!r}, and is now to begin with {begins or 'nothing'!r}{what and '; '}{what}"
        return what or "its words differ"

    def _other_words(self, record: JobRecord) -> str:
        """Return how the newest attempt's command differs; an update of this package may change a digest alone."""
        pairs = itertools.zip_longest(record.command, self._job.command)
        differs = next(((before, now) for before, now in pairs if before != now), None)
        if differs is not None:
            return f"{differs[0]!r:.200} is now {differs[1]!r:.200}"
        return "with other inputs, outputs, files or environment" if record.package == __version__ else ""

    def _roll_back(self, verdicts: Mapping[int, CheckpointVerdict], tracked: int) -> int:
        complete = [iteration for iteration, verdict in verdicts.items() if verdict.is_complete]
        step = choose_rollback(complete, self._verdicts, tracked=tracked, began_at=self._began_at)
        aside = self._attempts.answered(rollback_script(self._job.run_dir, step), parse_rollback)
        self._log.warning(
            "attempt %d goes back to iteration %d%s",
            self._number,
            step.iteration,
            f"; set aside: {', '.join(aside)}" if aside else "",
        )
        return step.iteration

    def _quarantined(self, run: Observation, verdicts: Mapping[int, CheckpointVerdict], tracked: int) -> int:
        job = self._job
        limit = job.restart.quarantine
        step = decide(
            {directory_name(iteration): verdict.verdict for iteration, verdict in verdicts.items()},
            tracked=tracked,
            damaged=self._verdicts[-1].damaged_iteration if self._verdicts else None,
            quarantined=sum(len(found) for found in run.matches.values()),
            limit=limit,
        )
        if isinstance(step, NoQuarantine):
            if step.hopeless and limit:
                raise RunNotFitError(
                    f"{job.checkpoint_dir}: {step.reason}: every attempt would end the same way; repair or move the "
                    "checkpoint, or trigger the sweep with a fresh start"
                )
            if step.hopeless:
                self._log.warning("%s: %s, and restart.quarantine is 0", job.checkpoint_dir, step.reason)
            return tracked
        found = verdicts.get(tracked)
        listing = f" ({found.reason})" if found is not None and not found.is_complete else ""
        result = self._attempts.answered(
            quarantine_script(job.checkpoint_dir, step, limit=limit), parse_quarantine
        )
        if not result.done:
            raise RunNotFitError(f"{job.checkpoint_dir}: {step.reason}, but {result.status}: {result.detail}")
        self._log.warning(
            "%s%s: attempt %d continues from iteration %s%s",
            step.reason,
            listing,
            self._number,
            step.back_to,
            f"; the damaged one is now {result.detail}" if result.detail else "",
        )
        return step.back_to or 0


def _queue_watch(job: Job, attempt: AttemptState) -> Watch:
    """Return the watch for an attempt in the queue, by its name, or by its id for a task of an array."""
    name = attempt_of(job, attempt.number).job_name
    if attempt.job_name is None:
        return Watch(name, job_name=name)
    return Watch(name, job_id=attempt.job_id, job_name=attempt.job_name)
