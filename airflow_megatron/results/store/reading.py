"""Read the stored results of a sweep as data frames.

>>> import airflow_megatron.results
>>> results = airflow_megatron.results.load("no_such_sweep")
>>> results.iterations.height
0
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from airflow_megatron.results.store.frames import distinct, empty, in_schema
from airflow_megatron.results.store.segments import SegmentStore, default_root
from airflow_megatron.results.store.superseded import with_superseded
from airflow_megatron.results.store.tables import (
    ATTEMPTS,
    CHECKPOINTS,
    EVALUATIONS,
    GAPS,
    ITERATIONS,
    MEMORY,
    POINTS,
    REBUILT,
    SAMPLES,
    STATES,
    VALIDATIONS,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.results.store.segments import Segment

log = logging.getLogger(__name__)

_NOT_IN_TURN: Final = "^(Dependency|DependencyNeverSatisfied|JobHeld.*|BeginTime)$"
"""Slurm's reasons for pending jobs that do not wait for resources (squeue(1), JOB REASON CODES)."""
_TRIES: Final = 5
"""Attempts to read a table: segments may be merged and removed during the reading."""


class Results:
    """The stored results of a sweep: a polars data frame for each table of :mod:`.tables`.

    A table is read at the first access. Iterations and validations have the column ``superseded``.

    :param store: the store
    :param sweep: name of the sweep
    :param run: id of a run of the sweep; None for all runs
    """

    def __init__(self, store: SegmentStore, sweep: str, run: str | None = None) -> None:
        self._store, self._sweep, self._run = store, sweep, run

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """Every iteration line, in the order in which they were logged."""
        return self._of_run(self._trainings[0])

    @cached_property
    def validations(self) -> pl.DataFrame:
        """Every validation and test loss."""
        return self._of_run(self._trainings[1])

    @cached_property
    def checkpoints(self) -> pl.DataFrame:
        """Every line about a checkpoint."""
        return self._of_run(self._table(CHECKPOINTS))

    @cached_property
    def memory(self) -> pl.DataFrame:
        """Every line about a rank's memory."""
        return self._of_run(self._table(MEMORY))

    @cached_property
    def attempts(self) -> pl.DataFrame:
        """Every attempt that has ended."""
        return self._of_run(self._table(ATTEMPTS))

    @cached_property
    def states(self) -> pl.DataFrame:
        """Every change of a job's state."""
        return self._of_run(changes(self._table(STATES)))

    @cached_property
    def evaluations(self) -> pl.DataFrame:
        """Every metric of an evaluation."""
        return self._of_run(self._table(EVALUATIONS))

    @cached_property
    def samples(self) -> pl.DataFrame:
        """The use of each GPU during an attempt."""
        return self._of_run(self._table(SAMPLES))

    @cached_property
    def points(self) -> pl.DataFrame:
        """Every point with its swept parameters; without a stored plan, the points that have rows in other tables."""
        points = self._table(POINTS)
        seen = self._trainings[0].unique(["point", "stage"], maintain_order=True)
        missing = seen.join(points, on=["point", "stage"], how="anti")
        return self._of_run(pl.concat([points, in_schema(missing.drop("offset"), POINTS)]))

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """Parts of logs without stored rows; ``airflow-megatron results rebuild`` adds the rows."""
        gaps = self._table(GAPS).with_columns(
            pl.col("time").filter(pl.col("reason") == REBUILT).max().over("log").alias("rebuilt")
        )
        open_ones = (pl.col("reason") != REBUILT) & (pl.col("time") > pl.col("rebuilt")).fill_null(True)
        return self._of_run(gaps.filter(open_ones).drop("rebuilt"))

    @cached_property
    def _trainings(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return with_superseded(self._table(ITERATIONS), self._table(CHECKPOINTS), self._table(VALIDATIONS))

    def _table(self, table: Table) -> pl.DataFrame:
        return distinct(read_table(self._store, self._sweep, table), table)

    def _of_run(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the run, and the rows whose run is unknown."""
        return frame if self._run is None else frame.filter(pl.col("run").is_in([self._run, ""]))


def load(sweep: str, run: str | None = None, *, root: str | None = None) -> Results:
    """Return the stored results of a sweep; the tables of an unknown sweep are empty.

    :param sweep: name of the sweep
    :param run: id of a run of the sweep in Airflow; None for all runs
    :param root: location of the store, a folder or any fsspec URL; None for the configured one
    """
    return Results(SegmentStore(root or default_root()), sweep, run)


def read_table(store: SegmentStore, sweep: str, table: Table) -> pl.DataFrame:
    """Return the rows of all segments of a table; the result may contain duplicates.

    :raises StoreError: if the store does not respond
    """
    for _ in range(_TRIES - 1):
        try:
            frames = _frames(store, sweep, store.segments(sweep, (table.name,)))
        except FileNotFoundError:
            continue
        return pl.concat([empty(table), *frames])
    frames = _frames(store, sweep, store.segments(sweep, (table.name,)), skip_missing=True)
    return pl.concat([empty(table), *frames])


def _frames(
    store: SegmentStore, sweep: str, segments: Iterable[Segment], *, skip_missing: bool = False
) -> list[pl.DataFrame]:
    found: list[pl.DataFrame] = []
    replaced: set[str] = set()
    # read merged segments first: they name the segments that need not be read
    for segment in sorted(segments, key=lambda one: (not one.merged, one)):
        if segment.name in replaced:
            continue
        try:
            content = store.read(sweep, segment)
        except FileNotFoundError:
            if not skip_missing:
                raise
            log.warning("%s of %s is listed, but missing: some rows are missing", segment.name, sweep)
            continue
        if content is not None:
            found.append(content.frame)
            replaced |= content.replaces
    return found


def changes(states: pl.DataFrame) -> pl.DataFrame:
    """Return the states that differ from the state before: several watchers may have recorded the same job."""
    job = ["point", "stage", "attempt", "job_id"]
    now = pl.struct("state", "reason", "node_list")
    differs = (now != now.shift(1).over(job)) | pl.int_range(pl.len()).over(job).eq(0)
    return states.sort("time", maintain_order=True).filter(differs)


def queue_waits(results: Results) -> dict[tuple[str, str, int], float]:
    """Return the seconds that ended attempts spent in the queue, by point, stage and attempt.

    The wait begins when a poll first reports the job as pending for a reason other than a dependency or a hold, and
    ends when the job starts: a job that no poll reported as pending for such a reason has waited 0 s.
    """
    attempt = ["point", "stage", "attempt"]
    free = ~pl.col("reason").fill_null("").str.contains(_NOT_IN_TURN)
    pending = results.states.filter((pl.col("state") == "PENDING") & free)
    begun = pending.group_by(attempt).agg(pl.col("time").min().alias("begun"))
    ended = results.attempts.filter(pl.col("started").is_not_null()).select(*attempt, "started")
    waited = (pl.col("started") - pl.col("begun").fill_null(pl.col("started"))).dt.total_milliseconds() / 1000
    found = ended.join(begun, on=attempt, how="left").with_columns(waited.clip(0.0).alias("waited"))
    return {
        (point, stage, number): seconds
        for point, stage, number, seconds in found.select(*attempt, "waited").iter_rows()
    }
