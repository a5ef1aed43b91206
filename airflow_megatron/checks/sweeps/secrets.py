"""Check that no secret is written in plain text, which scripts, logs and databases would store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.requirements.permitted_secrets import secret_refusal
from airflow_megatron.slurm.submission.job_script import profile_environment
from airflow_megatron.spec.trust.secret_names import holds_secret, is_known_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_ASSIGNMENT = re.compile(
    r"(?:^|[\s;&|])(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"$`]+\"|'[^']+'|[^\s\"'$`;&|]+)"
)

_FORWARDED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "CCL", "HCCL", "NEBULA", "DLTS")
"""Prefixes of the variables that DeepSpeed's launcher passes on mpirun's command line, and prints.

Its source: ``deepspeed/launcher/runner.py`` ``EXPORT_ENVS`` and ``main``, ``multinode_runner.py`` ``get_cmd``;
``deepspeed/nebula/constants.py``; ``export_envs`` of the accelerators.
"""


def secret_findings(jobs: Iterable[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield variables, commands and scripts of jobs that contain a secret; messages never contain the value."""
    seen: set[tuple[str, str, str]] = set()
    of_profile: dict[tuple[str, str | None], list[str]] = {}
    for job in jobs:
        key = job.trainer, job.slurm.partition
        if key not in of_profile:
            set_there = profile_environment(cluster, *key).items()
            of_profile[key] = [name for name, value in set_there if holds_secret(name, value)]
        for where, name, warning in _plain_secrets(job, cluster.name, of_profile[key]):
            if (job.stage, where, name) not in seen:
                seen.add((job.stage, where, name))
                yield Finding(
                    f"secret {name}",
                    job,
                    ("env", name),
                    f"{where} {name} in plain text, which scripts and databases would store",
                    f"put it into a file on the cluster, chmod 600, and write secrets: {{{name}: {{file: PATH}}}}",
                    warning=warning,
                )
        for name in sorted(job.env.keys() & (job.secrets.keys() | job.delivered.keys())) if job.env else ():
            message = f"{name} is in env and in secrets"
            yield Finding(f"secret and variable {name}", job, ("env", name), message, "remove one")
        if job.runs_trainer and not job.own_launch and cluster.launcher_of(job.trainer) == "deepspeed":
            yield from _forwarded_secrets(job)
        for name, source in job.delivered.items():
            if (refusal := secret_refusal(source)) is not None:
                message, hint = refusal
                yield Finding(f"source of {name}", job, ("secrets", name), f"{name}: {message}", hint)


def _forwarded_secrets(job: Job) -> Iterator[Finding]:
    """Yield secrets that every user of the nodes could read in the arguments of processes."""
    for name in sorted(job.secrets.keys() | job.delivered.keys()):
        if name.startswith(_FORWARDED):
            yield Finding(
                f"forwarded {name}",
                job,
                ("secrets", name),
                f"DeepSpeed's launcher would write {name} into the command line of mpirun, as all variables that begin "
                f"with {', '.join(_FORWARDED[:4])}, …",
                "launcher: mpiexec in the cluster profile; or read the secret under another name",
            )


def _plain_secrets(job: Job, cluster: str, of_profile: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the location of a secret, its name, and whether this is only a warning.

    :param cluster: name of the profile
    :param of_profile: variables with a secret that the profile sets for such jobs
    """
    for name in of_profile:
        if name not in job.env:
            yield f"the profile {cluster} sets", name, False
    for name, value in job.env.items():
        is_given_twice = name in job.secrets or name in job.delivered  # an error of its own
        if not is_given_twice and holds_secret(name, str(value)):
            yield "its environment holds", name, False
    runs_trainer = job.runs_trainer
    for word in job.command if job.script is None else ():
        if not runs_trainer and is_known_secret(word):
            yield "its command holds", "TOKEN", False
        if "=" not in word:
            continue
        for name, value in _ASSIGNMENT.findall(word):
            if holds_secret(name, value.strip("\"'")):
                yield "its command holds", name, False
    if job.script is None or "=" not in job.script:
        return
    for name, value in _ASSIGNMENT.findall(job.script):
        if holds_secret(name, value.strip("\"'")):
            yield "its script holds", name, True
