"""Implementation of :class:`airflow_megatron.ui.live.recorded.Recorded` for the store of results."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from airflow_megatron.results.readings.curve_points import kept_points
from airflow_megatron.results.store.frames import distinct
from airflow_megatron.results.store.line_numbers import METRICS
from airflow_megatron.results.store.reading import read_table
from airflow_megatron.results.store.segments import SegmentStore, default_root
from airflow_megatron.results.store.tables import ATTEMPTS
from airflow_megatron.results.store.view import SweepView
from airflow_megatron.slurm.verdicts.outcomes import NAN_IN_TRAINING, Outcome
from airflow_megatron.ui.live.point_table import rounded
from airflow_megatron.ui.live.recorded import MOST_CURVES, EvaluationFigure, JobReading, StageReading
from airflow_megatron.ui.live.store_answers import StoreAnswers

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_megatron.results.store.view import Picture

MOST_SWEEPS: Final = 8
"""Maximum number of sweeps whose state is cached."""
_GOOD: Final = (Outcome.FINISHED.value, Outcome.ROLLED_OVER.value, Outcome.DUPLICATE.value)
_JOB: Final = ["point", "stage"]
_ALONG: Final = ["iteration", "tokens", "flops", "hours", "rate"]
_COUNTED: Final = _ALONG[1:4]
"""Quantities that are accumulated from the start of a training."""
_PATIENCE: Final = 5
"""Minimum pause after a read of the store, as a multiple of the read's duration."""


class _Watched:
    """The cached state of a sweep, and values derived from it for every request."""

    def __init__(self, view: SweepView, answers: StoreAnswers) -> None:
        self._view, self._answers = view, answers
        self._lock = threading.Lock()
        self._next = 0.0
        self.picture: Picture
        self.trainings: dict[tuple[str, str], StageReading]
        self.jobs: dict[tuple[str, str], JobReading]
        self.attempts: pl.DataFrame
        self._generation = -1

    def refresh(self) -> None:
        """Update the cached state.

        :raises StoreError: if the store does not answer
        """
        self._answers.check()  # the lock may be held for minutes
        with self._lock:
            if time.monotonic() < self._next:
                return
            began = time.monotonic()
            with self._answers.reading():
                picture = self._view.picture()
            if picture.generation != self._generation:
                trainings, attempts = _trainings(picture), _with_lost(picture)
                jobs = _jobs(picture, attempts)
                self.picture, self.trainings, self.attempts, self.jobs = picture, trainings, attempts, jobs
                self._generation = picture.generation  # last: after an error, the next request tries again
            self._next = began + (1 + _PATIENCE) * (time.monotonic() - began)


class StoredSweep:
    """The stored results of a sweep; the store is read again after it has changed.

    A training may continue in a later run of the sweep, so the rows of all runs count.

    :param sweep: name of the sweep
    :raises StoreError: if the store does not answer
    """

    _known: OrderedDict[tuple[str, str], _Watched] = OrderedDict()  # noqa: RUF012
    _lock: Final = threading.Lock()

    def __init__(self, sweep: str) -> None:
        store = SegmentStore(default_root())
        key = store.root, sweep
        with self._lock:
            watched = self._known.pop(key, None) or _Watched(
                SweepView(store, sweep), StoreAnswers.of(store.shown)
            )
            self._known[key] = watched
            while len(self._known) > MOST_SWEEPS:
                self._known.popitem(last=False)
        watched.refresh()
        self._watched, self._picture = watched, watched.picture

    def trainings(self) -> dict[tuple[str, str], StageReading]:
        """Return point and stage → its progress."""
        return self._watched.trainings

    def jobs(self) -> dict[tuple[str, str], JobReading]:
        """Return point and stage → its cost."""
        return self._watched.jobs

    def attempts(self, point: str) -> list[dict[str, Any]]:
        """Return the attempts of a point's jobs in the order of their ends."""
        return _attempt_rows(self._watched.attempts.filter(pl.col("point") == point).sort("ended"))

    def failures(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return the attempts that have failed, the newest first.

        :param most: maximum number of attempts; default: all
        """
        newest = self._failed.sort("ended", descending=True)
        return _attempt_rows(newest if most is None else newest.head(most))

    def failure_count(self) -> int:
        """Return the number of attempts that have failed."""
        return self._failed.height

    @property
    def _failed(self) -> pl.DataFrame:
        good = [*_GOOD, Outcome.CANCELLED.value]
        return self._watched.attempts.filter(~pl.col("outcome").is_in(good))

    def figures(self) -> list[EvaluationFigure]:
        """Return every value of every evaluation, by point, training and checkpoint."""
        answers = pl.col("filter").fill_null("none")
        named = pl.concat_str(
            pl.col("task"),
            pl.lit("/"),
            pl.col("metric"),
            pl.when(answers.is_in(["", "none"])).then(pl.lit("")).otherwise(pl.lit(",") + answers),
        ).alias("name")
        found = self._picture.evaluations.with_columns(pl.col("model").fill_null(""), named).sort(
            *_JOB, "model", "iteration"
        )
        whole = found.filter(pl.col("iteration").is_not_null() & pl.col("value").is_finite())
        return [EvaluationFigure(*row) for row in whole.select(*EvaluationFigure._fields).iter_rows()]

    def curves(self, metric: str, points: Collection[str], most: int) -> list[dict[str, Any]]:
        """Return a curve for each training of some points."""
        if metric not in (*METRICS, "validation_loss"):
            return []
        own = pl.col("point").is_in(list(points))
        known = self._picture.points.filter(own)
        parents = {(row["point"], row["stage"]): row["parent"] for row in known.iter_rows(named=True)}
        gpus = {(row["point"], row["stage"]): row["gpus"] for row in known.iter_rows(named=True)}
        entries = self._picture.curves(list(points))
        tracks = {
            (str(point), str(stage)): _with_cost(frame, gpus.get((str(point), str(stage))) or 1)
            for (point, stage), frame in entries.group_by(_JOB, maintain_order=True)
        }
        begun = self._picture.repeated.filter(own)
        found = []
        for (point, stage), track in list(tracks.items())[:MOST_CURVES]:
            parent = parents.get((point, stage)) or ""
            trunk = tracks.get((point, parent))
            of_training = (pl.col("point") == point) & (pl.col("stage") == stage)
            if metric == "validation_loss":
                values = (
                    self._picture.validations.filter(of_training, pl.col("iteration").is_not_null())
                    .select("iteration", pl.col("loss").alias("y"))
                    .join_asof(track.select(_ALONG), on="iteration", strategy="nearest")
                )
            else:
                values = _drawn(track, metric)
            values = _joined(values, trunk, metric).filter(
                pl.col("y").is_not_null() & pl.col("y").is_finite()
            )
            restarts = begun.filter(of_training)["begin"].drop_nulls().to_list()[1:]
            found.append(_curve(point, stage, parent if trunk is not None else "", values, restarts, most))
        return found


@lru_cache(maxsize=1024)
def _gpu_hours(root: str, sweep: str, segments: tuple[str, ...]) -> float:
    attempts = distinct(read_table(SegmentStore(root), sweep, ATTEMPTS), ATTEMPTS)
    return float(attempts["gpu_hours"].sum())


def ended_gpu_hours(sweep: str) -> float:
    """Return the GPU-hours of a sweep's attempts that have ended.

    :raises StoreError: if the store does not answer
    """
    store = SegmentStore(default_root())
    with StoreAnswers.of(store.shown).reading():
        segments = tuple(segment.name for segment in store.segments(sweep, (ATTEMPTS.name,)))
        return _gpu_hours(store.root, sweep, segments) if segments else 0.0


def _trainings(picture: Picture) -> dict[tuple[str, str], StageReading]:
    seen = picture.trainings.with_columns(pl.col("seen").dt.epoch("ms"))
    stopped = _stopped_at_nan(picture)
    return {
        (row["point"], row["stage"]): StageReading(
            iteration=row["iteration"],
            train_iters=row["train_iters"],
            loss=row["loss"],
            validation_loss=row["validation_loss"],
            step_s=row["elapsed_ms"] / 1000 if row["elapsed_ms"] else None,
            tokens_per_iteration=row["global_batch_size"] * row["seq_length"]
            if row["global_batch_size"] and row["seq_length"]
            else None,
            tflops=row["throughput"],
            memory_mib=row["memory"],
            seen=row["seen"] / 1000 if row["seen"] is not None else None,
            diverged=bool(row["is_nan"]) or (row["point"], row["stage"]) in stopped,
        )
        for row in seen.iter_rows(named=True)
    }


def _stopped_at_nan(picture: Picture) -> set[tuple[str, str]]:
    """Return the trainings whose last attempt ended at a NaN loss, which Megatron does not log before it ends."""
    ended = picture.attempts.select(*_JOB, "attempt", "signature")
    begun = picture.states.select(*_JOB, "attempt")
    last = pl.concat([begun, ended.select(*_JOB, "attempt")]).group_by(_JOB).agg(pl.col("attempt").max())
    at_nan = ended.filter(pl.col("signature") == NAN_IN_TRAINING).join(last, on=[*_JOB, "attempt"])
    return set(at_nan.select(_JOB).iter_rows())


def _with_lost(picture: Picture) -> pl.DataFrame:
    """Return the attempts with their lost GPU-hours: the share of iterations that were repeated later.

    An attempt without a logged iteration is lost unless it succeeded.
    """
    ended_well = pl.col("outcome").is_in(list(_GOOD))
    share = pl.col("repeated").fill_null(pl.when(ended_well).then(0.0).otherwise(1.0))
    joined = picture.attempts.join(picture.repeated, on=[*_JOB, "attempt"], how="left")
    return joined.with_columns((pl.col("gpu_hours") * share).alias("lost"))


def _jobs(picture: Picture, attempts: pl.DataFrame) -> dict[tuple[str, str], JobReading]:
    seen = (
        pl.concat([picture.states.select(*_JOB, "attempt"), attempts.select(*_JOB, "attempt")])
        .group_by(_JOB)
        .agg(pl.col("attempt").n_unique().alias("attempts"))
    )
    cost = attempts.group_by(_JOB).agg(pl.col("gpu_hours", "lost").sum())
    last = picture.states.sort("time").group_by(_JOB).agg(pl.col("state").last())
    whole = seen.join(cost, on=_JOB, how="left").join(last, on=_JOB, how="left")
    return {
        (row["point"], row["stage"]): JobReading(
            row["attempts"], row["gpu_hours"] or 0.0, row["lost"] or 0.0, row["state"] or ""
        )
        for row in whole.iter_rows(named=True)
    }


def _with_cost(entries: pl.DataFrame, gpus: int) -> pl.DataFrame:
    """Return the entries of a training with the FLOPs and hours up to the end of each, and its learning rate there."""
    return entries.with_columns(
        (pl.col("seconds").cum_sum() / 3600).alias("hours"),
        (pl.col("tflop").cum_sum() * (1e12 * gpus)).alias("flops"),
        pl.when(_falls("learning_rate"))
        .then("learning_rate_min")
        .otherwise("learning_rate_max")
        .alias("rate"),
    )


def _falls(metric: str) -> pl.Expr:
    """Return whether a metric decreases within an entry."""
    middle = pl.col(f"{metric}_min") + pl.col(f"{metric}_max")
    return (middle <= middle.shift(1)).fill_null(middle >= middle.shift(-1)).fill_null(True)


def _drawn(track: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return the values of a curve: for an entry with several iterations, its minimum and maximum. Their positions
    within the entry are unknown. They are placed at its ends, in the order that follows the slope of the curve there.
    """
    low, high = pl.col(f"{metric}_min"), pl.col(f"{metric}_max")
    falls = _falls(metric)
    before = {name: pl.col(name).shift(1).fill_null(0) for name in ["iteration", *_COUNTED]}
    whole = pl.col("iteration") - before["iteration"]
    part = (pl.col("begin") - before["iteration"]) / whole.clip(1)
    firsts = track.select(
        pl.col("begin").alias("iteration"),
        *((before[name] + (pl.col(name) - before[name]) * part).alias(name) for name in _COUNTED),
        pl.when(_falls("learning_rate"))
        .then("learning_rate_max")
        .otherwise("learning_rate_min")
        .alias("rate"),
        pl.when(falls).then(high).otherwise(low).alias("y"),
    )
    lasts = track.select(*_ALONG, pl.when(falls).then(low).otherwise(high).alias("y"))
    several = track["begin"] < track["iteration"]
    return pl.concat([firsts.filter(several), lasts], how="vertical_relaxed").sort(
        "iteration", maintain_order=True
    )


def _joined(values: pl.DataFrame, trunk: pl.DataFrame | None, metric: str) -> pl.DataFrame:
    """Return the values of a branch with the trunk's cost added, preceded by the last earlier value of the trunk."""
    columns = [*_ALONG, "y"]
    own = values.select(columns)
    if trunk is None or not own.height:
        return own
    before = trunk.filter(pl.col("iteration") < own["iteration"][0]).tail(1)
    if not before.height:
        return own
    own = own.with_columns(pl.col("flops") + before["flops"][0], pl.col("hours") + before["hours"][0])
    if metric == "validation_loss":  # the trunk may be validated at other iterations
        return own
    return pl.concat([_drawn(before, metric).tail(1).select(columns), own], how="vertical_relaxed")


def _curve(
    point: str, stage: str, parent: str, values: pl.DataFrame, restarts: list[int], most: int
) -> dict[str, Any]:
    kept = values[kept_points(values["iteration"].to_list(), values["y"].to_list(), most)]
    return {
        "point": point,
        "stage": stage,
        "parent": parent,
        "x": kept["iteration"].to_list(),
        "tokens": [None if value is None else round(value) for value in kept["tokens"].to_list()],
        "flops": [rounded(value) or None for value in kept["flops"].to_list()],
        "hours": [rounded(value) for value in kept["hours"].to_list()],
        "rate": [rounded(value) for value in kept["rate"].to_list()],
        "y": [rounded(value) for value in kept["y"].to_list()],
        "restarts": restarts,
    }


def _attempt_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    names = ["point", "stage", "attempt", "job_id", "outcome", "reason", "line", "signature", "node_list"]
    names += ["failed_nodes", "elapsed", "gpu_hours", "lost"]
    epoch = pl.col("ended").dt.epoch("ms").alias("ended")
    return [
        {
            name: (value / 1000 if name == "ended" else rounded(value) if isinstance(value, float) else value)
            for name, value in row.items()
            if value is not None
        }
        for row in frame.select(*names, epoch).iter_rows(named=True)
    ]
