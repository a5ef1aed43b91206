"""Check events, and the patterns of events and conditions, for values that are certainly mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.trust.patterns import line_pattern, needs_line_end, nested_repetition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.conditions import Event
    from airflow_megatron.spec.model.jobs import Job

MAX_EVENTS: Final = 100
"""Events of one job."""
MAX_CONDITIONS: Final = 100
"""Conditions of one job that are not made of others; a poll of the cluster answers each."""
MAX_STEPS: Final = 5_000
"""Steps of all patterns of one job, see :data:`airflow_megatron.spec.trust.patterns.MAX_PROGRAM`."""

_STATES: Final = tuple(state.value for state in JobState)


def pattern_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield events that cannot be meant, and patterns that are empty, span lines or repeat a repetition, ``(a+)+``.

    What one job may cost comes first: one process watches all jobs of all sweeps.
    """
    for job in jobs:
        patterns = list(_patterns(job))
        if not (patterns or job.events or job.start or job.cancel or job.finish):
            continue
        if costly := [*_costly_findings(job, patterns)]:
            yield from costly
            continue
        yield from _event_findings(job)
        for key, pattern in dict.fromkeys(patterns):
            if not pattern:
                yield Finding(
                    "empty-pattern",
                    job,
                    (key,),
                    "the pattern is empty, and every line matches it",
                    "write a pattern that matches the intended line",
                )
            elif needs_line_end(pattern):
                yield Finding(
                    f"pattern {pattern}",
                    job,
                    (key,),
                    f"the pattern {pattern!r} holds a line end, and it is looked for within each line",
                    "leave it out; $ is the end of a line",
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


def _costly_findings(job: Job, patterns: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the numbers of events, of conditions and of steps of patterns that a job may not have.

    :param patterns: of the job, each with its key
    """
    if len(job.events) > MAX_EVENTS:
        yield _too_many(job, "events", f"{len(job.events):,} events", f"at most {MAX_EVENTS}")
    held = (job.start, job.cancel, job.finish, *(event.condition for event in job.events))
    leaves = sum(1 for condition in held if condition for _ in condition.leaves())
    if leaves > MAX_CONDITIONS:
        message = f"its start, cancel, finish and events have {leaves:,} conditions"
        yield _too_many(job, "conditions", message, f"at most {MAX_CONDITIONS}")
    steps = sum(line_pattern(pattern).testing.programsize for _, pattern in patterns)
    if steps > MAX_STEPS:
        message = f"its patterns have {steps:,} steps, and each takes time in every line of the log"
        yield _too_many(
            job, "steps", message, f"at most {MAX_STEPS:,}: fewer patterns, with smaller repetitions"
        )


def _too_many(job: Job, kind: str, message: str, hint: str) -> Finding:
    return Finding(f"too-many-{kind}", job, ("events",) if job.events else (), message, hint)


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
                "give each event its own name",
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
