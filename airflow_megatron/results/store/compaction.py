"""Merge many small segments into one file.

A merged segment contains the rows of other segments and lists their names. Readers skip the listed segments, which are
removed after the merged segment was written. A merge may be interrupted at any time, and several processes may merge at
the same time: readers count a row once, even if two segments contain it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.results.store.segments import new_writer
from airflow_megatron.results.store.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.store.segments import Segment, SegmentStore

MERGE_AT: Final = 60
"""Number of segments of a table after which a writer merges them: ten minutes of a running sweep."""


def merge_segments(
    store: SegmentStore, sweep: str, segments: Sequence[Segment], writer: str, number: int
) -> Segment | None:
    """Write the rows of several segments as one segment, and remove the old ones.

    Damaged and missing segments are skipped.

    :param segments: segments of one table
    :returns: the merged segment; None if there is nothing to merge
    :raises StoreError: if the store fails; no segment is lost then
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
