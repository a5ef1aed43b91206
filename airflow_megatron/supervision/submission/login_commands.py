"""Commands of jobs that run on a login node instead of, or before, their submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.login_command import login_command
from airflow_megatron.slurm.submission.job_script import job_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

LONGEST_S: Final = 7200.0
"""Time limit of a command in seconds: it may download hundreds of gigabytes."""


class LoginRun(NamedTuple):
    """How a command ended on a login node.

    :param succeeded: whether its exit status was 0
    :param lines: its output and error output
    """

    succeeded: bool
    lines: tuple[str, ...]


def run_on_login_node(job: Job, cluster: ClusterProfile, run: Callable[[str], CommandResult]) -> LoginRun:
    """Run a job's command on a login node, with the modules, the environment and the private files of the job.

    Secrets that Airflow delivers reach jobs only.

    :param run: runs a script there; it must not end it early
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the answer did not arrive
    """
    body = login_command(job.command, cluster.modules, job_environment(job, cluster), job.secrets)
    *lines, status = "\n".join(unframed(run(framed(body)))).strip().split("\n")
    return LoginRun(status == "0", tuple(line for line in lines if line))
