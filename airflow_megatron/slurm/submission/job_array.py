"""Exactly one Slurm job array for the attempts of many jobs, and exactly one job for each attempt.

An array has its own directory, in which the protocol of :mod:`airflow_megatron.slurm.submission.single_job` works as
for a single attempt: claims, a record of the id, and a unique name for searches with squeue and sacct. In addition, the
array claims each of its attempts in the attempt's directory (``shell/array_claim.sh``), so that no other process
submits one of them at the same time. An attempt that another process has claimed is left out. After sbatch succeeds,
the id of each task (``<array>_<index>``) is recorded for its attempt. If the submitting process was killed and an
attempt is claimed but has no record, the array's directory shows the outcome.

The array's script looks up the attempt of its task index and executes that attempt's ``job.sbatch``.
``--dependency=singleton`` does not delay the tasks of one array, only another array of the same name.
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
    """One attempt of an array.

    :param attempt: the attempt.
    :param script: its complete job script; sbatch reads the ``#SBATCH`` lines of the array's script instead.
    :param job_json: the record written beside the script.
    :param log_file: path of its log on the cluster.
    :param work_dir: working directory of its script.
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
    :param tasks: at least one; the position of a task is its index.
    :param directives: sbatch options of all tasks, in the form of ``#SBATCH`` lines without that word.
    :param at_once: maximum number of tasks that run at the same time.
    :param claim_token: like the following fields, as in
        :class:`~airflow_megatron.slurm.submission.single_job.SubmissionRequest`; each task counts as a job.
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
    """The outcome of the submission of an array.

    :param submission: outcome for the whole array.
    :param indices: indices of its tasks, whose attempts now have a record.
    """

    submission: SubmissionOutcome
    indices: frozenset[int]


def array_script(request: ArrayRequest, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that submits an array, and records its tasks.

    The script may be repeated until its output arrives.
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
    """Return the remote script that determines the outcome of an interrupted array submission.

    If the array was submitted, the script completes its records. If not, the array is given up with status
    ``deferred``, and its attempts may be submitted in another way. ``pending`` has the same meaning as for a single
    job.
    """
    return framed(
        "\n".join(
            (
                claim_settings(claim_token, visibility_window_s),
                slurm_functions(commands),
                queue_limit_functions((), "", 1),
                shell_file("other_account"),
                shell_file("submit"),
                shell_file("array_claim"),
                shell_file("submit_array"),
                f"am_decide_array {quote_path(array.directory)} {quote(array.job_name)}",
                "am_record_tasks",
            )
        )
    )


def parse_array(result: CommandResult) -> ArrayOutcome:
    """Parse the output of an array script.

    :raises TransportError: if the output is incomplete; the script may always be repeated.
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
