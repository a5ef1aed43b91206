"""Exactly one Slurm job array for the attempts of many jobs, and exactly one job for each attempt.

An array has a directory of its own, in which the protocol of :mod:`airflow_megatron.slurm.submission.single_job`
works as for a
single attempt: claims, a record of the id, a unique name by which squeue and sacct are asked. Besides, it claims each
attempt that it is to contain, in the attempt's own directory (``shell/array_claim.sh``), so that nobody submits one of
them meanwhile, and an attempt that somebody else has claimed is left out. Once sbatch has answered, the id of each
task (``<array>_<index>``) is recorded for its attempt; whoever finds an attempt claimed without a record, its
submitter killed, can find out from the array's directory what became of it.

The array's script reads which attempt its index stands for and becomes that attempt's own ``job.sbatch``.
``--dependency=singleton`` does not hold back the tasks of one array, only another array of its name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.secret_delivery import delivery_words
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.submission.queue_limits import queue_limit_functions
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    claim_settings,
    parse_submission,
    submission_functions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.remote.attempt import Attempt
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.slurm.submission.queue_limits import QueueLimit


_TASK_LINE = re.compile(r"task ([0-9]+)")


@dataclass(frozen=True)
class ArrayTask:
    """One attempt that an array is to contain.

    :param attempt: which one.
    :param script: its whole job script; its ``#SBATCH`` lines are not read, the array's are.
    :param job_json: written next to it.
    :param log_file: its log on the cluster.
    :param work_dir: where its script begins.
    :param secrets: as in :class:`~airflow_megatron.slurm.submission.single_job.SubmissionRequest`.
    """

    attempt: Attempt
    script: str
    job_json: dict[str, Any]
    log_file: str
    work_dir: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ArrayRequest:
    """An array to submit.

    :param array: its unique Slurm name, never used before, and its directory.
    :param tasks: at least one; their places are their indices.
    :param directives: options of sbatch that all tasks share, as they stand behind ``#SBATCH``.
    :param at_once: how many tasks may run at the same time.
    :param claim_token: as in :class:`~airflow_megatron.slurm.submission.single_job.SubmissionRequest`, like what
    follows; each
        task counts as a job.
    """

    array: Attempt
    tasks: Sequence[ArrayTask]
    directives: Sequence[str]
    at_once: int
    claim_token: str
    visibility_window_s: float = 300.0
    limits: tuple[QueueLimit, ...] = ()
    places_dir: str = ""


@dataclass(frozen=True)
class ArrayOutcome:
    """What became of an array.

    :param submission: of the array as a whole.
    :param indices: the tasks that it contains, whose attempts have a record now.
    """

    submission: SubmissionOutcome
    indices: frozenset[int]


def array_script(request: ArrayRequest, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that submits an array, and records its tasks.

    The same script may be run again until its answer arrives.
    """
    submission = SubmissionRequest(
        attempt=request.array,
        script=_script(request),
        job_json={
            "array": request.array.job_name,
            "tasks": [task.attempt.job_name for task in request.tasks],
        },
        claim_token=request.claim_token,
        visibility_window_s=request.visibility_window_s,
        limits=request.limits,
        places_dir=request.places_dir,
        jobs=len(request.tasks),
    )
    functions = submission_functions(
        submission,
        commands,
        words=(f'"--array=$am_tasks%{request.at_once}"',),
        writing="am_take_tasks",
        submitting="am_leave_other_tasks",
    )
    calls = "\n".join(f'  "$@" {index} {_words(task)} || return' for index, task in enumerate(request.tasks))
    return framed(
        "\n".join(
            (
                functions,
                shell_file("submit_array"),
                f"am_each_task() {{\n{calls}\n}}",
                "am_attempt",
                "am_record_tasks",
            )
        )
    )


def array_decision_script(
    array: Attempt,
    claim_token: str,
    commands: SlurmCommands = DEFAULT_COMMANDS,
    visibility_window_s: float = 300.0,
) -> str:
    """Return the remote script that finds out what became of an array whose submission was cut short.

    The records of an array that was submitted are completed. One that was not is given up: its answer is
    ``deferred``, and its attempts may be submitted in another way. ``pending`` as for a single job.
    """
    return framed(
        "\n".join(
            (
                claim_settings(claim_token, visibility_window_s),
                slurm_functions(commands),
                queue_limit_functions((), "", 1),
                shell_file("submit"),
                shell_file("array_claim"),
                shell_file("submit_array"),
                f"am_decide_array {quote_path(array.directory)} {quote(array.job_name)}",
                "am_record_tasks",
            )
        )
    )


def parse_array(result: CommandResult) -> ArrayOutcome:
    """Return what a script on an array answered.

    :raises TransportError: if the answer is not whole; asking again is always safe.
    """
    found = (_TASK_LINE.fullmatch(line) for line in unframed(result))
    return ArrayOutcome(parse_submission(result), frozenset(int(line[1]) for line in found if line))


def _script(request: ArrayRequest) -> str:
    output = f"{request.array.directory}/tasks/%a/log"
    lines = [*request.directives, f"--output={quote(output)}", "--open-mode=append"]
    return "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            f"am_array_dir={quote_path(request.array.directory)}",
            shell_file("array_task"),
            "",
        )
    )


def _words(task: ArrayTask) -> str:
    paths = (task.attempt.directory, task.work_dir, task.log_file)
    return " ".join(
        (
            *(quote_path(path) for path in paths),
            quote(task.script),
            quote(json.dumps(task.job_json)),
            delivery_words(task.secrets),
        )
    )
