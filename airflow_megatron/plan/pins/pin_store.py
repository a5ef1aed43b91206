"""A store of pinned content by SHA-256, and of the runs that use it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import PINS_VARIABLE, pins_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DIGEST_LENGTH: Final = 64


class PinError(AirflowMegatronError, RuntimeError):
    """Pinned content cannot be read; the message gives the remedy."""


class NotedRun(NamedTuple):
    """The recorded state of a run.

    :param run_id: id of the run
    :param pins: digests of its pinned plans, the newest last
    :param outlines: digests of the outlines of its DAGs, the newest last
    :param ended: whether the run and all runs that it launched have ended
    :param written: Unix time of its last pin
    """

    run_id: str
    pins: tuple[str, ...]
    outlines: tuple[str, ...]
    ended: bool
    written: float


class PinStore:
    """Immutable content by digest, and the newest pin of each run.

    Every file is written atomically, and its digest is verified whenever it is read.

    :param root: the folder, created on first use and accessible only to its owner
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or pins_dir()

    def put(self, content: Any) -> str:
        """Store JSON data; return its digest. Equal data are stored once; a damaged copy is replaced."""
        text = json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
        digest = content_digest(text)
        path = self._object(digest)
        if path.is_file() and _unpacked(path) == text:
            os.utime(path)  # pruning uses the modification time
        else:
            _write(path, zlib.compress(text))
        return digest

    def get(self, digest: str) -> Any:
        """Return stored data.

        :param digest: result of :meth:`put`
        :raises PinError: if there is none, or the copy is damaged
        """
        path = self._object(digest)
        text = _unpacked(path)
        if text is None:
            raise PinError(
                f"the pinned copy {digest[:16]} is not in {self.root}, or cannot be read; clear `plan` to plan again"
                f" (workers on several machines need one folder: {PINS_VARIABLE})"
            )
        if content_digest(text) != digest:
            raise PinError(f"the pinned copy {path} is damaged; clear `plan` to plan again")
        return json.loads(text)

    def as_file(self, text: str) -> Path:
        """Return a file with a text, for readers that need a path; a changed file is restored."""
        content = text.encode()
        path = self.root / "files" / content_digest(content)
        if not path.is_file() or path.read_bytes() != content:
            _write(path, content)
        return path

    def set_newest(self, dag_id: str, run_id: str, digest: str, outline: str = "") -> None:
        """Record the newest pin of a run, which is in progress from then on; its tasks may still use earlier pins.

        :param outline: digest of the sweep's outline, from which its DAGs are built
        """
        known = self._noted(self._run(dag_id, run_id))
        pins = [pin for pin in known.pins if pin != digest]
        outlines = [one for one in known.outlines if one != outline] + [outline] * bool(outline)
        self._note(
            dag_id, NotedRun(run_id, (*pins, digest), tuple(outlines), ended=False, written=time.time())
        )

    def newest(self, dag_id: str, run_id: str) -> str | None:
        """Return the digest of a run's newest pin, None without one."""
        pins = self.pins_of(dag_id, run_id)
        return pins[-1] if pins else None

    def pins_of(self, dag_id: str, run_id: str) -> tuple[str, ...]:
        """Return the digests of all pins of a run, the newest last."""
        return self._noted(self._run(dag_id, run_id)).pins

    def began(self) -> float | None:
        """Return the Unix time at which something was stored for the first time, None if nothing was."""
        try:
            return self._lock.stat().st_mtime  # nothing is ever written to it
        except OSError:
            return None

    def begin(self) -> None:
        """Create the store if it does not exist: runs that start later cannot be of a version that stored no plans.

        :raises OSError: if its folder cannot be written
        """
        if self.began() is None:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.touch(mode=0o600)

    def set_ended(self, dag_id: str, run_id: str, *, ended: bool = True) -> None:
        """Record whether a run has ended; no effect for a run without a pin."""
        known = self._noted(self._run(dag_id, run_id))
        if known.pins and known.ended is not ended:
            self._note(dag_id, known._replace(ended=ended))

    def under_way(self, dag_id: str) -> list[NotedRun]:
        """Return the runs of a DAG that have a pin and have not ended, the newest first.

        This is called whenever DAGs are built and runs end, so it reads only the records of runs in progress.
        """
        marks = self._marks(dag_id)
        if not marks.is_dir():  # an older version of the package recorded these runs
            return [run for run in self.noted_runs(dag_id) if not run.ended]
        notes = (self._noted(self._run(dag_id, "").parent / path.name) for path in marks.iterdir())
        return _newest_first(run for run in notes if run.pins and not run.ended)

    def runs(self, dag_id: str) -> list[str]:
        """Return the ids of the runs of a DAG that have a pin, the newest first."""
        return [run.run_id for run in self.noted_runs(dag_id)]

    def noted_runs(self, dag_id: str) -> list[NotedRun]:
        """Return the runs of a DAG that have a pin, the newest first."""
        return _newest_first(run for run in map(self._noted, self._notes(dag_id)) if run.pins)

    def is_readable(self) -> bool:
        """Return whether the records of all runs are readable."""
        return all(self._noted(path).pins for dag_id in self.dags() for path in self._notes(dag_id))

    def _notes(self, dag_id: str) -> list[Path]:
        folder = self._run(dag_id, "").parent
        return [path for path in folder.iterdir() if path.name.startswith("_")] if folder.is_dir() else []

    def dags(self) -> list[str]:
        """Return the ids of the DAGs with runs that have a pin."""
        folder = self.root / "runs"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted(unquote(name.removeprefix("_")) for name in names if name.startswith("_"))

    def forget(self, dag_id: str, run_id: str) -> None:
        """Remove the record of a run."""
        path = self._run(dag_id, run_id)
        path.unlink(missing_ok=True)
        (self._marks(dag_id) / path.name).unlink(missing_ok=True)

    def pins(self, dag_id: str) -> set[str]:
        """Return the digests of all pins of all runs of a DAG."""
        return {pin for run in self.noted_runs(dag_id) for pin in run.pins}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Protect newly stored content from pruning until a run refers to it."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store exclusively, without concurrent writers.

        :raises OSError: if a writer is active, or the file system has no locks
        """
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock.open("a") as lock:
            try:
                fcntl.flock(lock, how)
            except OSError:
                if how != fcntl.LOCK_SH:  # without locks there is no pruning
                    raise
            yield

    def _note(self, dag_id: str, run: NotedRun) -> None:
        path, marks = self._run(dag_id, run.run_id), self._marks(dag_id)
        if not marks.is_dir():
            for known in self.noted_runs(dag_id):
                if not known.ended:
                    self._mark(dag_id, known.run_id)
        # an extra mark is ignored, but a missing mark would hide the run
        if not run.ended:
            self._mark(dag_id, run.run_id)
        _write(path, json.dumps(run._asdict()).encode())
        if run.ended:
            (marks / path.name).unlink(missing_ok=True)

    def _mark(self, dag_id: str, run_id: str) -> None:
        """Mark a run as in progress."""
        _write(self._marks(dag_id) / self._run(dag_id, run_id).name, b"")

    @staticmethod
    def _noted(path: Path) -> NotedRun:
        try:
            data = json.loads(path.read_bytes())
            pins, outlines = tuple(data["pins"]), tuple(data["outlines"])
            return NotedRun(str(data["run_id"]), pins, outlines, bool(data["ended"]), float(data["written"]))
        except (OSError, ValueError, TypeError, KeyError):
            return NotedRun("", (), (), ended=True, written=0.0)

    def set_owner(self, sweep: str, file: str) -> None:
        """Record the spec file from which a sweep is planned."""
        if self.owner(sweep) != file:
            _write(self._owner(sweep), file.encode())

    def owner(self, sweep: str) -> str | None:
        """Return the spec file from which a sweep was last planned, None if it was never planned."""
        try:
            return self._owner(sweep).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def _lock(self) -> Path:
        return self.root / ".lock"

    def _object(self, digest: str) -> Path:
        if len(digest) != _DIGEST_LENGTH or not digest.isalnum():
            raise PinError(f"{digest[:80]!r} is not a digest of a pinned copy")
        return self.root / "objects" / digest[:2] / digest

    def _run(self, dag_id: str, run_id: str) -> Path:
        return self.root / "runs" / _file_name(dag_id) / _file_name(run_id)

    def _marks(self, dag_id: str) -> Path:
        """Return the folder with an empty file for each run of a DAG in progress."""
        return self.root / "under_way" / _file_name(dag_id)

    def _owner(self, sweep: str) -> Path:
        return self.root / "owners" / _file_name(sweep)


def _newest_first(runs: Iterable[NotedRun]) -> list[NotedRun]:
    return sorted(runs, key=lambda run: (-run.written, run.run_id))


def content_digest(content: bytes) -> str:
    """Return the digest of content, which is its name in the store."""
    return hashlib.sha256(content).hexdigest()


def _file_name(text: str) -> str:
    """Return a file name for an id: never a path, never hidden."""
    name = quote(text, safe=":+~@=")
    return f"_{name}" if len(name) < 200 else f"_{hashlib.sha256(text.encode()).hexdigest()}"


def _unpacked(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read, arbitrary bytes if its compression is damaged."""
    try:
        packed = path.read_bytes()
    except OSError:
        return None
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
