"""Check ``trackers:``: only permitted connections, each once, and no job that sends its own records there as well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.trackers.permitted_connections import connection_refusal
from airflow_megatron.spec.trackers.tracker import TRACKERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep


def tracker_problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield the problems of a sweep's trackers."""
    seen: dict[tuple[str, str, str], int] = {}
    for number, section in enumerate(sweep.settings.trackers):
        if (refusal := connection_refusal(section.connection)) is not None:
            yield sweep.document.problem(("trackers", number, "connection"), *refusal)
        place = section.tracker, section.connection, section.project or sweep.name
        first = seen.setdefault(place, number)
        if first != number:
            yield sweep.document.problem(
                ("trackers", number),
                f"{section.tracker} at {section.connection} is listed twice, and would receive all records twice",
                "remove one, or write another project",
            )


def tracker_findings(sweep: Sweep, jobs: Sequence[Job]) -> Iterator[Finding]:
    """Yield jobs that send records themselves to a kind of tracker that receives them from Airflow.

    :param jobs: with their commands
    """
    for name in dict.fromkeys(section.tracker for section in sweep.settings.trackers):
        for argument in TRACKERS[name].job_arguments:
            for job in jobs:
                if _sets_argument(job, argument):
                    yield Finding(
                        f"{name} twice",
                        job,
                        (argument,),
                        f"{argument} makes the job send its own records to {name}, which receives them from Airflow: "
                        f"trackers: names {name}",
                        f"remove {argument}, or {name} from trackers:",
                    )


def _sets_argument(job: Job, argument: str) -> bool:
    """Return whether a job gives an argument a value that is not empty."""
    flag = f"--{argument.replace('_', '-')}"
    spellings = (flag, f"--{argument}")
    words = list(job.command)
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word in spellings and value and not value.startswith("--"):
            return True
        if any(word.startswith(f"{spelling}=") and len(word) > len(spelling) + 1 for spelling in spellings):
            return True
    if job.script:
        lines = "\n".join(line for line in job.script.splitlines() if not line.lstrip().startswith("#"))
        pattern = f"--{argument}".replace("_", "[-_]") + r"(?:=|\s+)[\"']?[^\s\"'\\-]"
        return re.search(pattern, lines) is not None
    return False
