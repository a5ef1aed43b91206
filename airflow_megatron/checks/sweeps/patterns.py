"""Check that patterns have no nested repetitions, which are always mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.trust.patterns import nested_repetition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job


def pattern_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield the patterns of events and conditions with nested repetitions, ``(a+)+``."""
    for job in jobs:
        for key, pattern in dict.fromkeys(_patterns(job)):
            if nested_repetition(pattern):
                yield Finding(
                    f"pattern {pattern}",
                    job,
                    (key,),
                    f"the pattern {pattern!r} repeats a repetition, as (a+)+ does",
                    "repeat once: a+ matches the same text",
                    warning=True,
                )


def _patterns(job: Job) -> Iterator[tuple[str, str]]:
    for key, condition in (("start", job.start), ("cancel", job.cancel), ("finish", job.finish)):
        for leaf in condition.leaves() if condition else ():
            if leaf.kind == "log":
                yield key, leaf.pattern
    for event in job.events:
        if event.on != "idle":
            yield "events", event.pattern
        for leaf in event.condition.leaves() if event.condition else ():
            if leaf.kind == "log":
                yield "events", leaf.pattern
    for dependency in job.depends_on:
        if dependency.pattern:
            yield "start", dependency.pattern
