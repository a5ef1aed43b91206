"""Check a job's ``cancel`` and ``finish`` conditions before its submission: if one holds, no job is needed."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.polling.poll import parse_whole_poll, poll_script
from airflow_megatron.slurm.states.observation import END_OF_LOG
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.supervision.condition_watch import ConditionResult, ConditionWatch, OwnAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.slurm.states.observation import Watch
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempts import JobAttempts

MOST_LOOKS: Final = 1000
"""Maximum number of polls; each reads 64 KiB of a log, and the watch task reads the rest."""


def conditions_of(job: Job) -> tuple[Condition, ...]:
    """Return the conditions that are checked while a job is pending and running."""
    events = (event.condition for event in job.events)
    return tuple(condition for condition in (job.cancel, job.finish, *events) if condition is not None)


def runs_of_others(attempts: JobAttempts, conditions: Iterable[Condition]) -> dict[str, int]:
    """Return the first attempt in the current run of each other stage that conditions refer to, by stage directory.

    :raises TransportError: if the login node stays unreachable
    """
    named = {
        path
        for condition in conditions
        for leaf in condition.leaves()
        for path in ((leaf.path,) if leaf.kind in ("finished", "ended") else (leaf.producer,))
    }
    others = sorted(named - {"", attempts.job.stage_dir})
    if not others:
        return {}
    states = attempts.answered(stage_state_script(others), lambda result: parse_stage_states(others, result))
    return {
        stage_dir: first
        for stage_dir, state in states.items()
        if (record := state.submission) is not None and (first := record.first or record.attempt)
    }


def holds(condition: Condition | None, attempts: JobAttempts, number: int, first: int) -> bool:
    """Return whether a condition of a job holds before the submission of an attempt.

    :param number: number of the attempt
    :param first: number of the first attempt in this run of the job
    :raises TransportError: if the login node stays unreachable
    """
    if condition is None:
        return False
    runs = {**runs_of_others(attempts, (condition,)), attempts.job.stage_dir: first}
    watch = ConditionWatch(condition, runs, own=OwnAttempt(attempts.job.stage_dir, number, END_OF_LOG))
    offsets: dict[tuple[str, str | None], int] = {}
    for _ in range(MOST_LOOKS):
        questions = [_from(question, offsets) for question in watch.watches()]
        script = poll_script(questions, attempts.commands)
        seen = attempts.answered(script, functools.partial(parse_whole_poll, questions))
        before = [question.log_file for question in watch.watches()]
        if watch.read([seen[question.key] for question in questions]) is ConditionResult.YES:
            return True
        news = False
        for question in questions:
            chunk = seen[question.key].log_chunk
            offsets[question.key, question.log_file] = question.log_offset + len(chunk)
            news = news or bool(chunk)
        if not news and before == [question.log_file for question in watch.watches()]:
            return False
    return False


def _from(question: Watch, offsets: dict[tuple[str, str | None], int]) -> Watch:
    offset = offsets.get((question.key, question.log_file), question.log_offset)
    return dataclasses.replace(question, log_offset=offset)
