"""Rows that a job's trigger stores while it reads the log and the queue."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.logs.log_lines import (
    CheckpointRecord,
    IterationRecord,
    MemoryRecord,
    ValidationRecord,
)
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.json_text import json_text
from airflow_megatron.results.store.tables import (
    ATTEMPTS,
    CHECKPOINTS,
    ITERATIONS,
    MEMORY,
    STATES,
    VALIDATIONS,
)
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.spec.trust.json_records import whole, word
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import Record
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.store.writer import ResultWriter
    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict

log = logging.getLogger(__name__)

_LONGEST_TEXT: Final = 1000


class JobRows:
    """Store the observations of one attempt.

    No method waits or raises: the rows go to the writer's queue, and the first error is logged.

    :param source: the attempt
    :param writer: writer of the rows; None for the writer of this process
    :param hide: masks secrets in a text; None for a job that received no secrets
    """

    def __init__(
        self, source: Source, writer: ResultWriter | None = None, hide: Callable[[str], str] | None = None
    ) -> None:
        self._source = source
        self._writer = writer
        self._hide = hide
        self._state: tuple[str, str, str] | None = None
        self._started: float | None = None
        self._failed = False

    def records(self, placed: Sequence[tuple[int, Record]], read_at: float) -> None:
        """Store log records.

        :param placed: records, each with the byte at which its line begins
        :param read_at: Unix time on the login node
        """
        with self._guarded():
            if self._hide is not None:
                placed = hidden(placed, self._hide)
            self._put(batches_of_records(self._source, read_at, placed))

    def gap(self, offset: int) -> None:
        """Record that the log was not read from a byte on."""
        with self._guarded():
            self._queue().gap(self._source, offset)

    def look(self, observation: Observation) -> None:
        """Store the job's state if it changed."""
        row = observation.queue
        if row is None:
            return
        self._started = row.started or self._started
        state = (row.state.value, row.reason, row.node_list)
        if state != self._state:
            self._state = state
            with self._guarded():
                self._put([Batch(STATES.name, self._source, observation.time, [state])])

    def ended(self, verdict: Verdict, observation: Observation) -> None:
        """Store the verdict on the attempt, and ask the writer to write soon."""
        with self._guarded():
            ending = observation.accounting or observation.queue or observation.controller
            record = observation.exit
            started = (record.started if record else None) or (ending.started if ending else None)
            ended = (record.ended if record else None) or (ending.ended if ending else None)
            row = attempt_row(verdict, started or self._started, ended, self._source.gpus, self._hide)
            self._put([Batch(ATTEMPTS.name, self._source, time.time(), [row])])
            self._queue().flush()

    def cancelled(self, verdict: Verdict, ended: float) -> None:
        """Store the verdict on the attempt if it was cancelled while nobody observed its end.

        :param ended: Unix time of the cancellation
        """
        with self._guarded():
            state, _, node_list = self._state or ("", "", "")
            started = None if state == JobState.PENDING.value else self._started
            row = attempt_row(
                replace(verdict, node_list=node_list), started, ended, self._source.gpus, self._hide
            )
            self._put([Batch(ATTEMPTS.name, self._source, time.time(), [row])])
            self._queue().flush()

    def _put(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._queue().put(batch)

    def _queue(self) -> ResultWriter:
        if self._writer is None:
            from airflow_megatron.results.store.writer import ResultWriter

            self._writer = ResultWriter.shared()
        return self._writer

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a failing store must not affect verdicts
            if not self._failed:
                log.warning("results of %s are not stored: %s", self._source.log, error)
            self._failed = True


def source_values(job: SweepJob, sweep: str, run: str) -> dict[str, Any]:
    """Return the common values of a job's rows, as stored in its trigger."""
    return {
        "sweep": sweep,
        "run": run,
        "point": job.point,
        "stage": job.stage,
        "seq_length": job.seq_length or 0,
        "gpus": job.processes if job.gpus else 0,
    }


def source_of(value: Mapping[str, Any], *, attempt: int, job_id: str, log: str) -> Source | None:
    """Return the source that :func:`source_values` describes; None without values."""
    sweep = word(value.get("sweep"))
    if not sweep:
        return None
    return Source(
        sweep,
        word(value.get("run")) or "",
        word(value.get("point")) or "",
        word(value.get("stage")) or "",
        attempt,
        job_id,
        log,
        whole(value.get("seq_length"), 0),
        whole(value.get("gpus"), 0),
    )


def attempt_row(
    verdict: Verdict,
    started: float | None,
    ended: float | None,
    gpus: int,
    hide: Callable[[str], str] | None = None,
) -> tuple[Any, ...]:
    """Return the row of an attempt.

    :param started: Unix time at which the job started; *ended* is the Unix time of its end
    :param gpus: GPUs of the job, 0 where it is not known
    :param hide: masks secrets in a text
    """
    elapsed = verdict.elapsed
    if elapsed is None and started is not None and ended is not None:
        elapsed = ended - started
    return (
        verdict.outcome.value,
        _text(verdict.reason, hide),
        _text(verdict.line, hide) if verdict.line else None,
        verdict.signature,
        verdict.iteration,
        verdict.node_list,
        ",".join(verdict.failed_nodes) or None,
        verdict.exit_code,
        started,
        ended,
        elapsed,
        gpus or None,
        gpus * elapsed / 3600 if gpus and elapsed is not None else None,
    )


def batches_of_records(source: Source, read_at: float, placed: Sequence[tuple[int, Record]]) -> list[Batch]:
    """Return the rows of log records.

    :param placed: each with the byte at which its line begins
    """
    records = [record for _, record in placed]
    if set(map(type, records)) == {IterationRecord}:  # most parts of a log; a loop takes three times as long
        return [Batch(ITERATIONS.name, source, read_at, records, [at for at, _ in placed])]
    rows: dict[str, tuple[list[Sequence[Any]], list[int]]] = {}
    row: Sequence[Any]
    for at, record in placed:
        match record:
            case IterationRecord():
                name, row = ITERATIONS.name, record
            case ValidationRecord():
                name, row = VALIDATIONS.name, _validation(record)
            case CheckpointRecord():
                name, row = CHECKPOINTS.name, (record.event.value, record.iteration, record.path)
            case MemoryRecord():
                name, row = MEMORY.name, tuple(record)
            case _:
                continue
        found, offsets = rows.setdefault(name, ([], []))
        found.append(row)
        offsets.append(at)
    return [Batch(name, source, read_at, found, offsets) for name, (found, offsets) in rows.items()]


def _validation(record: ValidationRecord) -> tuple[Any, ...]:
    return (
        record.iteration,
        record.split,
        record.dataset,
        record.final,
        record.loss,
        json_text(record.losses),
        json_text(record.perplexities),
    )


def _text(text: str, hide: Callable[[str], str] | None) -> str:
    return shown(hide(text) if hide else text)[:_LONGEST_TEXT]


def hidden(placed: Iterable[tuple[int, Record]], hide: Callable[[str], str]) -> list[tuple[int, Record]]:
    """Mask secrets in records: a job may print them where Megatron prints names."""
    return [(at, _hidden(record, hide)) for at, record in placed]


def _hidden(record: Record, hide: Callable[[str], str]) -> Record:
    match record:
        case IterationRecord():
            losses = {hide(name): value for name, value in record.losses.items()}
            return record._replace(
                losses=losses, extra={hide(name): value for name, value in record.extra.items()}
            )
        case ValidationRecord():
            return record._replace(
                dataset=hide(record.dataset) if record.dataset else None,
                losses={hide(name): value for name, value in record.losses.items()},
                perplexities={hide(name): value for name, value in record.perplexities.items()},
            )
        case CheckpointRecord():
            return record._replace(path=hide(record.path) if record.path else None)
        case MemoryRecord():
            return record._replace(when=hide(record.when))
        case _:
            return record
