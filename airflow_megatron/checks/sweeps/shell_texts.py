"""Warn about text for a shell in places that no shell reads: variables and command words are quoted in job scripts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.slurm.submission.job_script import profile_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_EXPANDED: Final = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|\([^)]*\)?)")
_HOME: Final = re.compile(r"~(?:[A-Za-z_][\w.-]*)?/")
_OF_A_SHELL: Final = re.compile(r"-[a-z]*c\Z")
"""The option after which a shell reads its program: ``bash -c``, ``bash -lc``."""


def shell_text_findings(jobs: Iterable[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield environment variables and command words that hold ``$NAME``, ``$(…)`` or ``~/`` as they are written."""
    of_profile: dict[tuple[str, str | None], dict[str, str]] = {}
    for job in jobs:
        key = job.trainer, job.slurm.partition
        if key not in of_profile:
            of_profile[key] = dict(_variables(profile_environment(cluster, *key)))
        for name, text in of_profile[key].items():
            if name not in job.env:
                yield _finding(job, "env", f"env of cluster {cluster.name} sets {name} to the text {text!r}")
        for name, text in _variables(job.env):
            yield _finding(job, "env", f"env sets {name} to the text {text!r}")
        word = _word(job)
        if word:
            # a template that is left is reported as one
            yield _finding(job, "command", f"its command has the text {word!r}")


def _finding(job: Job, key: str, message: str) -> Finding:
    hint = "write the value; or set a variable in setup of the cluster profile, which a shell reads"
    return Finding(
        f"shell text {message}", job, (key,), f"{message}, which no shell expands", hint, warning=True
    )


def _variables(environment: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if isinstance(value, str) and "$" in value and _EXPANDED.search(value):
            yield name, value


def _word(job: Job) -> str | None:
    if job.script is not None:
        return None
    text = " ".join(job.command)  # a search in all words at once is ten times as fast
    if ("$" not in text and "~" not in text) or any(_OF_A_SHELL.match(word) for word in job.command[:4]):
        return None
    for word in job.command:
        if ("$" in word and "${" not in word and _EXPANDED.search(word)) or _HOME.match(word):
            return word
    return None
