#!/usr/bin/env python3
"""Export the weights of a checkpoint with a bridge library, on a GPU.

    library_export.py LIBRARY CHECKPOINT OUTPUT

OUTPUT contains the ``config.json`` of the Hugging Face model, from which the library builds the Megatron model. The
program runs in one process, for any parallel layout of the checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch


def _with_megatron_bridge(
    checkpoint: Path, output: Path, dtype: torch.dtype
) -> Iterable[tuple[str, torch.Tensor]]:
    from megatron.bridge import AutoBridge

    bridge = AutoBridge.from_hf_pretrained(output)
    models = bridge.load_megatron_model(checkpoint, wrap_with_ddp=False)
    return bridge.export_hf_weights(models, cpu=True)  # type: ignore[no-any-return]


def _with_mbridge(checkpoint: Path, output: Path, dtype: torch.dtype) -> Iterable[tuple[str, torch.Tensor]]:
    import torch
    from mbridge import AutoBridge

    from megatron_core_trainer import distributed

    distributed.initialize_alone("nccl")
    bridge = AutoBridge.from_pretrained(str(output), dtype=dtype)
    models = bridge.get_model(weight_path=None, bf16=dtype is torch.bfloat16, fp16=dtype is torch.float16)
    _load(models, checkpoint)
    return bridge.export_weights(models)  # type: ignore[no-any-return]


def _with_mcore_bridge(
    checkpoint: Path, output: Path, dtype: torch.dtype
) -> Iterable[tuple[str, torch.Tensor]]:
    from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config
    from transformers import AutoConfig

    from megatron_core_trainer import distributed

    distributed.initialize_alone("nccl")
    config = ModelConfig(params_dtype=dtype, **hf_to_mcore_config(AutoConfig.from_pretrained(output)))
    models = get_mcore_model(config)
    _load(models, checkpoint)
    return config.bridge.export_weights(models)  # type: ignore[no-any-return]


LIBRARIES: dict[str, Callable[[Path, Path, torch.dtype], Iterable[tuple[str, torch.Tensor]]]] = {
    "mbridge": _with_mbridge,
    "mcore_bridge": _with_mcore_bridge,
    "megatron_bridge": _with_megatron_bridge,
}


def _load(models: list[Any], checkpoint: Path) -> None:
    """Load the weights of a ``torch_dist`` checkpoint into the library's model."""
    from megatron.core import dist_checkpointing

    (model,) = models
    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(checkpoint))
    model.load_state_dict(state["model"])


def main(library: str, checkpoint: Path, output: Path) -> None:
    """Export and write the weights.

    :param library: one of :data:`LIBRARIES`.
    :param checkpoint: an ``iter_*`` directory.
    :param output: the model's directory, with its ``config.json``.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import torch
    from huggingface_hub import save_torch_state_dict

    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    dtype = getattr(torch, config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    exported = LIBRARIES[library](checkpoint, output, dtype)
    weights = {name: weight.detach().to("cpu", dtype) for name, weight in exported}
    save_torch_state_dict(weights, output)
    print(f"{library} exported {len(weights)} weights")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
