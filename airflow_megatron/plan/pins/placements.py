"""The clusters on which the points of sweeps run, for sweeps that name several clusters.

The first record of a point counts, whichever process writes it: each writer appends a line to the sweep's file, and
then reads the first line of the point. Points never move, because their files are on their cluster.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.spec.trust.json_records import read_object, real, word

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


class Placement(NamedTuple):
    """The cluster of a point.

    :param cluster: name of the cluster profile
    :param why: reason of the choice, one sentence
    :param at: Unix time of the choice
    """

    cluster: str
    why: str
    at: float


class Placements:
    """The clusters of a sweep's points, in one file beside the stored plans.

    :param sweep: name of the sweep
    :param root: folder of the stored plans; default: that of :class:`.PinStore`
    """

    def __init__(self, sweep: str, root: Path | None = None) -> None:
        folder = (root or PinStore().root) / "placements"
        name = quote(sweep, safe=":+~@=")
        self._file = folder / f"_{name}.jsonl"
        self._lock = folder / f"_{name}.lock"
        self._asked = folder / f"_{name}.asked"

    def read(self) -> dict[str, Placement]:
        """Return point → its cluster, for the points that have one."""
        try:
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        found: dict[str, Placement] = {}
        for line in lines:
            record = read_object(line) or {}
            point, cluster = word(record.get("point")), word(record.get("cluster"))
            if point is None:
                continue  # incomplete line of a killed writer
            if cluster is None:
                found.pop(point, None)
            else:
                found.setdefault(
                    point, Placement(cluster, str(record.get("why")), real(record.get("at")) or 0.0)
                )
        return found

    def place(self, point: str, cluster: str, why: str) -> Placement:
        """Record the cluster of a point; return the record that counts, which is an earlier one of the point, or this
        one.
        """
        self._append([{"point": point, "cluster": cluster, "why": why, "at": time.time()}])
        return self.read()[point]

    def forget(self, points: Iterable[str]) -> None:
        """Remove the records of points whose files have been deleted."""
        known = self.read()
        self._append([{"point": point, "cluster": None} for point in points if point in known])

    def state(self) -> tuple[int, int]:
        """Return a value that differs after each change of the records."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent concurrent choices of clusters; on file systems without locks this has no effect."""
        self._lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock.open("a") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def answers(self) -> dict[str, Any]:
        """Return the last answers of clusters, see :meth:`keep_answers`; empty if they cannot be read."""
        try:
            return read_object(self._asked.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError):
            return {}

    def keep_answers(self, answers: Mapping[str, Any]) -> None:
        """Keep the answers of clusters for the choices of the next seconds; call it within :meth:`alone`."""
        draft = self._asked.with_suffix(".draft")
        draft.write_text(json.dumps(answers), encoding="utf-8")
        draft.replace(self._asked)

    def _append(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # a line break first, to end an incomplete line of a killed writer
            os.write(handle, "".join(f"\n{json.dumps(record)}\n" for record in records).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
