"""Mark superseded iterations: those that a later attempt repeated from an earlier checkpoint.

This applies the rule of :func:`airflow_megatron.megatron.logs.log_lines.merge_iterations` to whole tables: an iteration
line supersedes every earlier line of the same or a later iteration. A loaded checkpoint supersedes all lines of later
iterations as soon as an iteration follows it.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from airflow_megatron.megatron.logs.checkpoint_lines import CheckpointEvent
from airflow_megatron.results.store.tables import SUPERSEDED

_TRAINING: Final = ["sweep", "point", "stage"]
_LOG: Final = [*_TRAINING, "attempt", "job_id", "log"]
_ORDER: Final = ["_log", "offset"]
_LOADS: Final = [CheckpointEvent.LOADED.value, CheckpointEvent.RANDOM_START.value]
FAR: Final = 2**62
"""The limit of a line that supersedes nothing."""
ITERATION: Final = 0
LOAD: Final = 1
VALIDATION: Final = 2


def with_superseded(
    iterations: pl.DataFrame, checkpoints: pl.DataFrame, validations: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return iterations and validations with the column ``superseded``, in the order in which they were logged.

    The order is that of the jobs' ids, of attempts and of bytes in the log; Slurm counts its ids upwards.

    :param checkpoints: lines about checkpoints that the same trainings loaded
    """
    loads = load_limits(checkpoints)
    parts = [
        iterations.select(
            *_LOG, "offset", "iteration", (pl.col("iteration") - 1).alias("limit"), _kind=pl.lit(ITERATION)
        ).with_row_index("_row"),
        loads.select(*_LOG, "offset", "iteration", "limit", _kind=pl.lit(LOAD)).with_row_index("_row"),
        validations.select(
            *_LOG, "offset", "iteration", pl.lit(FAR).alias("limit"), _kind=pl.lit(VALIDATION)
        ).with_row_index("_row"),
    ]
    # millions of rows share a few texts: sort and compare them as numbers
    logs = _numbered_logs(pl.concat([part.select(_LOG).unique() for part in parts]).unique())
    merged = (
        pl.concat(parts)
        .join(logs, on=_LOG, nulls_equal=True)
        .drop(_LOG)
        .with_columns(pl.col("offset").fill_null(FAR))
        .sort(_ORDER, maintain_order=True)
    )
    steps = counted_loads(merged.filter(pl.col("_kind") != VALIDATION))
    checks = merged.filter(pl.col("_kind") == VALIDATION)
    marked = marked_lines(pl.concat([steps, checks]).sort(_ORDER, maintain_order=True))
    return _applied(iterations, marked, ITERATION), _applied(validations, marked, VALIDATION)


def load_limits(checkpoints: pl.DataFrame) -> pl.DataFrame:
    """Return the lines about loaded checkpoints, with ``limit``, the iteration from which training resumes."""
    return (
        checkpoints.filter(pl.col("event").is_in(_LOADS))
        .with_columns(
            pl.when(pl.col("event") == CheckpointEvent.RANDOM_START.value)
            .then(0)
            .otherwise(pl.col("iteration"))
            .alias("limit")
        )
        .filter(pl.col("limit").is_not_null())
    )


def counted_loads(steps: pl.DataFrame) -> pl.DataFrame:
    """Return lines without the ``limit`` of loads that no iteration follows.

    :param steps: iterations and loads in order: ``_training``, ``_kind``, ``limit``
    """
    follower = pl.col("_kind").shift(-1).over("_training").fill_null(LOAD)
    idle = (pl.col("_kind") == LOAD) & (follower != ITERATION)
    return steps.with_columns(pl.when(idle).then(FAR).otherwise(pl.col("limit")).alias("limit"))


def marked_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Return lines with the column ``superseded``.

    :param lines: sorted: ``_training``, ``iteration`` and ``limit``; a line supersedes earlier lines beyond its limit
    """
    later = pl.col("limit").shift(-1).over("_training").fill_null(FAR).cum_min(reverse=True).over("_training")
    return lines.with_columns((pl.col("iteration") > later).fill_null(False).alias(SUPERSEDED.name))


def _applied(frame: pl.DataFrame, marked: pl.DataFrame, kind: int) -> pl.DataFrame:
    rows = marked.filter(pl.col("_kind") == kind)
    return frame[rows["_row"]].with_columns(rows[SUPERSEDED.name])


def _numbered_logs(logs: pl.DataFrame) -> pl.DataFrame:
    """Return logs with their number ``_log``, in the order in which they were written, and that of their training."""
    job = pl.col("job_id").str.extract(r"^(\d{1,15})").cast(pl.Int64).fill_null(0)
    trainings = logs.select(_TRAINING).unique().sort(_TRAINING).with_row_index("_training")
    return (
        logs.join(trainings, on=_TRAINING, nulls_equal=True)
        .sort("_training", job, "attempt", "log")
        .with_row_index("_log")
    )
