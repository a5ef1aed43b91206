"""Limits on how many jobs of this user are in the queue at the same time, kept by the submission script.

Each caller announces itself in a directory that all login nodes share, and counts only then: the jobs that
squeue lists and the callers that are announced, each name once. It submits when that is within every limit. Of
callers that submit at the same time the one that announced itself last has counted all others, so together they
never exceed a limit, and no lock is needed that a dead caller could leave behind. Where there is room for some
callers only, those who came first stay and the others withdraw.

An announcement is a file ``<directory>/<user id>/<job name>,<token>.<process>``: host, process, its start time,
Unix time, phase (``counting``, ``submitting``) and number of jobs. It goes when the outcome is known. Of a dead
caller it goes at once while it counted, and after the visibility window when it had begun to submit: its job may
still show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import here_document
from airflow_megatron.slurm.remote.quoting import checked_job_name, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class QueueLimit:
    """How many jobs may be in the queue at the same time, waiting and running ones together.

    :param jobs: the number; every task of an array counts.
    :param name_prefix: counts only jobs whose name begins so; empty for all jobs of the user.
    """

    jobs: int
    name_prefix: str = ""

    def __post_init__(self) -> None:
        """Refuse a limit that nothing could keep."""
        if self.jobs < 1:
            raise ValueError(f"a limit of {self.jobs} jobs in the queue lets nothing run; use 1 or more")
        if self.name_prefix:
            checked_job_name(self.name_prefix)

    def free(self, queued: Mapping[str, int]) -> int:
        """Return how many more jobs the limit allows.

        :param queued: job name → number of its jobs in the queue.
        """
        return self.jobs - sum(number for name, number in queued.items() if name.startswith(self.name_prefix))


def queue_limit_functions(limits: tuple[QueueLimit, ...], directory: str, jobs: int) -> str:
    """Return the shell functions ``am_await_room`` and ``am_leave`` for the submission script.

    :param limits: all of them hold; none makes the functions do nothing.
    :param directory: where callers announce themselves; shared by all login nodes, of this user alone.
    :param jobs: how many jobs the submission puts into the queue.
    """
    if not limits:
        return "am_await_room() { return 0; }\nam_submitting() { return 0; }\nam_leave() { return 0; }"
    listing = "\n".join(f"limit|{limit.jobs}|{limit.name_prefix}" for limit in limits)
    return (
        f"am_places={quote_path(directory)}/$(id -u)\n"
        f"am_jobs={jobs}\n"
        f"am_limits() {{\n  cat {here_document(listing)}}}\n"
        f"{shell_file('queue_limits')}"
    )
