"""The wait on a login node for the record of a job's end, between two polls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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


STARTING_S: Final = 30.0
"""Seconds for which a submitted job that does not run yet may start, and even end, before the next poll."""


class AwaitedRecord(NamedTuple):
    """The file in which a job will record its end; those of running jobs come first in their order.

    :param pending: whether the job does not run yet
    """

    pending: bool
    path: str


def awaited_record(watch: Watch, observation: Observation, quiet: float) -> AwaitedRecord | None:
    """Return the record of a job that runs, or may soon run; None if it has recorded its end.

    :param watch: the job and files to observe
    :param observation: the newest observation
    :param quiet: seconds since the job's state changed
    """
    queue = observation.queue
    if watch.attempt_dir is None or queue is None or observation.exit is not None:
        return None
    if queue.state is JobState.RUNNING or (queue.state is JobState.PENDING and quiet < STARTING_S):
        pending = queue.state is JobState.PENDING
        return AwaitedRecord(pending, exit_record_of(watch.attempt_dir))
    return None


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
