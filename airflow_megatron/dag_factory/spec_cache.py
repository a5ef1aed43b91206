"""Cache of the specs of a folder, valid until a file that an entry depends on changes.

Every task is a process that builds its sweep's DAG again, and the DAG processor reads the folder every 30 s. With the
cache, only the digest of an unchanged file is computed. An entry holds the digests of all files that were read for it.
The cache is an optimisation: a missing or damaged cache, or one of another user, is not used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import airflow_megatron
from airflow_megatron.spec.documents.errors import Problem
from airflow_megatron.spec.documents.project import clusters_dir, local_dir, project_root, templates_dir
from airflow_megatron.spec.model.outline import SweepOutline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REFUSED_FOR_S: Final = 300.0
"""Seconds for which an error is cached; it may depend on more than the read files."""
UNUSED_FOR_S: Final = 30 * 86400.0
"""Seconds after which the entries of a folder with unchanged specs are removed."""
LARGEST_HASHED: Final = 1 << 20
"""Bytes of a file whose content is read for its digest; every parse takes the digests of all files."""
_NOT_REGULAR: Final = "not a regular file"
_MISSING: Final = "missing"


@dataclass(frozen=True)
class SpecEntry:
    """The cached result of reading one spec.

    :param outline: of its sweep, None if it has none
    :param problems: its errors
    :param reads: path → digest of every file that was read for it
    :param processor_s: seconds of processor time that it took
    :param complete: whether it was read completely within the time limit
    :param found_at: Unix time of the result
    :param last_good: its last outline without errors, None if there was none
    """

    outline: SweepOutline | None
    problems: tuple[Problem, ...] = ()
    reads: Mapping[str, str] = field(default_factory=dict)
    processor_s: float = 0.0
    complete: bool = True
    found_at: float = 0.0
    last_good: SweepOutline | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "outline": self.outline.to_json() if self.outline else None,
            "problems": [asdict(problem) for problem in self.problems],
            "reads": dict(self.reads),
            "processor_s": self.processor_s,
            "complete": self.complete,
            "found_at": self.found_at,
            "last_good": self.last_good.to_json() if self.last_good and not self.outline else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpecEntry:
        """Parse the output of :meth:`to_json`.

        :raises ValueError: if it is something else
        """
        try:
            outline = SweepOutline.from_json(data["outline"]) if data["outline"] else None
            last = SweepOutline.from_json(data["last_good"]) if data["last_good"] else outline
            problems = tuple(Problem(**one) for one in data["problems"])
            return cls(
                outline,
                problems,
                data["reads"],
                data["processor_s"],
                data["complete"],
                data["found_at"],
                last,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no entry of the cache: {error!r}") from error


class SpecCache:
    """The entries of one folder, in one file.

    :param folder: the specs' folder
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._raw = self._load()
        self._changed = False

    def valid(self, file: Path) -> SpecEntry | None:
        """Return the entry of a file if none of its dependencies has changed, else None."""
        entry = self.last(file)
        if (
            entry is None
            or not entry.complete
            or (entry.outline is None and time.time() - entry.found_at > REFUSED_FOR_S)
        ):
            return None
        return entry if all(digest_of(path) == digest for path, digest in entry.reads.items()) else None

    def last(self, file: Path) -> SpecEntry | None:
        """Return the last entry of a file, whatever has changed since."""
        try:
            return SpecEntry.from_json(self._raw[str(file)])
        except (KeyError, ValueError):
            return None

    def names(self) -> dict[str, list[Path]]:
        """Return the files of each sweep by its name, as they were last found."""
        found: dict[str, list[Path]] = {}
        for file, data in self._raw.items():
            if isinstance(data, dict) and isinstance(
                known := data.get("outline") or data.get("last_good"), dict
            ):
                found.setdefault(str(known.get("name")), []).append(Path(file))
        return found

    def put(self, file: Path, entry: SpecEntry) -> SpecEntry:
        """Keep an entry; return it with the last outline that the file had."""
        before = self.last(file)
        last = entry.outline or (before.last_good if before else None)
        entry = replace(entry, last_good=last, found_at=time.time())
        self._raw[str(file)] = entry.to_json()
        self._changed = True
        return entry

    def save(self, files: Iterable[Path]) -> None:
        """Write changed entries; entries of other files are dropped."""
        kept = {str(file) for file in files}
        if not self._changed and kept >= self._raw.keys():
            return
        entries = {file: data for file, data in self._raw.items() if file in kept}
        try:
            folder = _own_folder(make=True)
            if folder is None:
                return
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as draft:
                json.dump({"key": _key(), "entries": entries}, draft)
            Path(draft.name).replace(folder / self._file_name())
            _drop_unused(folder)
        except OSError:
            return
        self._changed = False

    def _load(self) -> dict[str, Any]:
        try:
            folder = _own_folder(make=False)
            if folder is None:
                return {}
            data = json.loads((folder / self._file_name()).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if (
            not isinstance(data, dict)
            or data.get("key") != _key()
            or not isinstance(data.get("entries"), dict)
        ):
            return {}
        return data["entries"]

    def _file_name(self) -> str:
        return hashlib.sha256(os.fsencode(self.folder.absolute())).hexdigest()[:24] + ".json"


def _drop_unused(folder: Path) -> None:
    """Remove the files of folders that have not been read for long."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > UNUSED_FOR_S:
            path.unlink(missing_ok=True)


def digest_of(path: str) -> str:
    """Return a digest of a file's content, or a word for what is not a regular file.

    A file of more than :data:`LARGEST_HASHED` bytes is told apart by its inode, size and dates: it may have any size.
    """
    try:
        found = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(found.st_mode):
            return _NOT_REGULAR
        if found.st_size > LARGEST_HASHED:
            # only the kernel sets the time of the last change
            return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return _MISSING


def is_own_code(path: str) -> bool:
    """Return whether a file belongs to Python, its packages or this package, whose changes the cache's key follows."""
    return path.startswith(_code_folders())


@functools.cache
def _code_folders() -> tuple[str, ...]:
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, *_package_folders(), "/proc", "/dev", "/usr/lib"}
    return tuple(f"{folder.rstrip('/')}/" for folder in sorted(folders))


def _package_folders() -> list[str]:
    return [str(Path(folder).resolve()) for folder in airflow_megatron.__path__]


def _own_folder(*, make: bool) -> Path | None:
    """Return the cache's folder if no other user can write to it."""
    folder = local_dir() / "spec_cache"
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return folder if private else None


@functools.cache
def _code_state() -> str:
    """Return a digest of the state of this package's files."""
    found = hashlib.sha256(sys.version.encode())
    for folder in _package_folders():
        for name in sorted(Path(folder).rglob("*")):
            if name.suffix not in (".pyc", ""):
                status = name.stat()
                found.update(f"{name} {status.st_mtime_ns} {status.st_size}\n".encode(errors="replace"))
    return found.hexdigest()


def _key() -> str:
    """Return a digest of the common dependencies of all entries."""
    found = hashlib.sha256(_code_state().encode())
    settings = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_MEGATRON_")}
    folders = [str(folder) for folder in (project_root(), clusters_dir(), templates_dir())]
    found.update(json.dumps([settings, folders], sort_keys=True).encode())
    for path in sorted(clusters_dir().rglob("*")):
        status = path.stat()
        found.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode(errors="replace"))
    return found.hexdigest()
