"""Write the files of a Hugging Face model and compute its logits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.conversion.errors import ConversionError, MismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from megatron_core_trainer.conversion.architecture import Architecture

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_SHARD_SIZE = "5GB"


def write_description(directory: Path, architecture: Architecture, settings: Mapping[str, Any]) -> None:
    """Write the configurations and the modelling code.

    :param directory: folder of the model.
    :param architecture: its architecture.
    :param settings: completed settings of the model, with ``vocab_size``, ``eos`` and ``dtype``.
    """
    config = architecture.hugging_face_config(settings)
    _write_json(directory / "config.json", config)
    eos = config.get("eos_token_id")
    _write_json(
        directory / "generation_config.json", {f"{name}_token_id": eos for name in ("bos", "eos", "pad")}
    )
    for name in architecture.files:
        (directory / name).write_bytes((architecture.path.parent / name).read_bytes())


def write_tokenizer(directory: Path, tokenizer: Path) -> None:
    """Copy a tokenizer into the folder of a model that has none yet.

    :param directory: folder of the model.
    :param tokenizer: folder of the tokenizer.
    """
    for name in _TOKENIZER_FILES:
        if not (directory / name).is_file():
            (directory / name).write_bytes((tokenizer / name).read_bytes())


def write_weights(directory: Path, weights: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Write safetensors files, several with an index for a large model.

    Biases of the class that Megatron's model does not have are written as zeros, which computes the same.

    :param directory: folder of the model, with its ``config.json``.
    :param weights: Hugging Face name → weight.
    :param dtype: name of the type to store, for example ``bfloat16``.
    """
    import torch
    from huggingface_hub import save_torch_state_dict

    absent = {
        name: torch.zeros(shape)
        for name, shape in _expected_shapes(directory).items()
        if name.endswith(".bias") and name not in weights
    }
    typed = {name: weight.to(getattr(torch, dtype)) for name, weight in {**weights, **absent}.items()}
    save_torch_state_dict(typed, directory, max_shard_size=_SHARD_SIZE)
    # safetensors creates private files; make the weights as readable as the other files of the model.
    for path in directory.glob("*.safetensors"):
        path.chmod((directory / "config.json").stat().st_mode)


def logits_difference(directory: Path, logits: torch.Tensor, tokens: torch.Tensor) -> float:
    """Load the written model and return the largest difference between its logits and the given ones.

    :param directory: folder of the model.
    :param logits: shape [sequences, length, tokens of the vocabulary].
    :param tokens: shape [sequences, length].
    :raises MismatchError: if weights are missing, unused, or have another shape.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=has_own_code(directory),
    )
    wrong = {name: names for name, names in report.items() if names and name.endswith("_keys")}
    if wrong:
        raise MismatchError(f"the converted model does not load cleanly: {wrong}")
    with torch.no_grad():
        found = model.eval()(tokens).logits[..., : logits.shape[-1]]
    return float((logits - found).abs().max())


def has_own_code(directory: Path) -> bool:
    """Return whether a model contains modelling code, which Transformers runs only on request.

    :param directory: folder of the model.
    :raises ConversionError: if it has no configuration.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConversionError(f"the model has no usable config.json: {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConversionError(f"the model has no usable config.json: {path} is not a mapping")
    return "auto_map" in config


def _expected_shapes(directory: Path) -> dict[str, torch.Size]:
    """Return the shapes that the model's class expects, without allocating its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    trusted = has_own_code(directory)
    config = AutoConfig.from_pretrained(directory, trust_remote_code=trusted, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
