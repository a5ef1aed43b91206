"""Load the model to evaluate with one of lm-evaluation-harness's model classes."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import yaml

from megatron_core_trainer.conversion.hugging_face_model import has_own_code

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Arguments that other options of the command line set.
_TAKEN = ("pretrained", "batch_size", "device", "trust_remote_code")


class EvaluationError(Exception):
    """The model, a task or its data is missing."""


def model_arguments(backend: str, model: Path, words: Sequence[str], *, batch_size: str) -> dict[str, Any]:
    """Return the arguments of the harness's class, without loading the harness, so that mistakes are found at once.

    :param backend: ``hf`` (Transformers) or ``vllm``.
    :param model: its directory. Modelling code in it is run if its configuration refers to it.
    :param words: ``NAME=VALUE``, further arguments of the class.
    :param batch_size: a number, ``auto`` or ``auto:N``.
    :raises EvaluationError: if the backend is not installed, or a word is no such argument.
    :raises ConversionError: if the model has no usable configuration.
    """
    if backend == "vllm" and not importlib.util.find_spec("vllm"):
        raise EvaluationError(
            f"--backend vllm needs the package vllm in the environment of {sys.executable}; install it there, or use"
            " --backend hf"
        )
    arguments: dict[str, Any] = {"pretrained": str(model), "batch_size": batch_size}
    arguments["trust_remote_code"] = has_own_code(model)
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name.isidentifier() or name in _TAKEN:
            taken = "; it is given by another option" if name in _TAKEN else ""
            raise EvaluationError(f"--backend-argument {word} is not NAME=VALUE of the backend{taken}")
        arguments[name] = yaml.safe_load(value)
    return arguments


def load_model(backend: str, arguments: dict[str, Any], *, device: str) -> Any:
    """Load a model.

    :param backend: ``hf`` or ``vllm``.
    :param arguments: those of :func:`model_arguments`.
    :param device: ``cuda``, ``cpu`` or ``auto``; vLLM chooses its own.
    :raises EvaluationError: if the backend refuses an argument.
    """
    if backend == "vllm":
        from lm_eval.models.vllm_causallms import VLLM as ModelClass
    else:
        import torch
        from lm_eval.models.huggingface import HFLM as ModelClass

        available = "cuda" if torch.cuda.is_available() else "cpu"
        arguments = {**arguments, "device": available if device == "auto" else device}
    try:
        return ModelClass(**arguments)
    except (TypeError, ValueError, AttributeError, LookupError, ImportError) as error:
        raise EvaluationError(
            f"--backend {backend} cannot load {arguments['pretrained']}: {error}"
        ) from error


def tokenizer_problem(loaded: Any) -> str | None:
    """Return why a model has no embedding for some token of its tokenizer, None if it has one for each.

    :param loaded: what :func:`load_model` returned; for ``vllm`` the result is None.
    """
    tokenizer, model = getattr(loaded, "tokenizer", None), getattr(loaded, "model", None)
    if tokenizer is None or not hasattr(model, "get_input_embeddings"):
        return None
    last, rows = max(tokenizer.get_vocab().values()), model.get_input_embeddings().num_embeddings
    if last < rows:
        return None
    return f"the tokenizer has token {last}, the model's embedding {rows} rows: it was not trained with this tokenizer"
