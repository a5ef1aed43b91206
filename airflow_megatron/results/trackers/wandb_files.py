"""Reading W&B's offline files: records in the log format of LevelDB, each a protocol buffer of the package ``wandb``.

A file begins with ``:W&B``, a magic number and a version, 7 bytes together. Blocks have 32,768 bytes; a fragment has
4 bytes of checksum (CRC-32 of type and content), 2 of length and 1 of type: whole, first, middle, last.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC: Final = b":W&B"
_HEAD: Final = 7
_BLOCK: Final = 32768
_FRAGMENT: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbFileError(AirflowMegatronError, ValueError):
    """The file is not in W&B's format."""


def history_of(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the history of a run: metric → value for each step, ``_step`` among them.

    The file of a killed process ends with its last complete record.

    :raises WandbFileError: if it is not in W&B's format
    """
    from wandb.proto import wandb_internal_pb2

    for data in records_of(content):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {
                ".".join(item.nested_key) if item.nested_key else item.key: json.loads(item.value_json)
                for item in record.history.item
            }


def records_of(content: bytes) -> Iterator[bytes]:
    """Yield the complete records of a file, up to the first one that is damaged or cut off.

    :raises WandbFileError: if it is not in W&B's format
    """
    if not content:
        return
    if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
        raise WandbFileError("it does not begin as W&B's files do")
    at, parts = _HEAD, b""
    while at + _FRAGMENT.size <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _FRAGMENT.size:
            at += left
            continue
        checksum, length, kind = _FRAGMENT.unpack_from(content, at)
        begin = at + _FRAGMENT.size
        data = content[begin : begin + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(data) < length:
            return
        if zlib.crc32(bytes([kind]) + data) != checksum:
            return
        parts = data if kind in (_FULL, _FIRST) else parts + data
        if kind in (_FULL, _LAST):
            yield parts
        at = begin + length
