"""Documents to train on: the Python standard library's sources, or a person's own files."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SPLITS = ("train", "valid", "test")
# Directories that not every distribution of Python ships, other people's code, and tables of characters.
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
    """Input that cannot be read as text; the message names the file and line."""


@dataclass(frozen=True)
class Source:
    """A file of documents.

    :param path: where it lies.
    :param name: name that does not depend on the machine; it decides the file's split.
    """

    path: Path
    name: str


def standard_library() -> list[Source]:
    """List the standard library's Python files, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts))
    return sorted(
        (Source(path, path.relative_to(root).as_posix()) for path in found), key=lambda source: source.name
    )


def own_files(paths: Iterable[str]) -> list[Source]:
    """List a person's own files.

    :param paths: text files, or ``.jsonl`` files with one document a line.
    :raises CorpusError: if one does not exist.
    """
    sources = [Source(Path(path), path) for path in paths]
    for source in sources:
        if not source.path.is_file():
            raise CorpusError(f"{source.path}: no such file")
    return sources


def read_documents(source: Source, json_key: str) -> Iterator[tuple[str, str]]:
    """Read the documents of a file as pairs of name and text; an empty one is left out.

    A text file is one document, named as the file; ``.jsonl`` holds one a line.

    :param source: the file.
    :param json_key: key of the text in a line of ``.jsonl``.
    :raises CorpusError: if the file is not UTF-8 or a line is not an object with that key.
    """
    if source.path.suffix != ".jsonl":
        try:
            text = source.path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{source.path}: not UTF-8 text ({error.reason} at byte {error.start})"
            ) from error
        if text.strip():
            yield source.name, text
        return
    with source.path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[json_key]
            except (ValueError, KeyError, TypeError) as error:
                raise CorpusError(
                    f"{source.path}, line {number}: expected a JSON object with the text under {json_key!r}"
                ) from error
            if not isinstance(text, str):
                raise CorpusError(f"{source.path}, line {number}: {json_key!r} must be a string")
            if text.strip():
                yield f"{source.name}:{number}", text


def split_of(name: str, valid_percent: int, test_percent: int) -> str:
    """Return the split of a document, from its name alone.

    :param name: the document's name.
    :param valid_percent: share of the validation split.
    :param test_percent: share of the test split.
    """
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100
    if share < test_percent:
        return "test"
    return "valid" if share < test_percent + valid_percent else "train"


def shuffled(documents: Sequence[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """Order documents by a hash of their names: no run of related files, the same on every machine.

    :param documents: pairs of name and text.
    :param seed: another seed gives another order.
    """
    return sorted(documents, key=lambda document: hashlib.sha256(f"{seed}:{document[0]}".encode()).digest())


def fingerprint(sources: Iterable[Source], arguments: dict[str, object]) -> str:
    """Identify what would be prepared, from arguments and the inputs' names and sizes.

    :param sources: input files.
    :param arguments: everything that influences the output.
    """
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode())
    for source in sources:
        status = source.path.stat()
        digest.update(f"{source.name}\0{status.st_size}\n".encode())
    return digest.hexdigest()
