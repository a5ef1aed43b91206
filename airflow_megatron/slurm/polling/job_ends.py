"""The wait on a login node for the record of a job's end, between two polls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.spec.layout.run_layout import exit_record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.slurm.states.observation import Observation, Watch

MOST_RECORDS: Final = 50
"""Maximum number of files in one wait, which looks for each of them twice a second."""


def awaited_record(watch: Watch, observation: Observation) -> str | None:
    """Return the path at which a running job will record its end; None if it does not run, or has recorded it."""
    queue = observation.queue
    if watch.attempt_dir is None or queue is None or queue.state is not JobState.RUNNING:
        return None
    return exit_record_of(watch.attempt_dir) if observation.exit is None else None


def is_ending(observation: Observation) -> bool:
    """Return whether a job has recorded its end, and Slurm has not noticed it yet."""
    queue = observation.queue
    return (
        observation.exit is not None
        and queue is not None
        and queue.state is not JobState.PENDING
        and not queue.state.ended
    )


def job_ends_script(paths: Sequence[str], seconds: int) -> str:
    """Return the remote script that ends as soon as one of the files exists, or after some seconds."""
    words = " ".join(quote(path) for path in paths)
    return framed(f"{shell_file('job_ends')}\nam_job_ends {seconds} {words}")


def parse_job_ends(paths: Sequence[str], result: CommandResult) -> str | None:
    """Return the file that exists; None if none did.

    :raises TransportError: if the output is incomplete
    """
    answer = unframed(result)
    if not answer or not answer[0].isdecimal() or int(answer[0]) >= len(paths):
        return None
    return paths[int(answer[0])]
