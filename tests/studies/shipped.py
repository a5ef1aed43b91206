"""The shipped specs as they are: linted, rendered, and asked of the program that they start."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from airflow_megatron.megatron.commands import comparable_words, runs_pretrain_gpt
from airflow_megatron.planning.plan import Plan, check_sweep, job_script
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.project import local_dir, project_root
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from airflow_megatron.spec.jobs import Job

VALIDATOR = "tests/studies/validate_arguments.py"


def shipped_plan(spec: str) -> Plan:
    """Return the plan of a shipped spec on the cluster that it names.

    :raises SpecError: when lint refuses it
    """
    return check_sweep(load_sweep(project_root() / "sweep_specs" / f"{spec}.yaml"))


def unreadable_scripts(plan: Plan) -> list[str]:
    """Render scripts of a plan's jobs, one of each stage and size; return what bash says of those it cannot read."""
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
    """Put training commands of jobs through upstream's own parser and checks.

    All distinct ones of benchmarks; of a sweep's stages one for each set of flags, whatever their values.

    :param upstream: the checkout of their release
    :returns: how many command lines were asked about, and those refused with upstream's words
    """
    alike: dict[tuple[object, ...], Job] = {}
    for job in jobs:
        if job.trainer == "megatron_lm" and job.runs_trainer and runs_pretrain_gpt(job.command):
            words = comparable_words(job.command)
            if job.kind != "benchmark":
                words = (job.stage, *(word for word in words if word.startswith("--")))
            alike.setdefault((words, job.world_size, *sorted(job.env.items())), job)
    questions = [
        {
            "argv": comparable_words(job.command),
            "world_size": job.world_size,
            "env": {
                "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                **{key: str(value) for key, value in job.env.items()},
            },
        }
        for job in alike.values()
    ]
    if not questions:
        return 0, []
    done = subprocess.run(
        [
            str(local_dir() / "venv-trainer/bin/python"),
            *(
                "-W",
                "ignore",
                str(project_root() / VALIDATOR),
                str(upstream),
                str(project_root() / "Megatron-LM"),
            ),
        ],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{VALIDATOR} ended with exit status {done.returncode}: {done.stderr[-2000:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("null", '"'))]
    if len(answers) != len(questions):
        raise RuntimeError(f"{VALIDATOR} answered {len(answers)} of {len(questions)}: {done.stdout[-2000:]}")
    return len(questions), [
        f"{job.name}: {answer}" for job, answer in zip(alike.values(), answers, strict=True) if answer
    ]
