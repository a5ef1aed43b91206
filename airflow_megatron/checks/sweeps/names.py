"""Check that jobs have unique names and directories, and that no template remains unresolved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job

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
                "names must differ by every swept value",
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
                "give each a run_dir of its own",
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
                message = f"{key} still holds {found[0]!r} after everything is resolved: {text}"
                hint = 'write expressions as "{{ name }}"'
                yield Finding("template", job, (key,), message, hint, warning=not refuse)
        # searching all words at once is ten times faster
        for word in job.command if job.script is None and "{" in " ".join(job.command) else ():
            # "{iteration}" belongs to each_checkpoint; a single "$" belongs to the shell
            found = _TEMPLATE.search(word)
            if found:
                message = f"its command still holds {found[0]!r} after everything is resolved"
                yield Finding("template-in-command", job, ("command",), message, "", warning=True)
                break
