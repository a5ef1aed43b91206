"""A store of what runs have pinned: content under its own SHA-256, and which run uses which."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from airflow_megatron.spec.project import PINS_VARIABLE, pins_dir

_DIGEST_LENGTH: Final = 64


class PinError(RuntimeError):
    """What a run has pinned cannot be read; the message says what to do."""


class PinStore:
    """Content that never changes, by its digest, and the newest pin of each run.

    Everything is put in place complete, and compared with its digest whenever it is read.

    :param root: the folder; made on first use, for its owner alone
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or pins_dir()

    def put(self, content: Any) -> str:
        """Store JSON data; return its digest. Equal data are stored once; a damaged copy is replaced."""
        text = json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
        digest = hashlib.sha256(text).hexdigest()
        path = self._object(digest)
        if not (path.is_file() and _unpacked(path) == text):
            _write(path, zlib.compress(text))
        return digest

    def get(self, digest: str) -> Any:
        """Return stored data.

        :param digest: as :meth:`put` returned it
        :raises PinError: when there is none, or the copy is damaged
        """
        path = self._object(digest)
        text = _unpacked(path)
        if text is None:
            raise PinError(
                f"the pinned copy {digest[:16]} is not in {self.root}, or cannot be read; clear `plan` to plan again"
                f" (workers on several machines need one folder: {PINS_VARIABLE})"
            )
        if hashlib.sha256(text).hexdigest() != digest:
            raise PinError(f"the pinned copy {path} is damaged; clear `plan` to plan again")
        return json.loads(text)

    def as_file(self, text: str) -> Path:
        """Return a file that holds a text, for readers that take a path; written again when it was changed."""
        content = text.encode()
        path = self.root / "files" / hashlib.sha256(content).hexdigest()
        if not path.is_file() or path.read_bytes() != content:
            _write(path, content)
        return path

    def set_newest(self, dag_id: str, run_id: str, digest: str) -> None:
        """Note the newest pin of a run."""
        _write(self._run(dag_id, run_id), digest.encode())

    def newest(self, dag_id: str, run_id: str) -> str | None:
        """Return the digest of a run's newest pin, None when the run has pinned nothing."""
        try:
            return self._run(dag_id, run_id).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None

    def runs(self, dag_id: str) -> list[str]:
        """Return the ids of the runs of a DAG that have pinned something, the newest first."""
        folder = self._run(dag_id, "").parent
        files = [path for path in folder.iterdir() if path.name.startswith("_")] if folder.is_dir() else []
        newest_first = sorted(files, key=lambda path: -path.stat().st_mtime_ns)
        return [unquote(path.name.removeprefix("_")) for path in newest_first]

    def pins(self, dag_id: str) -> set[str]:
        """Return the digests of the newest pins of all runs of a DAG."""
        folder = self._run(dag_id, "").parent
        found = set()
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.startswith("_"):
                found.add(path.read_text(encoding="ascii", errors="replace"))
        return found

    def set_owner(self, sweep: str, file: str) -> None:
        """Note the spec file that a sweep is planned from."""
        if self.owner(sweep) != file:
            _write(self._owner(sweep), file.encode())

    def owner(self, sweep: str) -> str | None:
        """Return the spec file that a sweep was planned from last, None when it never was."""
        try:
            return self._owner(sweep).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _object(self, digest: str) -> Path:
        if len(digest) != _DIGEST_LENGTH or not digest.isalnum():
            raise PinError(f"{digest[:80]!r} is no digest of a pinned copy")
        return self.root / "objects" / digest[:2] / digest

    def _run(self, dag_id: str, run_id: str) -> Path:
        return self.root / "runs" / _file_name(dag_id) / _file_name(run_id)

    def _owner(self, sweep: str) -> Path:
        return self.root / "owners" / _file_name(sweep)


def _file_name(text: str) -> str:
    """Return a file name for an id: never a path, never hidden."""
    name = quote(text, safe=":+~@=")
    return f"_{name}" if len(name) < 200 else f"_{hashlib.sha256(text.encode()).hexdigest()}"


def _unpacked(path: Path) -> bytes | None:
    """Return what a file holds; None when it cannot be read, nonsense when its compression is damaged."""
    try:
        packed = path.read_bytes()
    except OSError:
        return None
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return b""


def _write(path: Path, content: bytes) -> None:
    """Put a file in place complete, readable by its owner alone."""
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
