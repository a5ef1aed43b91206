"""Refuse data sets with damaged files, or without a document for a part: megatron-core would count epochs forever."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_core_trainer.arguments.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_PARTS = ("training", "validation", "test")
_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
# of an .idx file: magic, version, type of the tokens, number of sequences, number of document indices
_HEADER = struct.Struct("<9sQBQQ")
_ITEM_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}


def check_split(args: argparse.Namespace) -> None:
    """Check that ``--split`` has shares of up to three parts, and one of training for a run that trains.

    :param args: arguments with ``split``.
    :raises ArgumentError: with an example.
    """
    if _shares(args.split)[0] is None and not args.skip_train:
        raise ArgumentError(
            f"--split {args.split} leaves nothing for training; give the first part a share, such as 969,30,1"
        )


def check_parts(args: argparse.Namespace) -> None:
    """Check that the files of each data set are complete, and that each used part of it has a document.

    :param args: complete arguments; the files exist.
    :raises ArgumentError: naming the file; or the data set, its documents, and the part that gets none.
    """
    for prefix in _prefixes(args.data_path):
        documents = _documents(prefix)
        for part, share in zip(_PARTS, _shares(args.split), strict=True):
            if share is not None and round(share[0] * documents) == round(share[1] * documents):
                raise ArgumentError(
                    f"--split {args.split} leaves no document of {prefix} ({documents} documents) for {part}; give"
                    " this part a larger share, or 0"
                )
    for name in ("train_data_path", "valid_data_path", "test_data_path"):
        for prefix in _prefixes(getattr(args, name)):
            if not _documents(prefix):
                raise ArgumentError(f"--{name.replace('_', '-')}: {prefix} contains no document")


def _prefixes(words: Sequence[str] | None) -> Iterator[str]:
    # the other words are weights
    return (word for word in words or () if Path(f"{word}.idx").is_file())


def _documents(prefix: str) -> int:
    """Return the number of documents of a data set whose two files are complete; their layout: ``indexed_data.py``."""
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    with index.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ArgumentError(f"{index} is not an index of a data set: it has {len(header)} bytes")
        magic, version, code, sequences, indices = _HEADER.unpack(header)
        if magic != _MAGIC or version != _VERSION or code not in _ITEM_SIZES:
            raise ArgumentError(f"{index} is not an index of a data set that preprocess_data.py has written")
        size, expected = index.stat().st_size, _HEADER.size + 12 * sequences + 8 * indices
        if size < expected:
            raise ArgumentError(
                f"{index} is cut off: it has {size} of {expected} bytes; prepare the data again"
            )
        if not sequences:
            return 0
        file.seek(_HEADER.size + 4 * (sequences - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(_HEADER.size + 4 * sequences + 8 * (sequences - 1))
        (offset,) = struct.unpack("<q", file.read(8))
    size, expected = data.stat().st_size, offset + length * _ITEM_SIZES[code]
    if size < expected:
        raise ArgumentError(f"{data} is cut off: it has {size} of {expected} bytes; prepare the data again")
    return int(sequences)


def _shares(split: str) -> list[tuple[float, float] | None]:
    """Return the first and last share of each part, None for parts without one, computed as in megatron-core."""
    try:
        sizes = [float(text) for text in re.findall(r"[.0-9]+", split)]
    except ValueError:
        sizes = []
    if not 1 <= len(sizes) <= len(_PARTS) or not 0 < sum(sizes) < math.inf:
        raise ArgumentError(
            f"--split {split or repr(split)} must give shares of training, validation and test, such as 969,30,1"
        )
    sizes += [0.0] * (len(_PARTS) - len(sizes))
    shares: list[tuple[float, float] | None] = []
    start = 0.0
    for size in sizes:
        end = start + size / sum(sizes)
        shares.append((start, end) if size else None)
        start = end
    return shares
