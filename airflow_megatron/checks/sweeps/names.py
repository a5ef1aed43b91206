"""Checks before submission: names and directories that no two jobs share, and no template left unresolved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\$\{[^}]*\}|\{\{|\$\{")


def name_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield jobs that share a name, a directory for their attempts, or a training branch's directory."""
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
    """Yield templates that are still there after every expression was evaluated.

    :param refuse: paths and names must not hold any; other tools leave text that they cannot resolve as it is
    """
    for job in jobs:
        paths = [("name", job.name), ("run_dir", job.run_dir), ("outputs", " ".join(job.outputs))]
        paths += [("log", job.log or "")]
        for key, text in paths:
            found = _TEMPLATE.search(text)
            if found:
                message = f"{key} still holds {found[0]!r} after everything is resolved: {text}"
                hint = 'write expressions as "{{ name }}"'
                yield Finding("template", job, (key,), message, hint, warning=not refuse)
        # a look at all words at once is ten times as quick
        for word in job.command if job.script is None and "{" in " ".join(job.command) else ():
            # "{iteration}" is meant for each_checkpoint; "$" alone is a shell's
            found = _TEMPLATE.search(word)
            if found:
                message = f"its command still holds {found[0]!r} after everything is resolved"
                yield Finding("template-in-command", job, ("command",), message, "", warning=True)
                break
