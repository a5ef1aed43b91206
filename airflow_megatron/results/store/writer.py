"""Write rows to the store in a thread, so that no caller waits for the store.

:meth:`ResultWriter.put` queues rows and returns immediately, even if the store fails. If the queue is full, rows are
counted and dropped; a row of :data:`.tables.GAPS` records the log and the byte from which rows are missing, and
``airflow-megatron results rebuild`` reads them again from the run directories.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import defaultdict, deque
from typing import ClassVar, Final

from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.compaction import MERGE_AT, merge_segments
from airflow_megatron.results.store.segments import (
    Segment,
    SegmentStore,
    StoreError,
    default_root,
    new_writer,
)
from airflow_megatron.results.store.tables import GAPS

log = logging.getLogger(__name__)

FLUSH_S: Final = 10.0
"""Seconds between two writes."""
FLUSH_ROWS: Final = 100_000
"""Number of waiting rows that starts a write before the interval has passed."""
MOST_ROWS: Final = 1_000_000
"""Maximum number of rows that wait in memory, some hundred bytes each."""
LONGEST_PAUSE_S: Final = 300.0
"""Maximum number of seconds between two attempts to write to a failing store."""
EXIT_S: Final = 5.0
"""Seconds that the process waits at its end until the last rows are written."""
ASK_AGAIN_S: Final = 1.0
"""Seconds between two attempts to write to a failing store while a caller waits."""


class ResultWriter:
    """Write rows to a store, in a thread that starts with the first rows.

    :param store: the store
    :param flush_s: seconds between two writes
    :param most_rows: maximum number of waiting rows
    """

    _of_process: ClassVar[dict[tuple[int, str], ResultWriter]] = {}
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, store: SegmentStore, *, flush_s: float = FLUSH_S, most_rows: int = MOST_ROWS) -> None:
        self.dropped_rows = 0
        """Number of rows dropped because the queue was full."""
        self._store, self._flush_s, self._most_rows = store, flush_s, most_rows
        self._writer, self._number = new_writer(), 0
        self._lock = threading.Lock()
        self._wake, self._hurry, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._waiting: deque[Batch] = deque()
        self._rows = 0
        self._gaps: dict[Source, int] = {}
        self._full = False
        self._failing = self._closed = False
        self._thread: threading.Thread | None = None
        self._own: dict[tuple[str, str], list[Segment]] = defaultdict(list)

    @classmethod
    def shared(cls) -> ResultWriter:
        """Return the writer of this process for the configured store."""
        key = os.getpid(), default_root()
        with cls._making:
            writer = cls._of_process.get(key)
            if writer is None:
                writer = cls._of_process[key] = cls(SegmentStore(key[1]))
                atexit.register(writer.close, EXIT_S)
        return writer

    def put(self, batch: Batch) -> bool:
        """Queue rows and return immediately.

        :returns: False if the queue is full
        """
        count = len(batch.rows)
        if not count:
            return True
        with self._lock:
            taken = not self._closed and self._rows + count <= self._most_rows
            if taken:
                self._waiting.append(batch)
                self._rows += count
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="result-writer", daemon=True)
                    self._thread.start()
                full = self._rows >= FLUSH_ROWS
            else:
                self.dropped_rows += count
                self._note_gap(batch)
                full, first, self._full = False, not self._full, True
        if full:
            self._wake.set()
        if not taken and first:
            log.warning(
                "the store of results %s does not keep up: further rows are dropped; "
                "`airflow-megatron results rebuild` adds them",
                self._store.shown,
            )
        return taken

    def gap(self, source: Source, offset: int) -> None:
        """Record that rows of a log are missing from a byte on, because that part was not read."""
        self.put(Batch(GAPS.name, source, time.time(), [("not read",)], [offset]))

    def flush(self) -> None:
        """Write the waiting rows soon; called when a job has ended."""
        self._wake.set()

    def drain(self, timeout: float) -> bool:
        """Wait until all rows are written; for tests and commands, not for triggers.

        :returns: True if all rows were written
        """
        end = time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._rows and not self._gaps:
                    return True
                self._idle.clear()
            self._wake.set()
            self._hurry.set()
            left = end - time.monotonic()
            if left <= 0 or not self._idle.wait(left):
                return False
            with self._lock:
                failing = self._failing and bool(self._rows or self._gaps)
            if failing:
                time.sleep(max(0.0, min(ASK_AGAIN_S, end - time.monotonic())))

    def close(self, timeout: float = 0.0) -> None:
        """Refuse further rows, and wait some seconds until the last rows are written."""
        if timeout and not self._closed:
            self.drain(timeout)
        with self._lock:
            self._closed = True
        self._wake.set()
        self._hurry.set()

    def _note_gap(self, batch: Batch) -> None:
        at = min(batch.offsets, default=-1)
        if at >= 0:
            self._gaps[batch.source] = min(at, self._gaps.get(batch.source, at))

    def _run(self) -> None:
        pause = self._flush_s
        while True:
            # do not try a failing store again for every new row
            (self._hurry if self._failing else self._wake).wait(pause)
            with self._lock:
                self._wake.clear()
                self._hurry.clear()
                if self._closed and not self._rows and not self._gaps:
                    return
                batches, self._waiting = self._waiting, deque()
                gaps, self._gaps = self._gaps, {}
            now = time.time()
            batches.extend(
                Batch(GAPS.name, source, now, [("the queue was full",)], [at]) for source, at in gaps.items()
            )
            left = self._write(batches)
            with self._lock:
                failing = self._failing = bool(left)
                self._waiting.extendleft(reversed(left))
                self._rows = sum(len(batch.rows) for batch in self._waiting)
                self._full = self._full and failing
                closed = self._closed
            self._idle.set()
            if failing and closed:
                return
            pause = min(2 * pause, LONGEST_PAUSE_S) if failing else self._flush_s

    def _write(self, batches: deque[Batch]) -> list[Batch]:
        """Write the batches; return those that could not be written."""
        groups: dict[tuple[str, str], list[Batch]] = defaultdict(list)
        for batch in batches:
            groups[batch.source.sweep, batch.table].append(batch)
        left: list[Batch] = []
        for (sweep, table), group in groups.items():
            try:
                try:
                    written = [self._segment(sweep, table, group)]
                except StoreError:
                    raise
                except Exception:
                    # unexpected rows of one job must not keep those of the others from being written
                    written = self._segments(sweep, table, group)
            except StoreError as error:
                if not left:
                    log.warning("%s; the rows are kept in memory and written later", error)
                left += group
                continue
            own = self._own[sweep, table]
            own += written
            if len(own) >= MERGE_AT:
                self._merge(sweep, own)
        return left

    def _segment(self, sweep: str, table: str, group: list[Batch]) -> Segment:
        from airflow_megatron.results.store.frames import frame_of  # importing polars is slow

        frame = frame_of(table, group)
        self._number += 1
        return self._store.write(sweep, frame, table, self._writer, self._number)

    def _segments(self, sweep: str, table: str, group: list[Batch]) -> list[Segment]:
        """Write the batches of each log separately, without those that cannot be stored."""
        of_logs: dict[str, list[Batch]] = defaultdict(list)
        for batch in group:
            of_logs[batch.source.log].append(batch)
        written = []
        for name, batches in of_logs.items():
            try:
                written.append(self._segment(sweep, table, batches))
            except StoreError:
                raise
            except Exception:
                log.exception("rows of %s from %s cannot be stored; they are dropped", table, name)
        return written

    def _merge(self, sweep: str, own: list[Segment]) -> None:
        self._number += 1
        try:
            merge_segments(self._store, sweep, own, self._writer, self._number)
        except Exception as error:
            log.warning("segments of %s are not merged: %s", sweep, error)
        own.clear()
