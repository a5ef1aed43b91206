"""Read the weights and arguments of a checkpoint, in both of Megatron-LM's formats, named as in a local-spec GPT model.

``torch_dist`` checkpoints (``--ckpt-format torch_dist``) contain whole tensors; equal tensors of all layers, and of all
experts, are stacked. They are read with PyTorch alone, so that the release that wrote them does not matter:
core_v0.19.0 stores the arguments among the tensors, earlier releases in ``common.pt``. ``torch`` checkpoints ("legacy")
have a file for each model-parallel rank: :mod:`megatron_core_trainer.conversion.rank_files`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, load
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from megatron_core_trainer.conversion import rank_files
from megatron_core_trainer.conversion.errors import ConversionError
from megatron_core_trainer.conversion.saved_objects import arguments_in, load_saved, reading
from megatron_core_trainer.conversion.weight_names import local_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch.distributed.checkpoint.planner import ReadItem

    Weights = dict[str, torch.Tensor]

_MODEL = ("embedding.", "decoder.", "output_layer.")
_COMMON = "common_state/shard_0_1"
_EXPERTS = ".mlp.experts.experts."


def is_sharded(checkpoint: Path) -> bool:
    """Return whether a checkpoint has the format ``torch_dist``.

    :param checkpoint: an ``iter_*`` directory.
    :raises ConversionError: if it is missing or incomplete.
    """
    if not checkpoint.is_dir():
        raise ConversionError(f"there is no checkpoint {checkpoint}")
    if rank_files.rank_directories(checkpoint):
        return False
    # metadata.json is written last
    missing = [name for name in (".metadata", "metadata.json") if not (checkpoint / name).is_file()]
    if missing:
        raise ConversionError(f"the checkpoint {checkpoint} is incomplete: it has no {', '.join(missing)}")
    return True


def read_arguments(checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of the training run that wrote a checkpoint.

    :param checkpoint: an ``iter_*`` directory.
    :raises ConversionError: if it is incomplete, or contains no arguments.
    """
    if not is_sharded(checkpoint):
        return rank_files.read_arguments(checkpoint)
    if (checkpoint / "common.pt").is_file():
        with reading(f"the checkpoint {checkpoint}"):
            common = load_saved(checkpoint / "common.pt")
    else:
        common = _read(checkpoint, {_COMMON: io.BytesIO()})[_COMMON]
        common = common[0] if isinstance(common, list) else common
    return arguments_in(common, checkpoint)


def read_weights(checkpoint: Path, settings: Mapping[str, Any], shapes: Mapping[str, torch.Size]) -> Weights:
    """Return every weight of the model, whole.

    :param checkpoint: an ``iter_*`` directory.
    :param settings: of the model, completed.
    :param shapes: of the whole model's weights, by name.
    :raises ConversionError: if it is incomplete or damaged.
    """
    if not is_sharded(checkpoint):
        return rank_files.read_weights(checkpoint, settings, shapes)
    with reading(f"the checkpoint {checkpoint}"):
        stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    wanted = {
        name: torch.empty(kept.size, dtype=kept.properties.dtype)
        for name, kept in stored.items()
        if isinstance(kept, TensorStorageMetadata) and name.startswith(_MODEL)
    }
    return dict(_unstacked(_read(checkpoint, wanted)))


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]
    """Reads objects that are not tensors, even if this release does not know their classes."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object into the state dict.

        :param read_item: identifies the object.
        :param value: as it was written.
        """
        self.original_state_dict[read_item.dest_index.fqn] = load_saved(value)


def _read(checkpoint: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    with reading(f"the checkpoint {checkpoint}"):
        try:
            load(wanted, storage_reader=FileSystemReader(checkpoint), planner=_Planner(), no_dist=True)
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error
    return wanted


def _unstacked(stored: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the separate weight of each layer and each expert."""
    for name, tensor in stored.items():
        for of_layer, part in _numbered(name, tensor, "decoder.layers."):
            for own, weight in _numbered(of_layer, part, _EXPERTS):
                yield local_name(own.replace(_EXPERTS, ".mlp.experts.local_experts.")), weight


def _numbered(name: str, tensor: torch.Tensor, after: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parts along the first dimension where the name has no number after ``after``."""
    before, found, rest = name.partition(after)
    if not found or rest.partition(".")[0].isdigit():
        yield name, tensor
        return
    for number, part in enumerate(tensor):
        yield f"{before}{found}{number}.{rest}", part
