"""Limits on the number of this user's queued jobs, enforced by the submission script.

Each caller announces itself in a directory that all login nodes share, and then counts the jobs that squeue lists and
the announced callers, each name once. It submits if the sum is within every limit. If several callers submit at the
same time, the last one to announce itself has counted all others, so together they never exceed a limit. No lock is
needed, so a killed caller cannot leave one behind. If there is room for some callers only, the earlier callers stay and
the later ones withdraw.

An announcement is a file ``<directory>/<user id>/<job name>,<token>.<process>``: host, process, its start time, Unix
time, phase (``counting``, ``submitting``) and number of jobs. It is removed when the outcome is known. The announcement
of a killed caller is removed at once in the phase ``counting``, and after the visibility window in the phase
``submitting``, because its job may still become visible.
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
    """The maximum number of jobs in the queue at the same time, pending and running.

    :param jobs: the maximum; every task of an array counts.
    :param name_prefix: only jobs whose names have this prefix count; empty for all jobs of the user.
    """

    jobs: int
    name_prefix: str = ""

    def __post_init__(self) -> None:
        """Refuse a limit below 1."""
        if self.jobs < 1:
            raise ValueError(f"a limit of {self.jobs} jobs in the queue permits no job; use 1 or more")
        if self.name_prefix:
            checked_job_name(self.name_prefix)

    def free(self, queued: Mapping[str, int]) -> int:
        """Return how many more jobs the limit allows.

        :param queued: job name → number of its jobs in the queue.
        """
        return self.jobs - sum(number for name, number in queued.items() if name.startswith(self.name_prefix))


def queue_limit_functions(limits: tuple[QueueLimit, ...], directory: str, jobs: int) -> str:
    """Return the shell functions ``am_await_room`` and ``am_leave`` for the submission script.

    :param limits: all limits apply; without limits, the functions do nothing.
    :param directory: directory of the announcements, private to this user and shared by all login nodes.
    :param jobs: number of jobs that the submission adds to the queue.
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
