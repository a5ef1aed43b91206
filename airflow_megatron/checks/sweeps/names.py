"""Check that jobs have unique names and directories, that no template remains unresolved, and names of resources.

A value that is named ``nodes`` hides the resource: ``params: {nodes: 4}`` alone does not request four nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.expressions.resolution import template_names
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.native.stages import RESOURCES
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\$\{[^}]*\}|\{\{|\$\{")


def name_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield jobs that share a name, a directory of attempts, or the directory of a training branch."""
    names: dict[str, Job] = {}
    attempts: dict[str, Job] = {}
    branches: dict[str, Job] = {}
    for job in jobs:
        owner = names.setdefault(job.name, job)
        if owner is not job:
            yield Finding(
                "name",
                job,
                ("point",),
                f"two jobs are named {job.name!r}",
                "include every swept value in the name",
            )
            continue
        other = attempts.setdefault(job.stage_dir, job)
        if other is job and job.trains:
            other = branches.setdefault(job.run_dir, job)
        if other is not job:
            yield Finding(
                "directory",
                job,
                ("run_dir",),
                f"works in the directory of {other.name}: {job.run_dir}",
                "give each job its own run_dir",
            )


def template_findings(jobs: Iterable[Job], *, refuse: bool = True) -> Iterator[Finding]:
    """Yield templates that remain after all expressions were evaluated.

    :param refuse: refuse them in paths and names; files of other tools may keep unresolved text
    """
    for job in jobs:
        log, outputs = job.log or "", " ".join(job.outputs)
        paths = (("name", job.name), ("run_dir", job.run_dir), ("outputs", outputs), ("log", log))
        # one search in all of them first, as few have any
        for key, text in paths if "{" in f"{job.name}{job.run_dir}{outputs}{log}" else ():
            found = _TEMPLATE.search(text)
            if found:
                message = f"{key} still contains {found[0]!r} after all expressions are evaluated: {text}"
                hint = 'write expressions as "{{ name }}"'
                yield Finding("template", job, (key,), message, hint, warning=not refuse)
        # searching all words at once is ten times faster
        for word in job.command if job.script is None and "{" in " ".join(job.command) else ():
            # "{iteration}" belongs to each_checkpoint; a single "$" belongs to the shell
            found = _TEMPLATE.search(word)
            if found:
                message = f"its command still contains {found[0]!r} after all expressions are evaluated"
                yield Finding("template-in-command", job, ("command",), message, "", warning=True)
                break


def resource_name_findings(sweep: Sweep, jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield the jobs whose expressions read another number than that of their resources.

    :param jobs: of the sweep
    """
    if not isinstance(sweep, NativeSweep):
        return
    section_of = {instance.name: instance.stage for instance in sweep.tree}
    read: dict[str, frozenset[str]] = {}
    for job in jobs:
        if job.stage not in read:
            read[job.stage] = _read_names(sweep, section_of.get(job.stage, job.stage))
        for key in read[job.stage].intersection(RESOURCES):
            value, real = job.params.get(key), getattr(job.slurm, key) or 1
            if value is not None and value != real:
                yield Finding(
                    f"resource-name:{key}",
                    job,
                    (key,),
                    f"{{{{ {key} }}}} is {value!r} in expressions, and the job runs with slurm.{key} {real}",
                    f'slurm: {{{key}: "{{{{ {key} }}}}"}}, or another name for the value',
                    warning=True,
                )


def _read_names(sweep: NativeSweep, stage: str) -> frozenset[str]:
    """Return the names that the expressions of a stage read, those of its resources apart."""
    spec = sweep.spec
    section = spec.stages[stage]
    own = section.model_dump(exclude_none=True, exclude={"slurm"})
    shared = [spec.params, spec.megatron, spec.sweep] if STAGE_KINDS[section.kind].runs_trainer else []
    return template_names([own, spec.env, spec.point, *shared])
