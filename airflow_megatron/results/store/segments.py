"""The files of the store: segments that appear whole, and are never changed.

``<root>/<sweep>/store/<table>.<s or m><number>.<writer>.<checksum>.parquet``, where ``root`` is any URL of fsspec.
The name holds the CRC-32 of the content, so a file that was cut, changed or is somebody else's is recognised before
anything reads it as Parquet. ``m`` marks a merged segment: its metadata names the segments whose rows it holds.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.results.store.tables import TABLES
from airflow_megatron.spec.documents.configuration import RESULTS_STORE, airflow_home, configured
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import polars as pl

log = logging.getLogger(__name__)

FOLDER: Final = "store"
"""Below a sweep's folder, beside its reports."""
_TEMPORARY: Final = ".tmp-"
_NAME: Final = re.compile(
    r"(?P<table>[a-z]{1,32})\.(?P<form>[sm])(?P<number>\d{8})\.(?P<writer>[0-9a-f]{12})\.(?P<checksum>[0-9a-f]{8})"
    r"\.parquet"
)
_REPLACES: Final = "replaces"


class StoreError(AirflowMegatronError, RuntimeError):
    """The store cannot be used; the message says why and what to do."""


class Segment(NamedTuple):
    """A file of the store.

    :param name: of the file
    :param table: whose rows it holds
    :param merged: it holds the rows of other segments
    :param number: counts the segments of its writer
    :param writer: who wrote it
    :param checksum: CRC-32 of the content
    """

    name: str
    table: str
    merged: bool
    number: int
    writer: str
    checksum: int

    @classmethod
    def of(cls, name: str) -> Segment | None:
        """Return the segment of a file name, None if it is not the name of a segment."""
        found = _NAME.fullmatch(name)
        if found is None or found["table"] not in TABLES:
            return None
        return cls(
            name,
            found["table"],
            found["form"] == "m",
            int(found["number"]),
            found["writer"],
            int(found["checksum"], 16),
        )


class Content(NamedTuple):
    """Rows of a segment.

    :param frame: the rows
    :param replaces: names of the segments whose rows they are, of a merged segment
    """

    frame: pl.DataFrame
    replaces: frozenset[str]


def new_writer() -> str:
    """Return an id that no other writer has."""
    return uuid.uuid4().hex[:12]


def folder_name(name: str) -> str:
    """Return the folder of a sweep: any text as one harmless part of a path."""
    escaped = quote(name, safe=" +~@=")
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped or "_"


def default_root() -> str:
    """Return where the store is: ``[megatron] results_store``, else the folder of the reports.

    A relative path lies in Airflow's home.
    """
    named = configured(RESULTS_STORE).rstrip("/")
    if not named:
        return str(local_dir() / "results")
    return named if "://" in named or "::" in named else str(airflow_home() / named)


@dataclass(frozen=True)
class SegmentStore:
    """The segments of all sweeps below one root.

    :param root: a folder, or any URL that fsspec opens
    """

    root: str

    @property
    def shown(self) -> str:
        """The root without credentials, for messages."""
        if "://" not in self.root:
            return self.root
        parts = urlsplit(self.root)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def sweeps(self) -> list[str]:
        """Return the folder names of the sweeps below the root, sorted."""
        fs, root = self._opened()
        return sorted(
            name for path in _listed(fs, root) if fs.isdir(f"{root}/{(name := _last(path))}/{FOLDER}")
        )

    def segments(self, sweep: str, tables: Collection[str] = ()) -> list[Segment]:
        """Return the segments of a sweep, the oldest of each writer first.

        :param tables: names of the tables to look for; empty for all
        :raises StoreError: when the store cannot be listed
        """
        fs, folder = self._folder(sweep)
        found = (Segment.of(_last(path)) for path in _listed(fs, folder))
        return sorted(one for one in found if one is not None and (not tables or one.table in tables))

    def size(self, sweep: str) -> int:
        """Return the bytes of all segments of a sweep.

        :raises StoreError: when the store cannot be listed
        """
        fs, folder = self._folder(sweep)
        try:
            fs.invalidate_cache(folder)
            return sum(int(entry.get("size") or 0) for entry in fs.ls(folder, detail=True))
        except FileNotFoundError:
            return 0
        except Exception as error:
            raise StoreError(f"the folder of results cannot be listed: {error!r}") from error

    def write(
        self,
        sweep: str,
        frame: pl.DataFrame,
        table: str,
        writer: str,
        number: int,
        replaces: Sequence[str] = (),
    ) -> Segment:
        """Write rows as a segment; it appears whole or not at all.

        :param replaces: names of the segments whose rows they are
        :raises StoreError: when it cannot be written
        """
        buffer = io.BytesIO()
        frame.write_parquet(
            buffer,
            compression="zstd",
            compression_level=1,
            statistics=False,
            metadata={_REPLACES: json.dumps(list(replaces))} if replaces else None,
        )
        content = buffer.getvalue()
        form = "m" if replaces else "s"
        name = f"{table}.{form}{number % 10**8:08d}.{writer}.{zlib.crc32(content):08x}.parquet"
        fs, folder = self._folder(sweep)
        try:
            if _is_local(fs):
                _put_in_place(Path(folder), name, content)
            else:
                fs.pipe_file(f"{folder}/{name}", content)
        except Exception as error:  # object stores raise errors of their own
            raise StoreError(f"{self.shown} cannot be written: {error!r}") from error
        segment = Segment.of(name)
        assert segment is not None
        return segment

    def read(self, sweep: str, segment: Segment, *, columns: Sequence[str] | None = None) -> Content | None:
        """Return the rows of a segment; None, with a warning, when it is damaged or not of the store.

        :param columns: which to read; None for all
        :raises FileNotFoundError: when it was removed: a merged segment has taken its place
        :raises StoreError: when the store does not answer
        """
        fs, folder = self._folder(sweep)
        try:
            content: bytes = fs.cat_file(f"{folder}/{segment.name}")
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StoreError(f"{self.shown} cannot be read: {error!r}") from error
        if zlib.crc32(content) != segment.checksum:
            log.warning("%s/%s is passed over: it is damaged, or not whole", folder, segment.name)
            return None
        return _parsed(content, segment, folder, columns)

    def remove(self, sweep: str, names: Collection[str]) -> None:
        """Remove segments that a merged one replaces; one that is gone already does no harm."""
        fs, folder = self._folder(sweep)
        for name in names:
            if Segment.of(name) is not None:
                try:
                    fs.rm_file(f"{folder}/{name}")
                except FileNotFoundError:
                    continue
                except Exception as error:
                    raise StoreError(f"{self.shown} cannot be tidied: {error!r}") from error

    def remove_sweep(self, sweep: str) -> None:
        """Remove all files of a sweep, and the folder that holds them.

        :raises StoreError: when a file cannot be removed
        """
        fs, folder = self._folder(sweep)
        try:
            fs.rm(folder, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreError(f"{self.shown} cannot be tidied: {error!r}") from error

    def _opened(self) -> tuple[Any, str]:
        import fsspec

        try:
            fs, path = fsspec.core.url_to_fs(self.root)
        except Exception as error:  # an unknown protocol, a package that is not installed
            raise StoreError(f"[megatron] {RESULTS_STORE} cannot be opened: {error}") from error
        return fs, str(path).rstrip("/")

    def _folder(self, sweep: str) -> tuple[Any, str]:
        fs, root = self._opened()
        return fs, f"{root}/{folder_name(sweep)}/{FOLDER}"


def _parsed(content: bytes, segment: Segment, folder: str, columns: Sequence[str] | None) -> Content | None:
    import polars as pl

    from airflow_megatron.results.store.frames import in_schema

    try:
        wanted = (
            None
            if columns is None
            else [name for name in pl.read_parquet_schema(io.BytesIO(content)) if name in columns]
        )
        frame = in_schema(
            pl.read_parquet(io.BytesIO(content), columns=wanted), TABLES[segment.table], columns
        )
        replaces = pl.read_parquet_metadata(io.BytesIO(content)).get(_REPLACES) if segment.merged else None
        names = json.loads(replaces) if replaces else ()
    except (Exception, pl.exceptions.PanicException) as error:
        log.warning("%s/%s is passed over: %s", folder, segment.name, str(error)[:200])
        return None
    return Content(frame, frozenset(map(str, names)))


def _listed(fs: Any, folder: str) -> list[str]:
    try:
        fs.invalidate_cache(folder)
        return [str(path) for path in fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return []
    except Exception as error:
        raise StoreError(f"the folder of results cannot be listed: {error!r}") from error


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _is_local(fs: Any) -> bool:
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _put_in_place(folder: Path, name: str, content: bytes) -> None:
    """Write a file under another name, and rename it once all of it is on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
