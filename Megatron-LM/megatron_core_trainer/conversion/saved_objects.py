"""Read pickled files of checkpoints that another release of Megatron wrote.

Megatron pickles its arguments. They contain enumerations and classes of Megatron, whose names differ between releases.
"""

from __future__ import annotations

import contextlib
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.conversion.errors import ConversionError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class UnknownObject:
    """An object of a Megatron class that the installed release does not have.

    :param values: the arguments of its constructor.
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
    """Load a file of ``torch.save``. Unpickling can run code, so checkpoints must be trusted like programs.

    :param source: a file, or its content.
    :param mmap: read tensors only when they are used.
    """
    import torch

    reader = SimpleNamespace(**{**vars(pickle), "Unpickler": _Unpickler})
    return torch.load(source, map_location="cpu", mmap=mmap, weights_only=False, pickle_module=reader)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Report every error of the block as a file that cannot be read: a damaged pickle can cause any error.

    :param what: what the block reads, for the error message.
    :raises ConversionError: with the error.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise ConversionError(f"{what} cannot be read: {reason}") from error


def arguments_in(content: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of the training run from the common part of a checkpoint.

    :param content: the loaded common part.
    :param checkpoint: the checkpoint, for error messages.
    :raises ConversionError: if there are no arguments.
    """
    if "args" not in content:
        raise ConversionError(f"the checkpoint {checkpoint} does not hold the arguments of its training run")
    return dict(vars(content["args"]))
