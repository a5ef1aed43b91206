"""Pickled files of checkpoints, read although the release that wrote them is not the one that is installed.

Megatron pickles its arguments, and these hold enumerations and its own classes, with other names in other releases.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.conversion.errors import ConversionError

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping
    from pathlib import Path


class UnknownObject:
    """An object of a class of Megatron's that the installed release does not have.

    :param values: what it was made from.
    """

    def __init__(self, *values: object) -> None:
        self.values = values

    def __setstate__(self, state: object) -> None:
        self.values = (state,)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError):
            if module.partition(".")[0] != "megatron":
                raise
            return UnknownObject


def load_saved(source: Path | io.BytesIO, *, mmap: bool = False) -> Any:
    """Load what ``torch.save`` has written. A checkpoint is as trusted as the code that wrote it.

    :param source: a file, or its content.
    :param mmap: read tensors only when they are used.
    """
    import torch

    reader = SimpleNamespace(**{**vars(pickle), "Unpickler": _Unpickler})
    return torch.load(source, map_location="cpu", mmap=mmap, weights_only=False, pickle_module=reader)


def arguments_in(content: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of the training run, from what a checkpoint keeps once for all.

    :param content: as loaded.
    :param checkpoint: where it comes from.
    :raises ConversionError: if there are none.
    """
    if "args" not in content:
        raise ConversionError(f"the checkpoint {checkpoint} does not hold the arguments of its training run")
    return dict(vars(content["args"]))
