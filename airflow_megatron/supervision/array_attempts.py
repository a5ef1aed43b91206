"""Submit jobs of many points at once, as Slurm job arrays."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.slurm.submission.job_array import (
    ArrayOutcome,
    ArrayRequest,
    ArrayTask,
    array_decision_script,
    array_script,
    parse_array,
)
from airflow_megatron.slurm.submission.job_script import array_of, attempt_of, shared_directives
from airflow_megatron.slurm.verdicts.stage_records import StageRecord, parse_stage_states, stage_state_script
from airflow_megatron.supervision.attempts import (
    ASK_AGAIN_S,
    answered,
    attempt_record,
    looked_up,
    places_dir,
    queue_limits,
    slurm_commands,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from airflow_megatron.slurm.remote.attempt import Attempt
    from airflow_megatron.slurm.remote.records import TaskOrigin
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempts import SecretLookup


_TOO_LARGE = re.compile(r"SubmitJob\w*Limit|job submit limit|job array specification")
"""Errors after which sbatch may accept fewer tasks: a limit on queued jobs, or on the size of an array."""


class ArrayDeferredError(AirflowMegatronError, RuntimeError):
    """Slurm cannot accept the array now because the controller is not available."""


@dataclass(frozen=True)
class ArrayMember:
    """A job that becomes a task of an array.

    :param job: the job with its command
    :param number: number of the attempt
    :param script: job script of the attempt
    """

    job: Job
    number: int
    script: str


def attempts_to_submit(jobs: Iterable[Job], states: Mapping[str, StageRecord]) -> dict[str, int]:
    """Return the attempts that arrays may contain: job name → number of the attempt.

    These are attempts of jobs without a verdict and without a submission. A job that ran before is left to the run of
    its point, which decides whether the job runs again and repairs its checkpoints first.

    :param states: stage directory → recorded state
    """
    chosen: dict[str, int] = {}
    for job in jobs:
        state = states[job.stage_dir]
        latest = state.latest
        free = latest is None or not (latest.job_id or (latest.claimed and latest.array is None))
        if state.verdict is None and free:
            chosen[job.name] = max(state.latest_attempt, 1)
    return chosen


def array_groups(members: Iterable[ArrayMember], cluster: ClusterProfile) -> list[list[ArrayMember]]:
    """Group jobs into arrays: jobs of the same stage with the same resources, up to Slurm's maximum array size."""
    groups: dict[tuple[Any, ...], list[ArrayMember]] = {}
    for member in members:
        key = (member.job.stage, member.job.array, shared_directives(member.script))
        groups.setdefault(key, []).append(member)
    most = min(cluster.limits.max_array_size, cluster.limits.max_jobs or cluster.limits.max_array_size)
    return [group[start : start + most] for group in groups.values() for start in range(0, len(group), most)]


class JobArrays:
    """The arrays of a sweep on its cluster.

    :param cluster: its cluster profile
    :param run: runs a script on the login node
    :param log: logger for progress messages
    :param templates: the sbatch templates, their folder or name → text; default: those of the project
    :param secrets: as for :class:`~airflow_megatron.supervision.attempts.JobAttempts`
    """

    def __init__(
        self,
        cluster: ClusterProfile,
        run: Callable[[str], CommandResult],
        log: logging.Logger | Any,
        templates: Path | Mapping[str, str] | None = None,
        secrets: SecretLookup | None = None,
    ) -> None:
        self._secrets = secrets
        self.cluster, self.log, self.templates = cluster, log, templates
        self._run = run
        self.commands = slurm_commands(cluster)

    def states(self, jobs: Iterable[Job]) -> dict[str, StageRecord]:
        """Return the recorded states: stage directory → state."""
        directories = [job.stage_dir for job in jobs]
        return answered(
            self._run,
            stage_state_script(directories),
            lambda answer: parse_stage_states(directories, answer),
            self.log,
        )

    def submit(
        self, jobs: Sequence[Job], numbers: Mapping[str, int], origin: TaskOrigin | None = None
    ) -> dict[str, int]:
        """Submit attempts as arrays, each exactly once, also after an interrupted earlier call.

        Attempts that cannot be part of an array, or do not fit into the queue, are submitted individually later.

        :param numbers: job name → attempt (:func:`attempts_to_submit`)
        :param origin: the submitting task, recorded in ``job.json``
        :return: the entries of ``numbers`` that are submitted now
        :raises ArrayDeferredError: if Slurm cannot accept an array now; call again later
        :raises SubmissionRefusedError: if a secret is not available
        :raises TransportError: if the login node stays unreachable
        """
        wanted = [job for job in jobs if job.name in numbers]
        states = self.states(wanted)
        cut_short = {
            attempt.array
            for state in states.values()
            for attempt in state.attempts
            if attempt.array and not attempt.job_id
        }
        for array in sorted(cut_short, key=lambda item: item.job_name):
            self.log.info("%s was being submitted before", array.job_name)
            self._decide(array)
        if cut_short:
            states = self.states(wanted)
        submitted: dict[str, int] = {}
        members: list[ArrayMember] = []
        for job in wanted:
            number = numbers[job.name]
            begun = next((item for item in states[job.stage_dir].attempts if item.number == number), None)
            if begun is not None and begun.job_id:
                submitted[job.name] = number
            elif begun is None or not begun.claimed:
                script = job_script(job, self.cluster, number, templates=self.templates)
                members.append(ArrayMember(job, number, script))
        for group in array_groups(members, self.cluster):
            for member in self._submit_group(group, origin):
                submitted[member.job.name] = member.number
        return submitted

    def _submit_group(self, group: Sequence[ArrayMember], origin: TaskOrigin | None) -> list[ArrayMember]:
        """Submit a group as one array, or as smaller arrays if the queue's limits do not allow the whole group."""
        submitted: list[ArrayMember] = []
        size, rest = len(group), list(group)
        while min(size, len(rest)) > 1:
            piece = rest[:size]
            request = self._request(piece, origin)
            outcome = self._asked(array_script(request, self.commands))
            submission = outcome.submission
            for warning in submission.warnings:
                self.log.warning("sbatch: %s", warning)
            if submission.job_id is not None:
                self.log.info("%s: %d jobs", submission.message, len(outcome.indices))
                submitted += [piece[index] for index in sorted(outcome.indices)]
                rest = rest[size:]
                continue
            self._decide(request.array)
            if _TOO_LARGE.search(submission.message):
                self.log.warning("an array of %d jobs is too large: %s", len(piece), submission.message)
                size = len(piece) // 2
            elif submission.waits_for == "room":
                break  # individual submissions use the remaining room
            elif submission.status == "deferred":
                raise ArrayDeferredError(submission.message)
            else:
                self.log.error("Slurm refuses the array: %s", submission.message)
                break
        if rest:
            self.log.info("%d jobs of stage %s are submitted one by one", len(rest), rest[0].job.stage)
        return submitted

    def _request(self, members: Sequence[ArrayMember], origin: TaskOrigin | None) -> ArrayRequest:
        token = uuid.uuid4().hex
        first = members[0]
        return ArrayRequest(
            array=array_of(first.job, self.cluster, token[:8]),
            tasks=[
                ArrayTask(
                    attempt=attempt_of(member.job, member.number),
                    script=member.script,
                    job_json=attempt_record(member.job, member.number, origin),
                    log_file=member.job.log_file(member.number),
                    work_dir=member.job.run_dir,
                    secrets=looked_up(member.job, self._secrets),
                )
                for member in members
            ],
            directives=shared_directives(first.script),
            at_once=first.job.array or len(members),
            claim_token=token,
            visibility_window_s=float(self.cluster.visibility_window),
            limits=queue_limits(first.job, self.cluster),
            places_dir=places_dir(self.cluster),
        )

    def _decide(self, array: Attempt) -> None:
        """Determine whether an array was submitted; complete its records, or release its claims."""
        window = float(self.cluster.visibility_window)
        outcome = self._asked(array_decision_script(array, uuid.uuid4().hex, self.commands, window))
        self.log.info("%s", outcome.submission.message)

    def _asked(self, script: str) -> ArrayOutcome:
        logged = ""
        while True:
            outcome = answered(self._run, script, parse_array, self.log)
            if outcome.submission.status != "pending":
                return outcome
            if outcome.submission.message != logged:
                logged = outcome.submission.message
                self.log.info("waiting: %s", logged)
            time.sleep(ASK_AGAIN_S)
