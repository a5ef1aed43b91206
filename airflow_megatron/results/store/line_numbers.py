"""Represent iteration lines by numbers: the texts about their origin are stored once, in a table of logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

if TYPE_CHECKING:
    from airflow_megatron.results.store.tables import Table

METRICS: Final = ("loss", "learning_rate", "grad_norm", "throughput")
"""Columns of :data:`.tables.ITERATIONS` that can be drawn as curves."""
LINE: Final[dict[str, Any]] = {
    "_log": pl.UInt32,
    "offset": pl.Int64,
    "iteration": pl.Int64,
    "train_iters": pl.Int64,
    "consumed_samples": pl.Int64,
    "consumed_tokens": pl.Int64,
    "global_batch_size": pl.Int32,
    "time": pl.Datetime("us", "UTC"),
    "skipped_iterations": pl.Int32,
    "nan_iterations": pl.Int32,
    "torn": pl.Boolean,
    **dict.fromkeys((*METRICS, "elapsed_ms"), pl.Float32),
}
"""Columns of an iteration line: its log, its byte in the log, and its values."""
LOG: Final = ["job_id", "log"]
_FROM: Final = ["point", "stage", "attempt", *LOG]
_BYTES: Final = 2**40
"""Upper bound of the bytes of a log."""


class LogNumbers:
    """Number the logs of a sweep and the trainings that wrote them.

    :ivar logs: ``_log``, ``_training``, ``point``, ``stage``, ``attempt``, ``job_id``, ``log``, and ``_order``: its
        place among all logs, where those of a training follow each other in the order in which they were written
        (Slurm counts the ids of jobs upwards)
    :ivar trainings: ``_training``, ``point``, ``stage``
    """

    def __init__(self) -> None:
        texts = {"point": pl.String, "stage": pl.String}
        self.trainings = pl.DataFrame(schema={"_training": pl.UInt32, **texts})
        self.logs = pl.DataFrame(
            schema={
                **{"_log": pl.UInt32, "_training": pl.UInt32, **texts},
                **{"attempt": pl.Int64, "job_id": pl.String, "log": pl.String, "_order": pl.Int64},
            }
        )

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """Return the log number of each row; assign numbers to new logs.

        :param rows: rows of any table of the store
        """
        if not rows.height:
            return pl.Series("_log", [], pl.UInt32)
        # neighbouring rows mostly belong to the same log: compare the texts only where the log changes
        differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in LOG)
        starts = rows.select((differs | (pl.int_range(pl.len()) == 0)).alias("starts"))["starts"]
        heads = rows.select(_FROM).filter(starts)
        self._add(heads.unique(LOG, keep="first", maintain_order=True))
        numbers = heads.join(
            self.logs.select(*LOG, "_log"), on=LOG, how="left", nulls_equal=True, maintain_order="left"
        )
        return numbers["_log"].gather(starts.cum_sum() - 1)

    def lines(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of :data:`.tables.ITERATIONS` in the form :data:`LINE`; a number that is too large is missing."""
        return rows.with_columns(self.of(rows).alias("_log")).select(
            pl.col(name).cast(kind, strict=False) for name, kind in LINE.items()
        )

    def placed(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Return lines with ``_training`` and ``_place``, which increases along the logs of each training."""
        of_log = self.logs.sort("_log")
        return lines.with_columns(
            of_log["_training"].gather(lines["_log"]).alias("_training"),
            of_log["_order"].gather(lines["_log"]).alias("_place") * _BYTES,
        ).with_columns(pl.col("_place") + pl.col("offset").fill_null(_BYTES - 1).clip(0, _BYTES - 1))

    def _add(self, logs: pl.DataFrame) -> None:
        new = logs.join(self.logs, on=LOG, how="anti", nulls_equal=True)
        if not new.height:
            return
        training = ["point", "stage"]
        strangers = new.select(training).unique(maintain_order=True)
        strangers = strangers.join(self.trainings, on=training, how="anti", nulls_equal=True)
        self.trainings = pl.concat([self.trainings, _numbered(strangers, "_training", self.trainings.height)])
        known = new.join(self.trainings, on=training, how="left", nulls_equal=True, maintain_order="left")
        added = _numbered(known, "_log", self.logs.height).with_columns(pl.lit(0, pl.Int64).alias("_order"))
        self.logs = pl.concat([self.logs, added.select(self.logs.columns)])
        job = pl.col("job_id").str.extract(r"^(\d{1,15})").cast(pl.Int64).fill_null(0)
        order = self.logs.sort("_training", job, "attempt", "log").with_row_index("_now")
        self.logs = (
            order.with_columns(pl.col("_now").cast(pl.Int64).alias("_order")).drop("_now").sort("_log")
        )


def _numbered(frame: pl.DataFrame, name: str, first: int) -> pl.DataFrame:
    numbered = frame.with_row_index(name, offset=first)
    return numbered.with_columns(pl.col(name).cast(pl.UInt32))


def columns_of_lines(table: Table) -> list[str]:
    """Return the columns of the table of iterations that :meth:`LogNumbers.lines` needs."""
    wanted = {*LINE, *_FROM}
    return [column.name for column in table.all_columns if column.name in wanted]
