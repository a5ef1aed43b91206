"""In-memory summary of a sweep's store for the web pages, updated incrementally.

It contains the newest lines and a curve of each training, but not all iterations: 1,000 trainings of 10,000 iterations
need about 40 MiB. Rows that are read later are appended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from airflow_megatron.results.store.curve_entries import CurveEntries
from airflow_megatron.results.store.frames import distinct, empty
from airflow_megatron.results.store.line_numbers import LINE, LogNumbers, columns_of_lines
from airflow_megatron.results.store.reading import changes as state_changes
from airflow_megatron.results.store.superseded import (
    FAR,
    ITERATION,
    LOAD,
    counted_loads,
    load_limits,
    marked_lines,
)
from airflow_megatron.results.store.tables import (
    ATTEMPTS,
    CHECKPOINTS,
    EVALUATIONS,
    GAPS,
    ITERATIONS,
    MEMORY,
    POINTS,
    REBUILT,
    STATES,
    SUPERSEDED,
    TABLES,
    VALIDATIONS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.store.segments import Segment, SegmentStore

RECENT: Final = 20
"""Number of newest lines whose median is the speed of a training."""
_SMALL: Final = (ATTEMPTS, EVALUATIONS, STATES, POINTS, VALIDATIONS)
"""Tables that are kept in full."""
_SHOWN: Final = (ITERATIONS, CHECKPOINTS, GAPS, MEMORY, *_SMALL)
_LINES: Final = columns_of_lines(ITERATIONS)
_JOB: Final = ["point", "stage"]
_SPAN: Final[dict[str, Any]] = {
    "_log": pl.UInt32,
    "lines": pl.Int64,
    "lost": pl.Float64,
    "first": pl.Int64,
    "last": pl.Int64,
    "begin": pl.Int64,
    "kept": pl.Int64,
}
"""For each log: the number of lines, how many of them a later log repeated, the lowest and highest iteration, and the
first and last iteration that is still part of the training."""
_RECENT: Final = {**LINE, "_training": pl.UInt32}
_HIDDEN: Final = pl.col("torn").fill_null(False) | (pl.col("skipped_iterations").fill_null(0) > 0)
"""Whether a line may lack its loss for another reason than NaN, as the last one of a job that was killed."""
_IS_NAN: Final = (pl.col("nan_iterations").fill_null(0) > 0) | ~pl.col("loss").is_finite().fill_null(_HIDDEN)
"""Whether the loss of a line was not a finite number, as in :attr:`.iteration_lines.IterationRecord.is_nan`."""


@dataclass(frozen=True)
class Picture:
    """A sweep at one moment.

    :param generation: number that increases with each update
    :param trainings: for each training ``point``, ``stage``, ``iteration``, ``train_iters``, ``loss``, ``is_nan``,
        ``global_batch_size``, ``seq_length``, ``elapsed_ms`` and ``throughput`` (medians of its newest lines), ``seen``
        (when its newest line was read), ``validation_loss`` and ``memory``, the maximum that PyTorch reserved on
        a GPU, in MiB
    :param repeated: for each attempt that has logged iterations ``point``, ``stage``, ``attempt``, ``repeated``, the
        share of its lines that a later attempt repeated, and ``begin``, its first iteration that still counts
    :param validations: validation losses that are still part of their training: ``point``, ``stage``, ``iteration``,
        ``loss``
    :param attempts: table of the store
    :param states: changes of state
    :param points: table of the store
    :param evaluations: table of the store
    """

    generation: int
    trainings: pl.DataFrame
    repeated: pl.DataFrame
    validations: pl.DataFrame
    attempts: pl.DataFrame
    states: pl.DataFrame
    points: pl.DataFrame
    evaluations: pl.DataFrame
    _numbers: pl.DataFrame
    _entries: pl.DataFrame

    def curves(self, points: Sequence[str]) -> pl.DataFrame:
        """Return the sorted curves of some points: ``point``, ``stage``, and :data:`.curve_entries.ENTRY`."""
        chosen = self._numbers.filter(pl.col("point").is_in(list(points)))
        entries = self._entries.filter(pl.col("_training").is_in(chosen["_training"].implode()))
        return entries.join(chosen, on="_training", how="left").sort(*_JOB, "start")


class SweepView:
    """Keep the picture of one sweep up to date; safe for use by several threads.

    :param store: store of the rows
    :param sweep: name of the sweep
    :param buckets: minimum number of entries of a curve; the maximum is twice that
    """

    def __init__(self, store: SegmentStore, sweep: str, *, buckets: int = 200) -> None:
        self._store, self._sweep, self._buckets = store, sweep, buckets
        self._lock = threading.Lock()
        self._generation = 0
        self._picture: Picture | None = None
        self._forget()

    def picture(self) -> Picture:
        """Return the current picture of the sweep.

        :raises StoreError: if the store does not respond
        """
        with self._lock:
            changed = self._refresh()
            if changed or self._picture is None:
                self._generation += 1
                self._picture = self._drawn()
            return self._picture

    def _forget(self) -> None:
        self._seen: set[str] = set()
        self._small = {table.name: empty(table) for table in _SMALL}
        self._numbers = LogNumbers()
        self._entries = CurveEntries(self._buckets)
        self._spans = pl.DataFrame(schema=_SPAN)
        self._recent = pl.DataFrame(schema=_RECENT)
        self._memory = pl.DataFrame(schema={"point": pl.String, "stage": pl.String, "memory": pl.Float64})
        # for each training: the place of its newest line
        self._last = pl.DataFrame(schema={"_log": pl.UInt32, "offset": pl.Int64})

    # ---- reading

    def _refresh(self) -> bool:
        """Read new segments, or all segments if rows may have been inserted earlier; return whether there were any."""
        for final in (False, False, True):
            try:
                found = self._store.segments(self._sweep, [table.name for table in _SHOWN])
                unseen = [one for one in found if one.name not in self._seen]
                new, merged = self._read(unseen, skip_missing=final)
            except FileNotFoundError:
                continue
            break
        if not new and not merged:
            return False
        rebuilt = GAPS.name in new and (new[GAPS.name]["reason"] == REBUILT).any()
        if self._seen and (rebuilt or merged):
            self._forget()
            new, _ = self._read(found, skip_missing=True)
        self._seen = {one.name for one in found if one.name not in self._missing}
        for table in _SMALL:
            if table.name in new:
                whole = pl.concat([self._small[table.name], new[table.name]])
                self._small[table.name] = distinct(whole, table)
        if MEMORY.name in new:
            more = new[MEMORY.name].select(*_JOB, pl.col("max_reserved").alias("memory"))
            self._memory = pl.concat([self._memory, more]).group_by(_JOB).agg(pl.col("memory").max())
        if ITERATIONS.name in new:
            self._add(new[ITERATIONS.name], new.get(CHECKPOINTS.name, empty(CHECKPOINTS)))
        return True

    def _read(
        self, segments: Sequence[Segment], *, skip_missing: bool
    ) -> tuple[dict[str, pl.DataFrame], bool]:
        """Return the rows of segments by table, and whether a merged segment contains rows of segments not read before.

        Iterations are in the form :data:`.line_numbers.LINE`.

        :param skip_missing: leave out segments that are listed but missing
        """
        self._missing: set[str] = set()
        found: dict[str, list[pl.DataFrame]] = {}
        replaced: set[str] = set()
        strange = False
        for segment in sorted(segments, key=lambda one: (not one.merged, one)):
            if segment.name in replaced:
                continue
            lines = segment.table == ITERATIONS.name
            try:
                content = self._store.read(self._sweep, segment, columns=_LINES if lines else None)
            except FileNotFoundError:
                if not skip_missing:
                    raise
                self._missing.add(segment.name)
                continue
            if content is None:
                continue
            if content.replaces and content.replaces <= self._seen:
                continue
            strange = strange or bool(content.replaces and self._seen)
            replaced |= content.replaces
            frame = self._numbers.lines(content.frame) if lines else content.frame
            found.setdefault(segment.table, []).append(frame)
        frames = {name: pl.concat(parts) for name, parts in found.items()}
        return {
            name: frame if name == ITERATIONS.name else distinct(frame, TABLES[name])
            for name, frame in frames.items()
        }, strange

    def _add(self, lines: pl.DataFrame, checkpoints: pl.DataFrame) -> None:
        """Append new lines; remove the end of the curve of a training that resumed from an earlier iteration."""
        loads = load_limits(checkpoints)
        loads = self._numbers.placed(
            loads.select(self._numbers.of(loads).alias("_log"), "offset", "iteration", "limit")
        )
        lines = self._numbers.placed(lines)
        if not lines["_place"].is_sorted():
            lines = lines.sort("_place", maintain_order=True)
        repeats = (pl.col("_place") == pl.col("_place").shift(1)) & (
            pl.col("iteration") == pl.col("iteration").shift(1)
        )
        lines = self._later(lines.filter(~repeats.fill_null(False)))
        loads = self._later(loads.sort("_place")).filter(
            pl.col("_training").is_in(lines["_training"].implode())
        )
        if not lines.height:
            return
        lines, lowest = _marked(lines, loads)
        kept = lines.filter(~pl.col(SUPERSEDED.name))
        self._count(lines, lowest)
        self._entries.cut(lowest)
        self._entries.add(kept)
        before = self._recent.join(lowest, on="_training", how="left")
        before = before.filter((pl.col("iteration") < pl.col("_lowest")).fill_null(True))
        newest = kept.group_by("_training", maintain_order=True).tail(RECENT)
        both = pl.concat([before.select(*_RECENT), newest.select(*_RECENT)])
        self._recent = both.group_by("_training", maintain_order=True).tail(RECENT).select(*_RECENT)
        place = lines.group_by("_training", maintain_order=True).last().select("_training", "_log", "offset")
        older = self._numbers.placed(self._last).join(place, on="_training", how="anti")
        self._last = pl.concat([older.select("_log", "offset"), place.select("_log", "offset")])

    def _later(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows after the newest line of their training; another trigger already stored the others."""
        if not self._last.height:
            return rows
        last = self._numbers.placed(self._last).select("_training", pl.col("_place").alias("_before"))
        joined = rows.join(last, on="_training", how="left", maintain_order="left")
        return joined.filter((pl.col("_place") > pl.col("_before")).fill_null(True)).drop("_before")

    def _count(self, lines: pl.DataFrame, lowest: pl.DataFrame) -> None:
        """Update the spans of the logs."""
        dropped = pl.col(SUPERSEDED.name)
        own = pl.col("iteration")
        new = lines.group_by("_log").agg(
            pl.len().alias("lines"),
            dropped.sum().alias("lost"),
            own.min().alias("first"),
            own.max().alias("last"),
            own.filter(~dropped).first().alias("begin"),
            own.filter(~dropped).max().alias("kept"),
        )
        of_log = self._numbers.logs.select("_log", "_training").join(lowest, on="_training")
        known = self._spans.join(of_log, on="_log", how="left")
        cut = (pl.col("kept") >= pl.col("_lowest")).fill_null(False)
        interval = (pl.col("last") - pl.col("first")) / (pl.col("lines") - 1).clip(1)
        gone = ((pl.col("kept") - pl.col("_lowest")) / interval.clip(1)).floor() + 1
        whole = (pl.col("begin") >= pl.col("_lowest")).fill_null(False)
        known = known.with_columns(
            pl.when(cut)
            .then(pl.min_horizontal(pl.col("lost") + gone, "lines"))
            .otherwise("lost")
            .alias("lost"),
            pl.when(whole)
            .then(None)
            .otherwise(pl.when(cut).then(pl.col("_lowest") - 1).otherwise("kept"))
            .alias("kept"),
            pl.when(whole).then(None).otherwise("begin").alias("begin"),
        )
        both = pl.concat([_spans(known), _spans(new)]).group_by("_log", maintain_order=True)
        self._spans = _spans(
            both.agg(
                pl.col("lines", "lost").sum(),
                pl.col("first").min(),
                pl.col("last").max(),
                pl.col("begin").drop_nulls().first(),
                pl.col("kept").drop_nulls().last(),
            )
        )

    # ---- drawing

    def _drawn(self) -> Picture:
        logs = self._numbers.logs
        spans = logs.join(self._spans, on="_log", how="left")
        repeated = (
            spans.filter(pl.col("lines").is_not_null())
            .sort("_order")
            .group_by(*_JOB, "attempt", maintain_order=True)
            .agg(
                (pl.col("lost").sum() / pl.col("lines").sum()).alias("repeated"),
                pl.col("begin").drop_nulls().first(),
            )
        )
        validations = self._validations(spans)
        newest = self._recent.group_by("_training", maintain_order=True).agg(
            pl.col("iteration", "train_iters", "loss", "global_batch_size").last(),
            _IS_NAN.last().alias("is_nan"),
            (pl.col("consumed_tokens") / pl.col("consumed_samples")).drop_nulls().last().alias("seq_length"),
            pl.col("elapsed_ms", "throughput").drop_nulls().median(),
            pl.col("time").max().alias("seen"),
        )
        latest = newest.join(self._numbers.trainings, on="_training").drop("_training")
        losses = validations.group_by(_JOB, maintain_order=True).agg(
            pl.col("loss").last().alias("validation_loss")
        )
        return Picture(
            self._generation,
            latest.join(losses, on=_JOB, how="full", coalesce=True).join(self._memory, on=_JOB, how="left"),
            repeated,
            validations,
            self._small[ATTEMPTS.name],
            state_changes(self._small[STATES.name]),
            self._small[POINTS.name],
            self._small[EVALUATIONS.name],
            self._numbers.trainings,
            self._entries.frame,
        )

    def _validations(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the validation losses that no later log superseded, by iteration; of several sets, those of the first.

        :meth:`.training_run.TrainingRun.evaluation_loss` chooses the same set.
        """
        rows = self._small[VALIDATIONS.name].filter(pl.col("split") == "validation")
        rows = rows.select(
            *_JOB, "offset", "iteration", "dataset", "loss", self._numbers.of(rows).alias("_log")
        )
        later = (
            spans.sort("_order")
            .with_columns(
                pl.col("first")
                .shift(-1)
                .over("_training")
                .fill_null(FAR)
                .cum_min(reverse=True)
                .over("_training")
                .alias("_later")
            )
            .select("_log", "_order", "_later")
        )
        return (
            rows.join(later, on="_log", how="left")
            .filter((pl.col("iteration") < pl.col("_later")).fill_null(True))
            .sort("_order", "offset")
            .filter(pl.col("_order").eq_missing(pl.col("_order").last().over(*_JOB, "iteration")))
            .filter(pl.col("dataset").eq_missing(pl.col("dataset").first().over(*_JOB, "iteration")))
            .unique([*_JOB, "iteration"], keep="last", maintain_order=True)
            .sort(*_JOB, "iteration", nulls_last=False, maintain_order=True)
            .select(*_JOB, "iteration", "loss")
        )


def _spans(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in _SPAN.items())


def _marked(lines: pl.DataFrame, loads: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return lines with ``superseded``, and the lowest iteration that the lines of each training supersede.

    :param lines: in order
    :param loads: in order
    """
    lowest = lines.group_by("_training").agg(pl.col("iteration").min().alias("_lowest"))
    same = pl.col("_training") == pl.col("_training").shift(1)
    back = lines.filter(same & (pl.col("iteration") <= pl.col("iteration").shift(1)))
    affected = pl.concat([back["_training"], loads["_training"]]).unique()
    if not affected.len():
        return lines.with_columns(pl.lit(False).alias(SUPERSEDED.name)), lowest
    lines = lines.with_row_index("_row")
    columns = ["_training", "_place", "iteration", "limit"]
    own = lines.filter(pl.col("_training").is_in(affected.implode())).with_columns(
        (pl.col("iteration") - 1).alias("limit")
    )
    steps = pl.concat(
        [
            own.select("_row", *columns, pl.lit(ITERATION).alias("_kind")),
            loads.select(pl.lit(None, pl.UInt32).alias("_row"), *columns, pl.lit(LOAD).alias("_kind")),
        ]
    ).sort("_place", maintain_order=True)
    marked = marked_lines(counted_loads(steps))
    dropped = marked.filter(pl.col(SUPERSEDED.name) & pl.col("_row").is_not_null())["_row"]
    limits = (
        marked.filter(pl.col("limit") < FAR)
        .group_by("_training")
        .agg((pl.col("limit").min() + 1).alias("_load"))
    )
    lowest = lowest.join(limits, on="_training", how="left").select(
        "_training", pl.min_horizontal("_lowest", "_load").alias("_lowest")
    )
    return lines.with_columns(pl.col("_row").is_in(dropped.implode()).alias(SUPERSEDED.name)).drop(
        "_row"
    ), lowest
