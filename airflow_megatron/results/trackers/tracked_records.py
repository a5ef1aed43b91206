"""Rows of the store as records for trackers: one series for each training, whose steps rise strictly.

A record contains all known values of one iteration. Iterations that restarts and rollbacks have repeated occur once,
as marked in the store. A branch begins with the iterations of its trunk before its own first one.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from airflow_megatron.results.store.tables import SUPERSEDED
from airflow_megatron.spec.trackers.tracker import TrackedRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.results.store.reading import Results

SETTLE_S: Final = 60.0
"""Seconds after which all rows of one time are in the store; its writer writes table by table, every 10 seconds."""
QUIET_S: Final = 3600.0
"""Seconds without a later iteration after which the last one is complete."""
MOST_OTHER_VALUES: Final = 50
"""Maximum number of other values of a line in a record, because a log may have any number."""

_METRICS: Final = (
    "loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    "elapsed_ms",
    "throughput",
    "global_batch_size",
    "consumed_samples",
    "consumed_tokens",
    "skipped_iterations",
    "nan_iterations",
    "attempt",
)
_JSON: Final = ("other_losses", "extra")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_. -]")
_LONGEST_NAME: Final = 100


class SweepRecords:
    """The records of all trainings of a sweep.

    :param results: stored results of the sweep
    :param parents: (point, stage) → the stage from whose checkpoint the training continued
    :param now: Unix time at which *results* are read
    """

    def __init__(self, results: Results, parents: Mapping[tuple[str, str], str], now: float) -> None:
        self._parents, self._now = parents, now
        # read ends before log records, so that no earlier record is missed
        ended = results.attempts.filter(_older(now - SETTLE_S))
        self._ended = set(ended.select("point", "stage", "job_id", "attempt").iter_rows())
        current = results.iterations.filter(~pl.col(SUPERSEDED.name))
        self._iterations = current.partition_by(["point", "stage"], as_dict=True, maintain_order=True)
        checks = results.validations.filter(~pl.col(SUPERSEDED.name) & pl.col("loss").is_not_null())
        self._validations = checks.partition_by(["point", "stage"], as_dict=True, maintain_order=True)
        figures = results.evaluations.filter(
            pl.col("iteration").is_not_null() & pl.col("value").is_finite()
        ).sort("iteration")
        self._evaluations = figures.partition_by(["point", "stage"], as_dict=True, maintain_order=True)

    @property
    def trainings(self) -> list[tuple[str, str]]:
        """The (point, stage) of all trainings that have records."""
        return [(str(point), str(stage)) for point, stage in self._iterations]

    @property
    def evaluated(self) -> list[tuple[str, str]]:
        """The (point, stage) of all trainings whose checkpoints were evaluated."""
        return [(str(point), str(stage)) for point, stage in self._evaluations]

    @property
    def evaluations_are_quiet(self) -> bool:
        """Whether the last evaluation was read an hour ago."""
        late = ~_older(self._now - QUIET_S)
        return all(rows.filter(late).is_empty() for rows in self._evaluations.values())

    def evaluations_after(
        self, point: str, stage: str, step: int | None, *, ended: bool = False
    ) -> Iterator[TrackedRecord]:
        """Yield the evaluations of a training's checkpoints after a step, one record per checkpoint.

        Evaluations end in any order, but steps must rise strictly. Records are therefore withheld until no further
        evaluation is expected.

        :param step: None for all
        :param ended: whether no further evaluation of the sweep is expected
        """
        rows = self._evaluations[point, stage]
        if not ended:
            return
        chosen = rows.filter(pl.col("iteration") > (-1 if step is None else step))
        for _, figures in itertools.groupby(chosen.iter_rows(named=True), lambda row: row["iteration"]):
            values: dict[str, float] = {}
            last = None
            for last in figures:
                names = (last["model"], last["task"], last["metric"], last["filter"])
                name = metric_name(" ".join(name for name in names if name and name != "none"))
                values[name] = last["value"]
                if last["stderr"] is not None:
                    values[metric_name(f"{name} stderr")] = last["stderr"]
            if last is not None:
                yield TrackedRecord(last["iteration"], last["time"].timestamp(), values)

    def after(
        self, point: str, stage: str, step: int | None, *, ended: bool = False
    ) -> Iterator[TrackedRecord]:
        """Yield the records of a training after a step.

        The newest record is withheld until a later one shows that it is complete, because a validation follows its
        iteration.

        :param step: None for all
        :param ended: whether no further records of the sweep are written
        """
        last = self._last_complete(point, stage, ended=ended)
        if last is None:
            return
        first = -1 if step is None else step
        yield from self._records(point, stage, first, last, seen=())

    def _last_complete(self, point: str, stage: str, *, ended: bool) -> int | None:
        """Return the last complete iteration."""
        rows = self._iterations.get((point, stage))
        if rows is None or rows.is_empty():
            return None
        newest = rows.row(-1, named=True)
        job = point, stage, newest["job_id"], newest["attempt"]
        quiet = newest["time"] is not None and newest["time"].timestamp() < self._now - QUIET_S
        if ended or job in self._ended or quiet:
            return int(newest["iteration"])
        settled = rows.head(-1).filter(_older(self._now - SETTLE_S).fill_null(True))["iteration"].max()
        return int(settled) if isinstance(settled, int) else None

    def _records(
        self, point: str, stage: str, after: int, last: int, seen: tuple[str, ...]
    ) -> Iterator[TrackedRecord]:
        rows = self._iterations.get((point, stage))
        if rows is None or rows.is_empty():
            return
        begin = int(rows["iteration"][0])
        parent = self._parents.get((point, stage))
        if parent is not None and parent not in (*seen, stage) and after < begin - 1:
            yield from self._records(point, parent, after, min(begin - 1, last), (*seen, stage))
        checks = self._checks(point, stage, int(rows["iteration"][-1]))
        chosen = rows.filter(pl.col("iteration").is_between(after + 1, last))
        found = {row["iteration"]: row for row in chosen.iter_rows(named=True)}
        steps = sorted({*found, *(step for step in checks if max(after + 1, begin) <= step <= last)})
        for step in steps:
            values = {
                **_values(found.get(step, {})),
                **{name: value for name, (value, _) in checks.get(step, {}).items()},
            }
            times = [when for _, when in checks.get(step, {}).values()]
            when = found[step]["time"].timestamp() if step in found else max(times)
            if values:
                yield TrackedRecord(step, when, values)

    def _checks(self, point: str, stage: str, newest: int) -> dict[int, dict[str, tuple[float, float]]]:
        """Return the validations of a training: iteration → metric → (loss, Unix time)."""
        rows = self._validations.get((point, stage))
        found: dict[int, dict[str, tuple[float, float]]] = {}
        for row in rows.iter_rows(named=True) if rows is not None else ():
            name = f"{row['split'] or 'validation'}_loss"
            if row["dataset"]:
                name = f"{name} {row['dataset']}"
            step = newest if row["iteration"] is None else int(row["iteration"])
            if math.isfinite(row["loss"]):
                found.setdefault(step, {})[metric_name(name)] = row["loss"], row["time"].timestamp()
        return found


def metric_name(text: str) -> str:
    """Return a name that every tracker accepts: letters, digits, ``_ . -`` and spaces, at most 100 characters.

    >>> metric_name("_step/mtp 1 loss")
    'step_mtp 1 loss'
    """
    return (_NOT_IN_NAMES.sub("_", text).lstrip("_. ") or "unnamed")[:_LONGEST_NAME].rstrip()


def _older(moment: float) -> pl.Expr:
    """Whether rows were read before a Unix time."""
    return pl.col("time") < pl.lit(int(moment * 1_000_000)).cast(pl.Datetime("us", "UTC"))


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    values = {name: row.get(name) for name in _METRICS}
    others: dict[str, Any] = {}
    for column in _JSON:
        if row.get(column):
            others |= json.loads(row[column])
    for name in sorted(others)[:MOST_OTHER_VALUES]:
        values.setdefault(metric_name(name), others[name])
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
