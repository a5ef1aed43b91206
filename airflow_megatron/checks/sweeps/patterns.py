"""Check events, and the patterns of events and conditions, for mistakes that no job can have meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.trust.patterns import line_pattern, nested_repetition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.conditions import Event
    from airflow_megatron.spec.model.jobs import Job

_STATES: Final = tuple(state.value for state in JobState)


def pattern_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield events that cannot be meant, and patterns that are empty or have nested repetitions, ``(a+)+``."""
    for job in jobs:
        yield from _event_findings(job)
        for key, pattern in dict.fromkeys(_patterns(job)):
            if not pattern:
                yield Finding(
                    "empty-pattern",
                    job,
                    (key,),
                    "the pattern is empty, and every line matches it",
                    "a pattern of the line that is meant",
                )
            elif nested_repetition(pattern):
                yield Finding(
                    f"pattern {pattern}",
                    job,
                    (key,),
                    f"the pattern {pattern!r} repeats a repetition, as (a+)+ does",
                    "repeat once: a+ matches the same text",
                    warning=True,
                )


def _event_findings(job: Job) -> Iterator[Finding]:
    place = ("events",)
    names: set[str] = set()
    for event in job.events:
        if event.name in names:
            yield Finding(
                f"event-name {event.name}",
                job,
                place,
                f"two events are named {event.name!r}, and the limit of one would count the actions of the other",
                "give each a name of its own",
            )
        names.add(event.name)
        if event.on == "idle" and event.after == 0:
            yield Finding(
                f"event-idle {event.name}",
                job,
                place,
                f"{event.name}: idle is 0, and the event would happen at the first poll",
                "a duration, for example idle: 30m",
            )
        if event.on == "state" and event.pattern and not _is_a_state(event):
            yield Finding(
                f"event-state {event.name}",
                job,
                place,
                f"{event.name}: no state of Slurm matches {event.pattern!r}",
                did_you_mean(event.pattern.upper(), _STATES, limit=1)
                or "states are those of squeue: FAILED, TIMEOUT, …",
            )


def _is_a_state(event: Event) -> bool:
    pattern = line_pattern(event.pattern)
    return any(pattern.search(state) is not None for state in _STATES)


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
