"""Exactly one Slurm job per attempt: the remote submission script and the parser of its output.

An attempt's directory ``<stage_dir>/<number>`` holds the protocol's state:

``claim.<g>/``
    The right to submit, generation *g*, created with mkdir, which succeeds for exactly one caller. The highest
    generation is valid. The directory holds ``owner`` (token, host, process), ``sbatch.started`` (Unix time and
    seconds since boot, which do not depend on changes of the clock; written before sbatch runs), ``sbatch.out``,
    ``sbatch.err``, and ``released`` after it is certain that sbatch created no job.
``created``
    Unix time and nonce of the first claim. The nonce is in the job's comment and distinguishes this attempt's job
    from an older job of the same name (after a sweep was started from scratch).
    A claim that is a symbolic link belongs to a task of an array (:mod:`airflow_megatron.slurm.submission.job_array`).
``jobid``
    The recorded id, created by an atomic rename. After it exists, no further job is submitted.
``withdrawn``
    The attempt is withdrawn: no job is submitted, and a job that was just accepted is cancelled
    (:func:`airflow_megatron.slurm.submission.cancellation.withdraw_script`).
``run/job_id``
    Written by the job at its start (:mod:`airflow_megatron.slurm.submission.job_guard`); beside it the job keeps a
    lock and, for each launch, the record of its end.

The script may be killed between any two of its commands. A later call determines the outcome from these files and, by
the exact job name, from squeue and sacct. It submits only if no job was accepted for certain, or if none has become
visible within the visibility window. Slurm can accept a job without the caller noticing: sbatch retries for up to 120 s
and may then report "Socket timed out" (SchedMD/slurm ``src/sbatch/sbatch.c``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import QuotingError, quote, quote_path
from airflow_megatron.slurm.remote.records import SubmittedJob
from airflow_megatron.slurm.remote.secret_delivery import delivery_words
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.queue_limits import QueueLimit, queue_limit_functions
from airflow_megatron.slurm.submission.sbatch_options import read_options, refused_options
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.layout.run_layout import AHEAD_RECORD, CHAINED_RECORD, JOB_RECORD, JOB_SCRIPT

_WRITE_CHAINED = f'printf \'%s\\n\' "$am_name" | am_put "$am_dir/{CHAINED_RECORD}"'

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.remote.attempt import Attempt

SubmissionStatus = Literal["submitted", "recorded", "adopted", "pending", "deferred", "refused"]
"""The outcome of a request.

``submitted``: this call submitted the job. ``recorded``: an earlier call submitted and recorded it. ``adopted``: an
earlier call submitted it without a record, and this call found the job. ``pending``: unknown (another caller is
submitting, or a job may still become visible); retry. ``deferred``: nothing was submitted, because a limit on queued
jobs is reached, the controller is not available or the disk is full; retry later. ``refused``: sbatch refused the job;
*message* is its error text.
"""

WaitsFor = Literal["room", "limit", "recovery"]
"""The reason of a deferred request.

``room``: a :class:`~airflow_megatron.slurm.submission.queue_limits.QueueLimit` of the request is reached. ``limit``: a
limit of Slurm of unknown size is reached. ``recovery``: the controller is not available, or the disk is full.
"""

COMMENT_PREFIX = "airflow-megatron:"


@dataclass(frozen=True)
class SubmissionRequest:
    """A job to submit.

    :param attempt: the attempt.
    :param script: the complete job script with ``#!`` line and ``#SBATCH`` lines.
    :param job_json: the record written beside the script (:class:`airflow_megatron.slurm.remote.records.JobRecord`).
    :param claim_token: unique to this call; letters, digits, ``-`` and ``_``.
    :param sbatch_options: further arguments of sbatch; they override ``#SBATCH`` lines.
    :param dependencies: sbatch dependencies (``afterok:7``) in addition to ``singleton``, which is always set.
    :param chained: whether it waits for the previous attempt (:mod:`airflow_megatron.slurm.submission.attempt_chain`).
    :param ahead: the record of the previous stage for which it waits, see
        :class:`airflow_megatron.slurm.submission.queue_ahead.QueuedBehind`; empty for none.
    :param log_dir: created before the submission, because Slurm loses a job whose output directory is missing.
    :param visibility_window_s: seconds after an sbatch call of unknown outcome in which its job may become visible.
    :param busy_wait_s: seconds to wait for another caller that submits the same attempt, or for later callers that
        release their places.
    :param limits: limits on queued jobs, which the submission does not exceed.
    :param places_dir: directory of the announcements of callers with limits, shared by all login nodes.
    :param jobs: number of jobs that the script adds to the queue (the number of an array's tasks).
    :param secrets: values that the job script reads from files
        (:mod:`airflow_megatron.slurm.remote.secret_delivery`).
    """

    attempt: Attempt
    script: str
    job_json: dict[str, Any]
    claim_token: str
    sbatch_options: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    chained: bool = False
    ahead: str = ""
    log_dir: str | None = None
    visibility_window_s: float = 300.0
    busy_wait_s: float = 5.0
    limits: tuple[QueueLimit, ...] = ()
    places_dir: str = ""
    jobs: int = 1
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse values that would break the protocol."""
        if not self.script.startswith("#!"):
            raise ValueError(
                f"job script of {self.attempt.job_name} must begin with '#!', for example '#!/bin/bash'"
            )
        if "\0" in self.script:
            raise QuotingError(f"job script of {self.attempt.job_name} holds a NUL character; remove it")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.claim_token):
            raise QuotingError(f"claim token {self.claim_token!r} may hold letters, digits, '-' and '_' only")
        for option in self.sbatch_options:
            quote(option)
        for refused in refused_options(read_options(self.sbatch_options)):
            raise ValueError(
                f"sbatch option {refused.text!r} belongs to the submission protocol: {refused.instead}"
            )
        for dependency in self.dependencies:
            if not re.fullmatch(r"[a-z]+(:[0-9_+*]+)*", dependency):
                raise ValueError(f"dependency {dependency!r} is not of the form 'afterok:<job id>'")
        for limit in self.limits:
            if self.jobs > limit.jobs:
                raise ValueError(
                    f"{self.attempt.job_name} submits {counted(self.jobs, 'job')} at once, and "
                    f"max_jobs is {limit.jobs}: it would "
                    "wait forever; make the array smaller or raise max_jobs"
                )


@dataclass(frozen=True)
class SubmissionOutcome:
    """The outcome of a request.

    :param status: see :data:`SubmissionStatus`.
    :param job_id: set for ``submitted``, ``recorded`` and ``adopted``.
    :param cluster: name of the cluster in a multi-cluster set-up, else None.
    :param message: one line for a log; for ``refused`` and ``deferred`` it includes sbatch's error text.
    :param warnings: lines that sbatch printed on standard error although it accepted the job.
    :param waits_for: set for ``deferred``.
    :param queued: number of this user's queued jobs when a limit of Slurm was reached.
    :param job_name: Slurm's name of the job if it differs from the attempt's name: a task has the name of its array.
    """

    status: SubmissionStatus
    job_id: str | None
    message: str
    cluster: str | None = None
    warnings: tuple[str, ...] = field(default=())
    waits_for: WaitsFor | None = None
    queued: int | None = None
    job_name: str | None = None


def submission_script(request: SubmissionRequest, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that submits *request* unless its attempt has a job already.

    :param request: the job to submit.
    :param commands: how Slurm's commands are called on this cluster.
    """
    return framed(f"{submission_functions(request, commands)}\nam_attempt")


def submission_functions(
    request: SubmissionRequest,
    commands: SlurmCommands = DEFAULT_COMMANDS,
    *,
    words: Sequence[str] = (),
    writing: str = "true",
    submitting: str = "true",
) -> str:
    """Return the functions of a submission script; its entry point is ``am_attempt``.

    :param request: the job to submit.
    :param commands: how Slurm's commands are called on this cluster.
    :param words: further arguments of sbatch, in shell syntax.
    :param writing: shell command that writes further files that sbatch needs.
    :param submitting: shell command that runs right before sbatch; if it fails, nothing is submitted.
    """
    attempt = request.attempt
    dependency = ",".join(("singleton", *request.dependencies))
    sbatch = [
        commands.command("sbatch"),
        "--parsable",
        "--ignore-pbs",  # "#PBS" and "#BSUB" lines could name the job, or make it an array
        quote(f"--job-name={attempt.job_name}"),
        '"--comment=$1"',
        quote(f"--dependency={dependency}"),
        *(quote(option) for option in request.sbatch_options),
        *words,
    ]
    job_json = json.dumps(request.job_json, indent=2, sort_keys=True)
    return "\n".join(
        (
            f"am_dir={quote_path(attempt.directory)}",
            f"am_log_dir={quote_path(request.log_dir) if request.log_dir else ''}",
            f"am_name={quote(attempt.job_name)}",
            claim_settings(request.claim_token, request.visibility_window_s, request.busy_wait_s),
            slurm_functions(commands),
            queue_limit_functions(request.limits, request.places_dir, request.jobs),
            "am_run_sbatch() { # COMMENT; the job gets the account's own locale back",
            f"  {submitting} || return",
            '  (if [ -n "$am_site_locale" ]; then LC_ALL=$am_site_locale; else unset LC_ALL; fi',
            f"  exec {' '.join(sbatch)})",
            "}",
            "am_write_job() {",
            f'  am_put "$am_dir/{JOB_SCRIPT}" {here_document(request.script)}',
            f'  [ $? -eq 0 ] && am_put "$am_dir/{JOB_RECORD}" {here_document(job_json)}',
            f'  [ $? -eq 0 ] && am_deliver_secrets "$am_dir" {delivery_words(request.secrets)}',
            f"  [ $? -eq 0 ] && {writing if not request.chained else _WRITE_CHAINED}",
            f"  [ $? -eq 0 ] && {_write_ahead(request.ahead)}",
            "}",
            shell_file("deliver_secrets"),
            shell_file("other_account"),
            shell_file("submit"),
            shell_file("array_claim"),
        )
    )


def _write_ahead(record: str) -> str:
    """Return the shell command that writes the file ``ahead``, or removes the file that another caller wrote."""
    path = f'"$am_dir/{AHEAD_RECORD}"'
    return f"am_put_line {path} {quote(record)}" if record else f"rm -f {path}"


def claim_settings(claim_token: str, visibility_window_s: float, busy_wait_s: float = 5.0) -> str:
    """Return the shell variables of the claim protocol; see :class:`SubmissionRequest`."""
    return "\n".join(
        (
            f"am_token={quote(claim_token)}",
            f"am_prefix={quote(COMMENT_PREFIX)}",
            f"am_window={round(visibility_window_s)}",
            f"am_busy={round(busy_wait_s)}",
        )
    )


def parse_submission(result: CommandResult) -> SubmissionOutcome:
    """Parse the output of a submission script.

    :raises TransportError: if the output is incomplete; the request must be repeated, which is always safe.
    """
    values: dict[str, str] = {}
    warnings: list[str] = []
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "stderr":
            if rest.strip():
                warnings.append(rest.strip())
        else:
            values[word] = rest.strip()
    status = values.get("status")
    match status:
        case "submitted" | "recorded" | "adopted":
            record = SubmittedJob.from_record(values.get("job_id", ""))
            if record is None:
                raise TransportError(
                    f"submission answered {status!r} with the unusable job id {values.get('job_id')!r}"
                )
            return SubmissionOutcome(
                status,
                record.job_id,
                values.get("message", ""),
                record.cluster,
                tuple(warnings),
                job_name=record.job_name,
            )
        case "pending" | "refused":
            return SubmissionOutcome(status, None, values.get("message", ""), None, tuple(warnings))
        case "deferred":
            return _deferred(values, tuple(warnings))
    raise TransportError(
        f"submission gave no answer (shell exit status {result.exit_status}): {result.stderr.strip()}"
    )


def _deferred(values: dict[str, str], warnings: tuple[str, ...]) -> SubmissionOutcome:
    kind, _, queued = values.get("waits_for", "").partition(" ")
    waits_for: WaitsFor = "recovery"
    if kind == "room":
        waits_for = "room"
    elif kind == "limit":
        waits_for = "limit"
    return SubmissionOutcome(
        "deferred",
        None,
        values.get("message", ""),
        warnings=warnings,
        waits_for=waits_for,
        queued=int(queued) if queued.isdecimal() else None,
    )
