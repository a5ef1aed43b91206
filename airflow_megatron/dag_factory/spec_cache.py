"""Cache of the specs of a folder, valid until a file that an entry depends on changes.

Every task is a process that builds its sweep's DAG again, and the DAG processor reads the folder every 30 s. With the
cache, only the digest of an unchanged file is computed. An entry holds the digests of all files that were read for it.
The cache is an optimisation: a missing or damaged cache, or one of another user, is not used.

All tasks load the index, which has a line for each spec. What a spec makes large (its stages, its errors) is in a file
of its own, which the index names by its digest.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
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
    from collections.abc import Collection, Iterable, Mapping

REFUSED_FOR_S: Final = 300.0
"""Seconds for which an error is cached; it may depend on more than the read files."""
UNUSED_FOR_S: Final = 30 * 86400.0
"""Seconds after which the entries of a folder with unchanged specs are removed."""
LARGEST_HASHED: Final = 1 << 16
"""Bytes of a file whose content is read for its digest; every parse takes the digests of all files."""
_INDEX: Final = "index.json"
_BODY: Final = re.compile(r"[0-9a-f]{64}")
_NOT_REGULAR: Final = "not a regular file"
_MISSING: Final = "missing"


@dataclass(frozen=True)
class SpecEntry:
    """The cached result of reading one spec.

    :param outline: outline of its sweep, None if it has none
    :param problems: its errors
    :param reads: path → digest of every file that was read for it
    :param processor_s: seconds of processor time that it took
    :param complete: whether it was read completely within the time limit
    :param found_at: Unix time of the result
    :param last_good: its last outline without errors, None if there was none
    :param since: Unix time since which its sweep has had at least as many stages
    :param owner: user id of the file's owner, -1 if it is unknown
    """

    outline: SweepOutline | None
    problems: tuple[Problem, ...] = ()
    reads: Mapping[str, str] = field(default_factory=dict)
    processor_s: float = 0.0
    complete: bool = True
    found_at: float = 0.0
    last_good: SweepOutline | None = None
    since: float = 0.0
    owner: int = -1

    @property
    def name(self) -> str | None:
        """The name of its sweep, or of the last one without errors."""
        known = self.outline or self.last_good
        return known.name if known else None

    def to_json(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return plain JSON data: what the index holds, and what has a file of its own."""
        head = {
            "name": self.name,
            "reads": dict(self.reads),
            "processor_s": self.processor_s,
            "complete": self.complete,
            "found_at": self.found_at,
            "since": self.since,
            "owner": self.owner,
        }
        body = {
            "outline": self.outline.to_json() if self.outline else None,
            "problems": [asdict(problem) for problem in self.problems],
            "last_good": self.last_good.to_json() if self.last_good and not self.outline else None,
        }
        return head, body

    @classmethod
    def from_json(cls, head: Mapping[str, Any], body: Mapping[str, Any]) -> SpecEntry:
        """Parse the output of :meth:`to_json`.

        :raises ValueError: for other data
        """
        try:
            outline = SweepOutline.from_json(body["outline"]) if body["outline"] else None
            last = SweepOutline.from_json(body["last_good"]) if body["last_good"] else outline
            problems = tuple(Problem(**one) for one in body["problems"])
            return cls(
                outline,
                problems,
                head["reads"],
                head["processor_s"],
                head["complete"],
                head["found_at"],
                last,
                head["since"],
                head["owner"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no entry of the cache: {error!r}") from error


class SpecCache:
    """The entries of one folder.

    :param folder: the specs' folder
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._heads = self._index()
        self._bodies: dict[str, str] = {}
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
        """Return the last entry of a file, even if the file has changed."""
        try:
            head = self._heads[str(file)]
            return SpecEntry.from_json(head, json.loads(self._body(head["body"])))
        except (KeyError, TypeError, ValueError, OSError, RecursionError):
            return None

    def names(self) -> dict[str, list[Path]]:
        """Return the last known files of each sweep, by its name."""
        found: dict[str, list[Path]] = {}
        for file, head in self._heads.items():
            if isinstance(head, dict) and isinstance(name := head.get("name"), str):
                found.setdefault(name, []).append(Path(file))
        return found

    def put(self, file: Path, entry: SpecEntry) -> SpecEntry:
        """Keep an entry; return it with the last outline that the file had."""
        before = self.last(file)
        last = entry.outline or (before.last_good if before else None)
        owner, since = _owner_and_age(file)
        if before and before.last_good and last and last.weight <= before.last_good.weight:
            since = min(since, before.since)
        entry = replace(entry, last_good=last, found_at=time.time(), since=since, owner=owner)
        head, body = entry.to_json()
        text = json.dumps(body)
        name = hashlib.sha256(text.encode()).hexdigest()
        self._bodies[name] = text
        self._heads[str(file)] = {**head, "body": name}
        self._changed = True
        return entry

    def save(self, files: Iterable[Path]) -> None:
        """Write changed entries; entries of other files are dropped."""
        kept = {str(file) for file in files}
        if not self._changed and kept >= self._heads.keys():
            return
        heads = {file: head for file, head in self._heads.items() if file in kept}
        try:
            place = self._place(make=True)
            if place is None:
                return
            for name, text in self._bodies.items():
                _write(place / f"{name}.json", text)
            _write(place / _INDEX, json.dumps({"key": _key(), "entries": heads}))
            _drop_unused(place, {f"{head['body']}.json" for head in heads.values() if _is_head(head)})
        except OSError:
            return
        self._bodies.clear()
        self._changed = False

    def _index(self) -> dict[str, Any]:
        try:
            place = self._place(make=False)
            data = json.loads((place / _INDEX).read_text(encoding="utf-8")) if place else None
        except (OSError, ValueError, RecursionError):
            return {}
        if (
            not isinstance(data, dict)
            or data.get("key") != _key()
            or not isinstance(data.get("entries"), dict)
        ):
            return {}
        return data["entries"]

    def _body(self, name: str) -> str:
        """Return the text of a file that the index names.

        :raises OSError: if there is none
        :raises ValueError: if it is not the one that the index names
        """
        if name in self._bodies:
            return self._bodies[name]
        place = self._place(make=False)
        if place is None or not _BODY.fullmatch(name):
            raise ValueError(name)
        text = (place / f"{name}.json").read_text(encoding="utf-8")
        if hashlib.sha256(text.encode()).hexdigest() != name:
            raise ValueError(name)
        return text

    def _place(self, *, make: bool) -> Path | None:
        """Return the folder with the files of this folder of specs if no other user can write to it."""
        name = hashlib.sha256(os.fsencode(self.folder.absolute())).hexdigest()[:24]
        for folder in (root := local_dir() / "spec_cache", root / name):
            if not _is_own(folder, make=make):
                return None
        return root / name


def _is_head(head: object) -> bool:
    return isinstance(head, dict) and isinstance(head.get("body"), str)


def _write(path: Path, text: str) -> None:
    """Replace a file at once: others read it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
        draft.write(text)
    Path(draft.name).replace(path)


def _drop_unused(place: Path, used: Collection[str]) -> None:
    """Remove what no index names: of this folder after a while, in which others may still read it, and old folders."""
    now = time.time()
    for path in place.iterdir():
        if path.name not in used and path.name != _INDEX and now - path.stat().st_mtime > REFUSED_FOR_S:
            path.unlink(missing_ok=True)
    for other in place.parent.iterdir():
        if now - other.lstat().st_mtime > UNUSED_FOR_S:
            shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(missing_ok=True)


def digest_of(path: str) -> str:
    """Return a digest of a file's content, or a word for a path that is not a regular file.

    A file of more than :data:`LARGEST_HASHED` bytes is identified by its inode, size and dates, because it may have
    any size. The file may change at any moment: a pipe in its place, and a lease that its owner holds, would block
    the process that opens it.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            return _NOT_REGULAR
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(LARGEST_HASHED + 1) if stat.S_ISREG(found.st_mode) else b""
    except (OSError, ValueError):
        return _MISSING
    return hashlib.sha256(content).hexdigest() if len(content) <= LARGEST_HASHED else _identity(found)


def _identity(found: os.stat_result) -> str:
    # only the kernel can set the time of the last change
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_own_code(path: str) -> bool:
    """Return whether a file belongs to Python, its packages or this package, whose changes the cache's key follows."""
    return path.startswith(_code_folders())


@functools.cache
def _code_folders() -> tuple[str, ...]:
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, *_package_folders(), "/proc", "/dev", "/usr/lib"}
    return tuple(f"{folder.rstrip('/')}/" for folder in sorted(folders))


def _package_folders() -> list[str]:
    return [str(Path(folder).resolve()) for folder in airflow_megatron.__path__]


def _is_own(folder: Path, *, make: bool) -> bool:
    """Return whether a folder is there, and no other user can write to it.

    :raises OSError: if it is not there
    """
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


@functools.cache
def code_state() -> str:
    """Return a digest of the state of this package's files, when this process or its parent first called it."""
    found = hashlib.sha256(sys.version.encode())
    for folder in _package_folders():
        for name in sorted(Path(folder).rglob("*")):
            if name.suffix not in (".pyc", ""):
                status = name.stat()
                found.update(f"{name} {status.st_mtime_ns} {status.st_size}\n".encode(errors="replace"))
    return found.hexdigest()


def _owner_and_age(file: Path) -> tuple[int, float]:
    """Return a file's owner, and when it changed last by a date that its owner cannot set."""
    try:
        status = file.stat()
    except OSError:
        return -1, time.time()
    return status.st_uid, min(status.st_ctime, time.time())


def _key() -> str:
    """Return a digest of the common dependencies of all entries."""
    found = hashlib.sha256(code_state().encode())
    settings = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_MEGATRON_")}
    folders = [str(folder) for folder in (project_root(), clusters_dir(), templates_dir())]
    found.update(json.dumps([settings, folders], sort_keys=True).encode())
    for path in sorted(clusters_dir().rglob("*")):
        status = path.stat()
        found.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode(errors="replace"))
    return found.hexdigest()
