"""Merging segments: many small files become one.

A merged segment holds the rows of others and names them; readers pass those over, and they are removed once it is
there. It does not matter when this is interrupted, nor how many do it at once: a row that two segments hold is read
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.results.store.segments import new_writer
from airflow_megatron.results.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.store.segments import Segment, SegmentStore

MERGE_AT: Final = 60
"""Segments of a table that a writer has written are merged: ten minutes of a running sweep."""


def merge_segments(
    store: SegmentStore, sweep: str, segments: Sequence[Segment], writer: str, number: int
) -> Segment | None:
    """Write one segment with the rows of others, and remove those.

    Damaged ones and those that are gone are left alone.

    :param segments: of one table
    :returns: the merged segment, None when there is nothing to merge
    :raises StoreError: when the store fails; the segments are all there then
    """
    import polars as pl

    from airflow_megatron.results.store.frames import distinct

    names: list[str] = []
    frames: list[pl.DataFrame] = []
    for segment in segments:
        try:
            content = store.read(sweep, segment)
        except FileNotFoundError:
            continue
        if content is not None:
            names.append(segment.name)
            frames.append(content.frame)
    if len(names) < 2:
        return None
    table = segments[0].table
    rows = distinct(pl.concat(frames), TABLES[table])
    merged = store.write(sweep, rows, table, writer, number, replaces=names)
    store.remove(sweep, names)
    return merged


def compact(store: SegmentStore, sweep: str) -> dict[str, int]:
    """Merge all segments of a sweep, table by table.

    :returns: table → number of segments merged
    :raises StoreError: when the store fails
    """
    writer = new_writer()
    found: dict[str, list[Segment]] = {}
    for segment in store.segments(sweep):
        found.setdefault(segment.table, []).append(segment)
    merged: dict[str, int] = {}
    for number, (table, segments) in enumerate(found.items()):
        if len(segments) > 1 and merge_segments(store, sweep, segments, writer, number) is not None:
            merged[table] = len(segments)
    return merged
