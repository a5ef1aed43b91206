"""Cancellation of this package's jobs; other jobs of the user are never cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import checked_job_id, checked_job_name, quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.slurm.remote.attempt import Attempt


@dataclass(frozen=True)
class CancelOutcome:
    """The result of a cancellation.

    :param cancelled: ids for which scancel was called.
    :param absent: ids that are not in the queue under the given name: ended, or reused by another job.
    :param message: error message of scancel.
    """

    cancelled: tuple[str, ...]
    absent: tuple[str, ...]
    message: str = ""


def cancel_script(jobs: Sequence[tuple[str, str]], commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that cancels *jobs*, pairs of job id and exact job name.

    Slurm reuses job ids, so a job is cancelled only if it has the given name, or was submitted with it and renamed.
    """
    wanted = "\n".join(f"{checked_job_id(job_id)}|{checked_job_name(name)}" for job_id, name in jobs)
    return framed(
        f"{slurm_functions(commands)}\n"
        f"am_wanted() {{\n  cat {here_document(wanted)}}}\n"
        f"am_scancel_ids() {{ xargs -n 500 {commands.command('scancel')}; }}\n"
        f"{shell_file('own_name')}\n{shell_file('cancel')}"
    )


def withdraw_script(
    attempt: Attempt, jobs: Sequence[tuple[str, str]] = (), commands: SlurmCommands = DEFAULT_COMMANDS
) -> str:
    """Return the remote script that cancels all jobs of an attempt, whether or not their ids are recorded.

    The script first writes a mark to the attempt's directory. A concurrent submission sees the mark before it calls
    sbatch, or cancels the job that it has submitted. :func:`parse_cancel` parses the output.

    :param jobs: id and name of the recorded job, whose name differs from the attempt's if it is a task of an array.
    """
    recorded = "\n".join(f"{checked_job_id(job_id)}|{checked_job_name(name)}" for job_id, name in jobs)
    mark = quote_path(attempt.files.withdrawn)
    of_name = 'awk -F"|" -v name="$am_name" \'$3 == name { print $2 "|" $3 }\''
    return framed(
        f"{slurm_functions(commands)}\n"
        f"printf '' >{mark} || printf 'failed cannot write %s\\n' {mark}\n"
        f"am_name={quote(attempt.job_name)}\n"
        f"am_wanted() {{\n  printf '%s\\n' \"$am_rows\" | {of_name}\n  cat {here_document(recorded)}}}\n"
        f"am_scancel_ids() {{ xargs -n 500 {commands.command('scancel')}; }}\n"
        f"{shell_file('own_name')}\n{shell_file('cancel')}"
    )


def parse_cancel(jobs: Sequence[tuple[str, str]], result: CommandResult) -> CancelOutcome:
    """Return the result of a cancelling script.

    :raises TransportError: if the queue could not be read, a mark not written, or the output is incomplete; the
        cancellation may be repeated.
    """
    cancelled: list[str] = []
    messages: list[str] = []
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"jobs could not be cancelled: {rest}")
        if word == "cancelled":
            cancelled.append(rest.strip())
        elif word == "scancel" and rest.strip():
            messages.append(rest.strip())
    absent = tuple(job_id for job_id, _ in jobs if job_id not in cancelled)
    return CancelOutcome(tuple(cancelled), absent, "; ".join(messages))
