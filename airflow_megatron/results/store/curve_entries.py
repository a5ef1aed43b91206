"""Training curves with a bounded number of entries; an entry summarises consecutive iterations."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from airflow_megatron.results.store.line_numbers import METRICS

_COUNTS: Final = {"iteration": pl.Int64, "samples": pl.Int64, "tokens": pl.Int64}
_SUMS: Final = {"seconds": pl.Float64, "tflop": pl.Float64}
ENTRY: Final[dict[str, Any]] = {
    "_training": pl.UInt32,
    "start": pl.Int64,
    "begin": pl.Int64,
    **_COUNTS,
    **_SUMS,
    **{f"{name}_{end}": pl.Float32 for name in METRICS for end in ("min", "max")},
}
"""Columns of an entry: ``start``, its first iteration, logged or not; ``begin`` and ``iteration``, its first and last
logged iteration; samples and tokens consumed until then; the entry's seconds and TFLOP per GPU; the minimum and maximum
of each metric."""
_KEY: Final = ["_training", "start"]


class CurveEntries:
    """The entries of all trainings of a sweep.

    They exclude iterations that a later attempt repeated. Only the minimum and maximum of the last entry before the
    repetition may still include repeated iterations.

    :param buckets: minimum number of entries of a training that has at least as many iterations; the maximum is twice
        that
    """

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._entries = pl.DataFrame(schema=ENTRY)
        self._widths = pl.DataFrame(schema={"_training": pl.UInt32, "_width": pl.Int64})
        self._single = pl.DataFrame(schema={"_training": pl.UInt32, "_opened": pl.Int64})
        """The iteration of those trainings that have logged one line."""

    @property
    def frame(self) -> pl.DataFrame:
        """All entries, in no particular order."""
        return self._entries

    def cut(self, lowest: pl.DataFrame) -> None:
        """Remove iterations at the end of trainings.

        :param lowest: ``_training`` and ``_lowest``, the first iteration to remove
        """
        joined = self._entries.join(lowest, on="_training", how="left")
        gone = (pl.col("start") >= pl.col("_lowest")).fill_null(False)
        border = (pl.col("iteration") >= pl.col("_lowest")).fill_null(False)
        share = (pl.col("_lowest") - pl.col("begin")) / (pl.col("iteration") - pl.col("begin") + 1)
        self._entries = (
            joined.filter(~gone & (~border | (pl.col("begin") < pl.col("_lowest"))))
            .with_columns(
                pl.when(border).then(pl.col("_lowest") - 1).otherwise(pl.col("iteration")).alias("iteration"),
                *(
                    pl.when(border).then(pl.col(name) * share).otherwise(pl.col(name)).alias(name)
                    for name in _SUMS
                ),
            )
            .select(pl.col(name).cast(kind) for name, kind in ENTRY.items())
        )
        self._single = self._single.join(self._entries, on="_training", how="semi")

    def add(self, lines: pl.DataFrame) -> None:
        """Append lines.

        :param lines: lines from :meth:`.line_numbers.LogNumbers.placed`, sorted; the iterations of a training increase
        """
        if not lines.height:
            return
        self._number_widths(lines)
        before = self._entries.group_by("_training").agg(pl.col("iteration").max().alias("_before"))
        lines = lines.join(before, on="_training", how="left", maintain_order="left")
        lines = lines.join(self._widths, on="_training", how="left", maintain_order="left")
        same = pl.col("_training") == pl.col("_training").shift(1)
        previous = pl.when(same).then(pl.col("iteration").shift(1)).otherwise(pl.col("_before"))
        following = pl.col("iteration").shift(-1) - pl.col("iteration")
        following = pl.when(pl.col("_training") == pl.col("_training").shift(-1)).then(following)
        # the first line covers as many iterations as the second, those of Megatron's log_interval
        opening = pl.min_horizontal(pl.col("iteration"), following.fill_null(1))
        steps = (pl.col("iteration") - previous).fill_null(opening).clip(1)
        seconds = pl.col("elapsed_ms").fill_null(0.0).cast(pl.Float64) / 1000 * steps
        added = (
            lines.with_columns(_start("iteration"), seconds.alias("seconds"))
            .with_columns((pl.col("throughput").fill_null(0.0) * pl.col("seconds")).alias("tflop"))
            .group_by(_KEY)
            .agg(
                pl.col("iteration").first().alias("begin"),
                pl.col("iteration").last(),
                pl.col("consumed_samples").last().alias("samples"),
                pl.col("consumed_tokens").last().alias("tokens"),
                *(pl.col(name).sum() for name in _SUMS),
                *(pl.col(name).min().alias(f"{name}_min") for name in METRICS),
                *(pl.col(name).max().alias(f"{name}_max") for name in METRICS),
            )
        )
        self._weigh_single_lines(lines)
        touched = self._entries.join(added.select(_KEY), on=_KEY, how="semi")
        others = self._entries.join(added.select(_KEY), on=_KEY, how="anti")
        self._entries = pl.concat([others, _united(pl.concat([touched, _typed(added)]))])
        self._widen()

    def _weigh_single_lines(self, lines: pl.DataFrame) -> None:
        """Give the first line of trainings its iterations, which are known when the second line comes."""
        new = lines.group_by("_training").agg(
            pl.col("iteration").first().alias("_second"), pl.len().alias("_lines"), pl.col("_before").first()
        )
        opened = pl.col("_opened")
        factors = self._single.join(new, on="_training").select(
            "_training", pl.min_horizontal(opened, pl.col("_second") - opened).clip(1).alias("_factor")
        )
        if factors.height:  # else all entries would be joined with nothing for each new line
            factor = pl.col("_factor").fill_null(1)
            self._entries = _typed(
                self._entries.join(factors, on="_training", how="left").with_columns(
                    *(pl.col(name) * factor for name in _SUMS)
                )
            )
        begun = new.filter(pl.col("_before").is_null() & (pl.col("_lines") == 1))
        begun = begun.select("_training", pl.col("_second").alias("_opened"))
        self._single = pl.concat([self._single.join(factors, on="_training", how="anti"), begun])

    def _number_widths(self, lines: pl.DataFrame) -> None:
        longest = pl.col("iteration").max()
        new = lines.group_by("_training").agg((longest // self._buckets).clip(1).alias("_width"))
        new = new.join(self._widths, on="_training", how="anti")
        self._widths = pl.concat([self._widths, new.with_columns(pl.col("_width").fill_null(1))])

    def _widen(self) -> None:
        """Merge neighbouring entries of trainings that have too many."""
        while True:
            counts = self._entries.group_by("_training").len()
            large = counts.filter(pl.col("len") > 2 * self._buckets)["_training"].implode()
            if not large[0].len():
                return
            wide = pl.col("_training").is_in(large)
            self._widths = self._widths.with_columns(
                pl.when(wide).then(pl.col("_width") * 2).otherwise(pl.col("_width")).alias("_width")
            )
            narrow = self._entries.filter(wide).join(self._widths, on="_training", how="left")
            united = _united(_typed(narrow.with_columns(_start("start"))))
            self._entries = pl.concat([self._entries.filter(~wide), united])


def _start(column: str) -> pl.Expr:
    """Return the first iteration of the entry to which an iteration belongs."""
    return ((pl.col(column) - 1) // pl.col("_width") * pl.col("_width") + 1).alias("start")


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in ENTRY.items())


def _united(entries: pl.DataFrame) -> pl.DataFrame:
    """Merge the entries that have the same start."""
    return _typed(
        entries.group_by(_KEY).agg(
            pl.col("begin").min(),
            *(pl.col(name).max() for name in _COUNTS),
            *(pl.col(name).sum() for name in _SUMS),
            *(pl.col(f"{name}_min").min() for name in METRICS),
            *(pl.col(f"{name}_max").max() for name in METRICS),
        )
    )
