"""Convert run directories to rows of the store: log records, attempts, evaluations, GPU samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.results.readings.evaluations import measurements
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.chance_levels import chance_level
from airflow_megatron.results.store.frames import frame_of
from airflow_megatron.results.store.job_rows import attempt_row, batches_of_records, hidden
from airflow_megatron.results.store.json_text import json_text
from airflow_megatron.results.store.segments import new_writer
from airflow_megatron.results.store.tables import ATTEMPTS, EVALUATIONS, GAPS, POINTS, REBUILT, SAMPLES
from airflow_megatron.spec.layout.run_layout import log_pattern_of
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_megatron.results.readings.snapshot import AttemptSnapshot, RunSnapshot, SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.store.segments import SegmentStore


def batches_of_snapshot(
    sweep: str,
    snapshot: SweepSnapshot,
    jobs: Iterable[SweepJob],
    read_at: float,
    *,
    run: str = "",
    hide: Callable[[str], str] | None = None,
) -> list[Batch]:
    """Return the rows of run directories.

    They include the rows of logs if the snapshot contains whole logs (``snapshot_script(whole=True)``).

    :param jobs: of the sweep's plan, each stage of a run directory once
    :param read_at: Unix time of the snapshot
    :param run: id of the sweep's run that points and evaluations belong to; attempts know theirs
    :param hide: masks secrets in a text; None if no job received secrets
    """
    jobs = list(jobs)
    batches: list[Batch] = []
    for job in jobs:
        held = snapshot.run(job.run_dir)
        for attempt in held.attempts.get(job.stage, ()):
            batches += _of_attempt(_source(sweep, job, attempt), job, attempt, held, read_at, hide)
    batches += batches_of_evaluations(sweep, snapshot, jobs, read_at, run=run)
    return batches + batches_of_points(sweep, jobs, read_at, run=run)


def batches_of_evaluations(
    sweep: str, snapshot: SweepSnapshot, jobs: Iterable[SweepJob], read_at: float, *, run: str = ""
) -> list[Batch]:
    """Return the rows of the evaluations in run directories; each row names the stage that its directory belongs to.

    :param jobs: of the sweep's plan
    :param read_at: Unix time of the snapshot
    :param run: id of the sweep's run
    """
    found = {
        Source(sweep, run, job.point, job.branch, 0, "", ""): list(_evaluations(snapshot.run(job.run_dir)))
        for job in {job.run_dir: job for job in reversed(list(jobs))}.values()
    }
    return [Batch(EVALUATIONS.name, source, read_at, rows) for source, rows in found.items() if rows]


def batches_of_points(sweep: str, jobs: Iterable[SweepJob], now: float, *, run: str = "") -> list[Batch]:
    """Return the rows of the points of a plan, one for each training."""
    return [
        Batch(
            POINTS.name,
            Source(sweep, run, job.point, job.stage, 0, "", ""),
            now,
            [
                (
                    json_text(job.sweep_params),
                    job.seq_length,
                    job.processes if job.gpus else None,
                    job.train_iters,
                    job.parent_branch,
                )
            ],
        )
        for job in jobs
        if (kind := STAGE_KINDS.find(job.kind)) is not None and kind.trains
    ]


def write_batches(store: SegmentStore, batches: Sequence[Batch]) -> dict[str, int]:
    """Write rows immediately, one segment for each table.

    :returns: table → number of rows
    :raises StoreError: if the store fails
    """
    writer = new_writer()
    groups: dict[tuple[str, str], list[Batch]] = {}
    for batch in batches:
        groups.setdefault((batch.source.sweep, batch.table), []).append(batch)
    written: dict[str, int] = {}
    for number, ((sweep, table), group) in enumerate(sorted(groups.items(), key=lambda item: item[0])):
        frame = frame_of(table, group)
        store.write(sweep, frame, table, writer, number)
        written[table] = written.get(table, 0) + frame.height
    return written


def _source(sweep: str, job: SweepJob, attempt: AttemptSnapshot) -> Source:
    record = attempt.job
    pattern = log_pattern_of(job.run_dir, job.stage)
    return Source(
        sweep,
        record.origin.run if record and record.origin else "",
        job.point,
        job.stage,
        attempt.number,
        attempt.job_id or "",
        (record.log_file if record else "") or pattern.replace("{attempt}", str(attempt.number)),
        job.seq_length or 0,
        job.processes if job.gpus else 0,
    )


def _of_attempt(
    source: Source,
    job: SweepJob,
    attempt: AttemptSnapshot,
    held: RunSnapshot,
    read_at: float,
    hide: Callable[[str], str] | None,
) -> Iterator[Batch]:
    for log in held.logs:
        if (log.stage, log.attempt) == (job.stage, attempt.number) and log.starts:
            placed = log.placed_records()
            yield from batches_of_records(source, read_at, hidden(placed, hide) if hide else placed)
            yield Batch(GAPS.name, source, read_at, [(REBUILT,)], [0])
    recorded = attempt.verdict
    if recorded is None or recorded.verdict is None:
        recorded = held.verdicts.get(job.stage)
    # the verdict of a stage belongs to one of its attempts
    if recorded is not None and recorded.verdict is not None and recorded.attempt == attempt.number:
        left = attempt.exit
        row = attempt_row(
            recorded.verdict,
            left.started if left else None,
            left.ended if left else None,
            source.gpus,
            hide,
        )
        yield Batch(ATTEMPTS.name, source, read_at, [row])
    if attempt.gpus:
        uses = [
            (use.node, use.index, use.samples, use.memory_mib, use.utilisation, use.power_w)
            for use in attempt.gpus
        ]
        yield Batch(SAMPLES.name, source, read_at, uses)


def _evaluations(held: RunSnapshot) -> Iterator[tuple[object, ...]]:
    for model, of_run in [("", held.evaluations), *sorted(held.of_runs.items())]:
        for iteration, results in sorted(of_run.items()):
            for figure in measurements(results):
                yield (
                    iteration,
                    model,
                    figure.task,
                    figure.metric,
                    figure.filter,
                    figure.value,
                    figure.stderr,
                    figure.num_fewshot,
                    figure.samples,
                    figure.higher_is_better,
                    chance_level(figure.task, figure.metric),
                    figure.version,
                )
