"""Refuse data sets without a document for training, validation or test: megatron-core would count epochs forever."""

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
# an .idx file: b"MMIDIDX\x00\x00", version and type of the tokens, then the number of documents
_COUNT_AT = 18


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
    """Check that each used part of each data set has a document.

    :param args: complete arguments; the data files exist.
    :raises ArgumentError: naming the data set, its documents, and the part that gets none.
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
    with Path(f"{prefix}.idx").open("rb") as file:
        header = file.read(_COUNT_AT + 8)
    if len(header) < _COUNT_AT + 8:
        raise ArgumentError(f"{prefix}.idx is not an index of a data set: it has {len(header)} bytes")
    return int(struct.unpack_from("<Q", header, _COUNT_AT)[0])


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
