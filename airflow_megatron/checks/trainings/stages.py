"""Run the checks that a stage kind defines for its jobs, and find misspelt params."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job


def stage_findings(jobs: Iterable[Job], *, misspelt: bool = True) -> Iterator[Finding]:
    """Yield the problems of jobs by the rules of their kinds, and probably misspelt params.

    :param misspelt: look for misspelt params; other tools' files give every job all values, and their dialects do
    """
    for job in jobs:
        kind = job.stage_kind
        for problem in kind.problems(job):
            yield Finding(
                *(problem.rule, job, problem.place, problem.message, problem.hint), warning=problem.warning
            )
        if kind.params is None or not misspelt:
            continue
        for name in job.variables:
            if name not in job.params or name in kind.params:
                continue
            if hint := _spelling_hint(name, tuple(kind.params)):
                message = f"{job.kind} does not read {name}"
                yield Finding(f"param:{name}", job, (name,), message, hint, warning=True)


@functools.lru_cache(maxsize=1024)  # the jobs of all points of a stage have the same names
def _spelling_hint(name: str, params: tuple[str, ...]) -> str:
    return did_you_mean(name, params, limit=1, alike=0.8)
