"""Files of the store: segments, which are written atomically and never change.

Path: ``<root>/<sweep>/store/<table>.<s or m><number>.<writer>.<checksum>.parquet``, where ``root`` is any fsspec URL.
The name contains the CRC-32 of the content: truncated, modified and foreign files are detected before they are read as
Parquet. ``m`` marks a merged segment, whose metadata names the segments that it replaces.
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
from urllib.parse import quote

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.results.store.tables import TABLES
from airflow_megatron.spec.documents.configuration import RESULTS_STORE, airflow_home, configured
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import polars as pl

log = logging.getLogger(__name__)

FOLDER: Final = "store"
"""Subfolder of a sweep's folder, which also contains the reports."""
_TEMPORARY: Final = ".tmp-"
_NAME: Final = re.compile(
    r"(?P<table>[a-z]{1,32})\.(?P<form>[sm])(?P<number>\d{8})\.(?P<writer>[0-9a-f]{12})\.(?P<checksum>[0-9a-f]{8})"
    r"\.parquet"
)
_REPLACES: Final = "replaces"
_BUCKETS: Final = frozenset({"s3", "gs", "abfs"})
"""Protocols of object stores, whose paths begin with the name of a bucket."""


class StoreError(AirflowMegatronError, RuntimeError):
    """The store cannot be used; the message states the reason and a hint."""


class Segment(NamedTuple):
    """A file of the store.

    :param name: name of the file
    :param table: name of the table whose rows it contains
    :param merged: whether it contains the rows of other segments
    :param number: running number among the segments of its writer
    :param writer: id of its writer
    :param checksum: CRC-32 of the content, as in the name
    """

    name: str
    table: str
    merged: bool
    number: int
    writer: str
    checksum: int

    @classmethod
    def of(cls, name: str) -> Segment | None:
        """Parse a file name; return None if it is not the name of a segment."""
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
    """Content of a segment.

    :param frame: the rows
    :param replaces: for a merged segment, the names of the segments that it replaces
    """

    frame: pl.DataFrame
    replaces: frozenset[str]


def new_writer() -> str:
    """Return a unique id of a writer."""
    return uuid.uuid4().hex[:12]


def folder_name(name: str) -> str:
    """Return the folder name of a sweep: any text encoded as one safe part of a path."""
    escaped = quote(name, safe=" +~@=")
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped or "_"


def default_root() -> str:
    """Return the location of the store: ``[megatron] results_store``, or else the folder of the reports.

    A relative path refers to Airflow's home.
    """
    named = configured(RESULTS_STORE).rstrip("/")
    if not named:
        return str(local_dir() / "results")
    return named if "://" in named or "::" in named else str(airflow_home() / named)


@dataclass(frozen=True)
class SegmentStore:
    """All segments below one root.

    :param root: a folder or any fsspec URL
    """

    root: str

    @property
    def shown(self) -> str:
        """The root without credentials, for messages and logs."""
        if "://" not in self.root:
            return self.root
        return re.sub(r"://[^/?]*@", "://", self.root).partition("?")[0]

    def _error(self, what: str, error: Exception) -> StoreError:
        """Return an error without the credentials of the root, which texts of libraries may repeat."""
        text = str(error) if isinstance(error, (ImportError, ValueError)) else repr(error)
        if "://" in self.root:
            for secret in re.findall(r"://([^/?]+)@|\?(.+)", self.root):
                text = text.replace("".join(secret), "***")
        return StoreError(f"{what}: {text}")

    def sweeps(self) -> list[str]:
        """Return the folder names of the sweeps below the root, sorted.

        :raises StoreError: when the store cannot be listed
        """
        fs, root = self._opened()
        names = map(_last, self._listed(fs, root))
        try:
            return sorted(name for name in names if fs.isdir(f"{root}/{name}/{FOLDER}"))
        except Exception as error:
            raise self._error(f"{self.shown} cannot be listed", error) from None

    def segments(self, sweep: str, tables: Collection[str] = ()) -> list[Segment]:
        """Return the segments of a sweep, the oldest of each writer first.

        :param tables: names of the tables to look for; empty for all
        :raises StoreError: when the store cannot be listed
        """
        fs, folder = self._folder(sweep)
        found = (Segment.of(_last(path)) for path in self._listed(fs, folder))
        return sorted(one for one in found if one is not None and (not tables or one.table in tables))

    def size(self, sweep: str) -> int:
        """Return the total size of all segments of a sweep, in bytes.

        :raises StoreError: when the store cannot be listed
        """
        fs, folder = self._folder(sweep)
        try:
            fs.invalidate_cache(folder)
            return sum(int(entry.get("size") or 0) for entry in fs.ls(folder, detail=True))
        except FileNotFoundError:
            return 0
        except Exception as error:
            raise self._error(f"{self.shown} cannot be listed", error) from None

    def write(
        self,
        sweep: str,
        frame: pl.DataFrame,
        table: str,
        writer: str,
        number: int,
        replaces: Sequence[str] = (),
    ) -> Segment:
        """Write rows atomically as a segment.

        :param replaces: for a merged segment, the names of the segments that it replaces
        :raises StoreError: if the segment cannot be written
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
        except Exception as error:  # object stores raise their own exception classes
            raise self._error(f"{self.shown} cannot be written", error) from None
        segment = Segment.of(name)
        assert segment is not None
        return segment

    def read(self, sweep: str, segment: Segment, *, columns: Sequence[str] | None = None) -> Content | None:
        """Return the rows of a segment; log a warning and return None if it is damaged or not a file of the store.

        :param columns: columns to read; None for all
        :raises FileNotFoundError: if the segment was removed because a merged segment replaced it
        :raises StoreError: if the store does not respond
        """
        fs, folder = self._folder(sweep)
        try:
            content: bytes = fs.cat_file(f"{folder}/{segment.name}")
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._error(f"{self.shown} cannot be read", error) from None
        if zlib.crc32(content) != segment.checksum:
            log.warning("skipped %s/%s: the file is damaged or incomplete", folder, segment.name)
            return None
        return _parsed(content, segment, folder, columns)

    def remove(self, sweep: str, names: Collection[str]) -> None:
        """Remove segments that a merged segment replaces; ignore those that no longer exist."""
        fs, folder = self._folder(sweep)
        for name in names:
            if Segment.of(name) is not None:
                try:
                    fs.rm_file(f"{folder}/{name}")
                except FileNotFoundError:
                    continue
                except Exception as error:
                    raise self._error(f"files in {self.shown} cannot be deleted", error) from None

    def remove_sweep(self, sweep: str) -> None:
        """Remove all files of a sweep and their folder.

        :raises StoreError: if a file cannot be removed
        """
        fs, folder = self._folder(sweep)
        try:
            fs.rm(folder, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._error(f"files in {self.shown} cannot be deleted", error) from None

    def _listed(self, fs: Any, folder: str) -> list[str]:
        try:
            fs.invalidate_cache(folder)
            return [str(path) for path in fs.ls(folder, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            self._require_bucket(fs, folder.partition("/")[0])
            return []
        except Exception as error:
            raise self._error(f"{self.shown} cannot be listed", error) from None

    def _require_bucket(self, fs: Any, bucket: str) -> None:
        """Refuse a bucket that does not exist; a folder in a bucket exists only while it has files."""
        if _BUCKETS.isdisjoint([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
            return
        try:
            fs.ls(bucket, detail=False)
        except FileNotFoundError:
            raise StoreError(f"{self.shown} cannot be listed: there is no bucket {bucket}") from None
        except Exception as error:  # an account may be permitted to read only some folders of a bucket
            log.debug("%s", self._error(f"the bucket of {self.shown} cannot be listed", error))

    def _opened(self) -> tuple[Any, str]:
        import fsspec

        try:
            fs, path = fsspec.core.url_to_fs(self.root)
        except Exception as error:  # an unknown protocol, or a package that is not installed
            raise self._error(f"[megatron] {RESULTS_STORE} cannot be opened", error) from None
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
        log.warning("skipped %s/%s: %s", folder, segment.name, str(error)[:200])
        return None
    return Content(frame, frozenset(map(str, names)))


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _is_local(fs: Any) -> bool:
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _put_in_place(folder: Path, name: str, content: bytes) -> None:
    """Write a file under a temporary name, and rename it after its content was written to the disk."""
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
