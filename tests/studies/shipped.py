"""Shipped specs, and specs of launch commands: linted, rendered, and checked by the program that they start."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from upstream import release_of
from upstream_answers import command_line_of, upstream_answers

from airflow_megatron.megatron.commands.commands import comparable_words, runs_pretrain_gpt
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep, spec_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job


def shipped_plan(spec: str) -> Plan:
    """Return the plan of a shipped spec on the cluster that it names.

    :raises SpecError: when lint refuses it
    """
    return check_sweep(load_sweep(project_root() / "sweep_specs" / f"{spec}.yaml"))


def launch_specs() -> list[Path]:
    """Return the specs of launch commands of other people's studies."""
    return spec_files(project_root() / "tests/fixtures/launch_commands")


def unreadable_scripts(plan: Plan) -> list[str]:
    """Render scripts of a plan's jobs, one for each stage and size; return bash's errors about invalid ones."""
    cluster = load_cluster(plan.cluster)
    kinds = {(job.stage, job.world_size): job for job in plan.jobs}
    found = []
    for job in kinds.values():
        script = job_script(job, cluster, 1)
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        if done.returncode:
            found.append(f"{job.name}: {done.stderr.strip()}")
    return found


def refused_by_upstream(jobs: Iterable[Job], upstream: Path) -> tuple[int, list[str]]:
    """Check training commands of jobs with upstream's own parser and rules.

    Checks all distinct commands of benchmarks, and one command for each set of flags of a sweep's stages.

    :param upstream: a checkout of their release
    :returns: number of checked command lines, and the refused ones with upstream's message
    """
    alike: dict[tuple[object, ...], Job] = {}
    for job in jobs:
        if job.trainer == "megatron_lm" and job.runs_trainer and runs_pretrain_gpt(job.command):
            words = comparable_words(job.command)
            if job.kind != "benchmark":
                words = (job.stage, *(word for word in words if word.startswith("--")))
            alike.setdefault((words, job.world_size, *sorted(job.env.items())), job)
    answers = upstream_answers(
        [command_line_of(job) for job in alike.values()], upstream, release_of(upstream) or ""
    )
    return len(answers), [
        f"{job.name}: {answer['message']}"
        for job, answer in zip(alike.values(), answers, strict=True)
        if not answer["ok"]
    ]
