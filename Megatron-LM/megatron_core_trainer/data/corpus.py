"""Documents to train on: the sources of Python's standard library, or the user's files."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SPLITS = ("train", "valid", "test")
# Directories that not every distribution of Python ships, third-party code, and character tables.
_LEFT_OUT = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


class CorpusError(Exception):
    """Input that cannot be read as text; the message has the file and line."""


@dataclass(frozen=True)
class Source:
    """A file of documents.

    :param path: path of the file.
    :param name: name that does not depend on the machine; it determines the file's split.
    """

    path: Path
    name: str


def standard_library() -> list[Source]:
    """Return the Python files of the standard library, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts))
    return sorted(
        (Source(path, path.relative_to(root).as_posix()) for path in found), key=lambda source: source.name
    )


def own_files(paths: Iterable[str]) -> list[Source]:
    """Return the user's files.

    :param paths: text, ``.jsonl`` or ``.parquet`` files, or directories: a data set that ``datasets.save_to_disk``
        wrote, or a directory that contains such files (the downloaded snapshot of a data set).
    :raises CorpusError: if one does not exist or contains no such files.
    """
    sources: list[Source] = []
    for text in paths:
        path = Path(text)
        if path.is_file():
            sources.append(Source(path, text))
        elif path.is_dir():
            sources += _directory_sources(path)
        else:
            raise CorpusError(f"{path}: no such file")
    return sources


def _directory_sources(path: Path) -> list[Source]:
    saved = sorted(
        found.parent for found in path.rglob("state.json") if (found.parent / "dataset_info.json").is_file()
    )
    if saved:
        return [Source(directory, directory.as_posix()) for directory in saved]
    found = sorted(
        file for file in path.rglob("*") if file.suffix in (".jsonl", ".parquet") and file.is_file()
    )
    if not found:
        raise CorpusError(f"{path} is not a saved data set and holds no .parquet or .jsonl file")
    return [Source(file, file.as_posix()) for file in found]


@dataclass(frozen=True)
class Piece:
    """Documents that one worker reads.

    :param source: their file or saved data set.
    :param start: first byte of ``.jsonl``, row group of ``.parquet``, or row of a saved data set.
    :param stop: the end, exclusive, in the same unit; None: to the end of the source.
    :param first: number of the first line or row, for the documents' names.
    """

    source: Source
    start: int = 0
    stop: int | None = None
    first: int = 0


def pieces(source: Source, size: int) -> Iterator[Piece]:
    """Divide a source into pieces with about the same amount of text.

    :param source: the file or saved data set.
    :param size: bytes of a piece of ``.jsonl``; for other formats the number of rows is ``size`` / 1000.
    """
    rows = max(1, size // 1000)
    if source.path.is_dir():
        total = len(_saved_dataset(source))
        for start in range(0, total, rows):
            yield Piece(source, start, min(total, start + rows), start)
    elif source.path.suffix == ".parquet":
        metadata = _parquet(source).metadata
        first = 0
        for group in range(metadata.num_row_groups):
            yield Piece(source, group, group + 1, first)
            first += metadata.row_group(group).num_rows
    elif source.path.suffix == ".jsonl":
        yield from _line_pieces(source, size)
    else:
        yield Piece(source)


def _line_pieces(source: Source, size: int) -> Iterator[Piece]:
    start = position = line = first = 0
    with source.path.open("rb") as file:
        for text in file:
            position += len(text)
            line += 1
            if position - start >= size:
                yield Piece(source, start, position, first)
                start, first = position, line
    if position > start:
        yield Piece(source, start, position, first)


def read_documents(piece: Piece, key: str) -> Iterator[tuple[str, str]]:
    """Read the documents of a piece as pairs of name and text; skip empty ones.

    A text file is one document with the file's name. In the other formats each line or row is a document, numbered
    from 1.

    :param piece: the piece.
    :param key: key of the text in a line of ``.jsonl``, or its column.
    :raises CorpusError: if the file does not have the format of its suffix, or a document has no such text.
    """
    source = piece.source
    if source.path.is_dir() or source.path.suffix == ".parquet":
        yield from _rows(piece, key)
    elif source.path.suffix == ".jsonl":
        yield from _lines(piece, key)
    else:
        try:
            text = source.path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{source.path}: not UTF-8 text ({error.reason} at byte {error.start})"
            ) from error
        if text.strip():
            yield source.name, text


def _lines(piece: Piece, key: str) -> Iterator[tuple[str, str]]:
    path = piece.source.path
    with path.open("rb") as file:
        file.seek(piece.start)
        number, position = piece.first, piece.start
        while (piece.stop is None or position < piece.stop) and (line := file.readline()):
            position += len(line)
            number += 1
            if not line.strip():
                continue
            try:
                text = json.loads(line)[key]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CorpusError(
                    f"{path}, line {number}: expected a JSON object with the text under {key!r}"
                ) from error
            if not isinstance(text, str):
                raise CorpusError(f"{path}, line {number}: {key!r} must be a string")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                half = ascii(text[error.start])
                raise CorpusError(
                    f"{path}, line {number}: {key!r} has half a surrogate pair, {half}, which UTF-8 cannot represent;"
                    " remove it"
                ) from error
            if text.strip():
                yield f"{piece.source.name}:{number}", text


def _rows(piece: Piece, key: str) -> Iterator[tuple[str, str]]:
    path = piece.source.path
    if path.is_dir():
        dataset = _saved_dataset(piece.source)
        columns = dataset.column_names
    else:
        columns = _parquet(piece.source).schema_arrow.names
    if key not in columns:
        raise CorpusError(f"{path} has no column {key!r}; it has {', '.join(columns)}")
    if path.is_dir():
        texts = dataset.select(range(piece.start, piece.stop or len(dataset)))[key]
    else:
        texts = _parquet(piece.source).read_row_group(piece.start, columns=[key]).column(0).to_pylist()
    for number, text in enumerate(texts, start=piece.first + 1):
        if text is None:
            continue
        if not isinstance(text, str):
            raise CorpusError(f"{path}, row {number}: {key!r} must be text")
        if text.strip():
            yield f"{piece.source.name}:{number}", text


def _parquet(source: Source) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(source.path)
    except pa.ArrowException as error:
        raise CorpusError(f"{source.path} is not a parquet file: {error}") from error


def _saved_dataset(source: Source) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(str(source.path))
    except (OSError, ValueError, KeyError) as error:
        raise CorpusError(f"{source.path} is not a saved data set: {error}") from error


def split_of(name: str, valid_percent: int, test_percent: int) -> str:
    """Return the split of a document, which depends only on its name.

    :param name: the document's name.
    :param valid_percent: share of the validation split.
    :param test_percent: share of the test split.
    """
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100
    if share < test_percent:
        return "test"
    return "valid" if share < test_percent + valid_percent else "train"


def order_key(name: str, seed: int) -> bytes:
    """Return the sort key of a document: it separates related files and is the same on every machine.

    :param name: the document's name.
    :param seed: another seed gives another order.
    """
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def fingerprint(sources: Iterable[Source], arguments: dict[str, object]) -> str:
    """Return an identifier of the prepared data, computed from the arguments and the names and sizes of the inputs.

    :param sources: input files.
    :param arguments: everything that influences the output.
    """
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode())
    for source in sources:
        files = sorted(source.path.iterdir()) if source.path.is_dir() else [source.path]
        size = sum(file.stat().st_size for file in files)
        digest.update(f"{source.name}\0{size}\n".encode())
    return digest.hexdigest()
