"""Read ``.metadata`` of a distributed checkpoint without PyTorch and without executing its content.

``torch.distributed.checkpoint`` pickles one ``Metadata`` object: the names of all parts, and for each part its file,
offset and length (``torch/distributed/checkpoint/metadata.py``, ``filesystem.py``). Every class in the pickle is
replaced by an inert container, so untrusted files can be read safely.
"""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_megatron.errors import AirflowMegatronError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TORCH_DIST_KEY = re.compile(r"common_state\b|.*/shard_\d")
_FSDP_DTENSOR_KEY = re.compile(r"rng_state\.\(\d+, \d+\)")


class DamagedMetadataError(AirflowMegatronError, ValueError):
    """The bytes begin like a pickle but are incomplete, or do not contain a checkpoint's metadata."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Location of one part of the state: file below the checkpoint's directory, and byte range."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """Names and locations of the parts of a checkpoint.

    :param keys: names of the state's parts (``decoder.layers.…``, ``rng_state/shard_0.0_1.1``, ``args`` …)
    :param parts: name → its location; for a sharded tensor, that of its last shard
    :param sizes: file → minimum size in bytes
    """

    keys: frozenset[str]
    parts: Mapping[str, StoredPart] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def format(self) -> str | None:
        """Megatron's ``--ckpt-format`` if the names show it, else None.

        ``torch_dist`` stores its non-tensor state as sharded objects (``…/shard_<offset>_<shape>``; everything
        common as ``common_state`` since 0.19); ``fsdp_dtensor`` keeps the random state by rank coordinates.
        """
        if any(_TORCH_DIST_KEY.match(key) for key in self.keys):
            return "torch_dist"
        if any(_FSDP_DTENSOR_KEY.match(key) for key in self.keys):
            return "fsdp_dtensor"
        return None


def read_dcp_metadata(data: bytes) -> DcpMetadata | None:
    """Read the content of ``.metadata``.

    :param data: the whole file.
    :returns: its content; None if it is not a pickle (another storage backend).
    :raises DamagedMetadataError: for a pickle that is cut off or has other content.
    """
    if not data.strip(b"\0"):
        raise DamagedMetadataError("it holds nothing but zero bytes")
    if data[:1] != pickle.PROTO:
        return None
    try:
        root = _InertUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle may cause any exception
        raise DamagedMetadataError(f"it cannot be read: {error}") from None
    state = getattr(root, "attributes", {})
    keys, storage = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(keys, dict) or not isinstance(storage, dict):
        raise DamagedMetadataError("it does not say what is stored")
    parts: dict[str, StoredPart] = {}
    sizes: dict[str, int] = {}
    for index, info in storage.items():
        place = getattr(info, "attributes", {})
        path, offset, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if not isinstance(path, str) or not isinstance(offset, int) or not isinstance(length, int):
            continue
        name = getattr(index, "attributes", {}).get("fqn", index)
        parts[str(name)] = StoredPart(path, offset, length)
        sizes[path] = max(sizes.get(path, 0), offset + length)
    return DcpMetadata(frozenset(str(key) for key in keys), parts, sizes)


class _Inert:
    """Placeholder for an object of any class: it stores the object's pickled state and executes nothing."""

    attributes: dict[str, Any]

    def __new__(cls, *arguments: Any, **named: Any) -> _Inert:
        # pickle may create an object without __init__
        made = super().__new__(cls)
        made.attributes = named
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.attributes.update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


class _InertDict(dict[Any, Any]):
    """Placeholder for an ordered dictionary, which may have attributes: a module's state has ``_metadata``."""


class _InertUnpickler(pickle.Unpickler):
    """An unpickler that loads containers and numbers, and imports nothing."""

    _PLAIN: ClassVar[dict[tuple[str, str], type]] = {("collections", "OrderedDict"): _InertDict}

    def find_class(self, module: str, name: str) -> type:
        return self._PLAIN.get((module, name), _Inert)

    def persistent_load(self, pid: Any) -> _Inert:
        return _Inert(pid)


def read_inert(data: bytes) -> Any:
    """Return the content of a pickle; its objects become inert containers with ``attributes``.

    :raises DamagedMetadataError: if it cannot be read.
    """
    try:
        return _InertUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise DamagedMetadataError(f"it cannot be read: {error}") from None
