"""Write Megatron's indexed data without importing torch and megatron-core, which would take most of a preparation.

The layout of the index is that of ``megatron/core/datasets/indexed_dataset.py`` (``_IndexWriter``), version 1: 9 bytes
of header, version (uint64), code of the tokens' type (uint8), number of sequences and number of document indices
(uint64), tokens of each sequence (int32), byte offset of each sequence in the ``.bin`` file (int64), index of each
document's first sequence and, last, the number of sequences (int64). All numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEADER: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_CODES: Final = {"int32": 4, "uint16": 8}


def write_index(path: Path, lengths: Sequence[int], dtype: np.dtype) -> None:
    """Write the index of documents of one sequence each.

    :param path: the ``.idx`` file.
    :param lengths: number of tokens of each document, in the order of the ``.bin`` file.
    :param dtype: type of the tokens: int32 or uint16.
    """
    counts = np.asarray(lengths, dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)[:-1])) * dtype.itemsize if len(counts) else counts
    with path.open("wb") as file:
        file.write(_HEADER)
        file.write(struct.pack("<QBQQ", _VERSION, _CODES[dtype.name], len(counts), len(counts) + 1))
        file.write(counts.astype("<i4").tobytes())
        file.write(offsets.astype("<i8").tobytes())
        file.write(np.arange(len(counts) + 1, dtype="<i8").tobytes())
