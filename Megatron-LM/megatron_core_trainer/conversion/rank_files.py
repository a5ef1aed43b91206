"""Merge checkpoints that have a file for each model-parallel rank (``--ckpt-format torch``).

``iter_0000100/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``: the name has the pipeline rank if there are several stages,
and the expert rank if experts are distributed (Megatron-LM, ``get_checkpoint_name``). A file contains the arguments and
the rank's weights under ``model``, or ``model0``, ``model1`` … with interleaved stages; each numbers its layers from 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.conversion.errors import ConversionError
from megatron_core_trainer.conversion.saved_objects import arguments_in, load_saved, reading
from megatron_core_trainer.conversion.weight_names import local_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    Weights = dict[str, torch.Tensor]
    Rank = tuple[int, int, int]

_DIRECTORY = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?\Z")
_LAYER = re.compile(r"(decoder\.layers\.)(\d+)(\..*)")
_EXPERT = re.compile(r"(.*\.local_experts\.)(\d+)(\..*)")
_FILE = "model_optim_rng.pt"


def rank_directories(checkpoint: Path) -> list[Path]:
    """Return the directories of the ranks; empty for a checkpoint of another format.

    :param checkpoint: an ``iter_*`` directory.
    """
    return sorted(path for path in checkpoint.glob("mp_rank_*") if _DIRECTORY.match(path.name))


def read_arguments(checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of the training run.

    :param checkpoint: an ``iter_*`` directory.
    :raises ConversionError: if it is incomplete, or contains no arguments.
    """
    return arguments_in(_load(rank_directories(checkpoint)[0]), checkpoint)


def read_weights(checkpoint: Path, settings: Mapping[str, Any], shapes: Mapping[str, torch.Size]) -> Weights:
    """Return every weight of the model, whole.

    :param checkpoint: an ``iter_*`` directory.
    :param settings: completed settings of the model.
    :param shapes: shapes of the whole model's weights, by name. A weight was split along the dimension in which the
        rank's weight is smaller.
    :raises ConversionError: if the file of a rank is missing or has unexpected content.
    """
    ranks = _ranks(checkpoint, settings)
    tensor_size, pipeline_size, expert_size = (max(rank[axis] for rank in ranks) + 1 for axis in range(3))
    expected = [
        (tensor, stage, expert)
        for tensor in range(tensor_size)
        for stage in range(pipeline_size)
        for expert in range(expert_size)
    ]
    absent = [rank for rank in expected if rank not in ranks]
    if absent:
        raise ConversionError(
            f"the checkpoint {checkpoint} is incomplete: no file of (tensor, pipeline, expert) {absent[0]}"
        )
    files = {rank: _load(path) for rank, path in ranks.items()}
    chunks = sorted(key for key in files[0, 0, 0] if re.fullmatch(r"model\d*", key))
    result: Weights = {}
    layers = 0
    for chunk in chunks:
        for stage in range(pipeline_size):
            own = [
                [
                    _renumbered(files[tensor, stage, expert][chunk], layers, expert)
                    for tensor in range(tensor_size)
                ]
                for expert in range(expert_size)
            ]
            for of_expert_rank in own:
                result |= {
                    name: _joined(name, of_expert_rank, settings, shapes) for name in of_expert_rank[0]
                }
            layers += len({match[2] for name in own[0][0] if (match := _LAYER.match(name))})
    return result


def _ranks(checkpoint: Path, settings: Mapping[str, Any]) -> dict[Rank, Path]:
    staged = int(settings.get("pipeline_model_parallel_size") or 1) > 1
    found: dict[Rank, Path] = {}
    for path in rank_directories(checkpoint):
        match = _DIRECTORY.match(path.name)
        assert match is not None
        tensor, *others = (int(number) for number in match.groups() if number is not None)
        stage = others.pop(0) if staged and others else 0
        found[tensor, stage, others[0] if others else 0] = path
    return found


def _load(directory: Path) -> dict[str, Any]:
    with reading(str(directory / _FILE)):
        # Most of the file is optimizer state, so read only what is used.
        return dict(load_saved(directory / _FILE, mmap=True))


def _renumbered(weights: Mapping[str, Any], layers: int, expert_rank: int) -> Weights:
    """Return the weights of a rank with the layer and expert numbers of the whole model."""
    named = {
        local_name(name): tensor for name, tensor in weights.items() if not name.endswith("_extra_state")
    }
    experts = len({match[2] for name in named if (match := _EXPERT.match(name))})
    result = {}
    for name, tensor in named.items():
        name = _LAYER.sub(lambda match: f"{match[1]}{int(match[2]) + layers}{match[3]}", name)
        name = _EXPERT.sub(lambda match: f"{match[1]}{int(match[2]) + expert_rank * experts}{match[3]}", name)
        result[name] = tensor
    return result


def _joined(
    name: str, ranks: Sequence[Weights], settings: Mapping[str, Any], shapes: Mapping[str, torch.Size]
) -> torch.Tensor:
    """Join the tensor-parallel parts of a weight."""
    import torch

    parts = [weights[name] for weights in ranks]
    shape = shapes.get(name)
    if shape is None or parts[0].shape == shape:
        return parts[0]
    divided = [axis for axis, size in enumerate(shape) if parts[0].shape[axis] != size]
    if len(divided) != 1 or sum(part.shape[divided[0]] for part in parts) != shape[divided[0]]:
        sizes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise ConversionError(f"the parts of {name} ({sizes}) do not make {tuple(shape)}")
    if settings["swiglu"] and ".linear_fc1." in name:
        # Each rank has its part of the gate projection, followed by its part of the up projection.
        gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
        parts = [*gates, *ups]
    return torch.cat(parts, dim=divided[0])
