"""The checks with which Megatron-DeepSpeed refuses arguments at the start of a job.

This module has those that a spec can violate, from ``megatron/arguments.py`` (``validate_args``) of
argonne-lcf/Megatron-DeepSpeed, commit ffa3456d; batch and precision are checked with the configuration
(:mod:`airflow_megatron.megatron.trainers.megatron_deepspeed.configuration`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.trainers.megatron_deepspeed.configuration import TRAINER
from airflow_megatron.spec.expressions.file_values import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED: Final = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings")
_MULTIPLES: Final = (
    ("hidden_size", "num_attention_heads"),
    ("num_attention_heads", "num_key_value_heads"),
    ("num_attention_heads", "tensor_model_parallel_size"),
    ("num_layers", "pipeline_model_parallel_size"),
)


def check_arguments(values: Mapping[str, Any]) -> None:
    """Refuse arguments with which the trainer would fail.

    :param values: ``dest`` → value of the given arguments.
    :raises ArgumentError: for the first invalid one.
    """
    for name in _NEEDED:
        if values.get(name) is None:
            raise ArgumentError(name, TRAINER, f"is needed: add megatron: {{{name}: …}}")
    if values.get("save") is not None and values.get("save_interval") is None:
        raise ArgumentError("save_interval", TRAINER, "is needed wherever checkpoints are saved")
    if values["max_position_embeddings"] < values["seq_length"]:
        reason = f"{values['max_position_embeddings']} is below seq_length ({values['seq_length']})"
        raise ArgumentError("max_position_embeddings", TRAINER, reason)
    for whole, part in _MULTIPLES:
        if values[whole] % (values.get(part) or 1):
            raise ArgumentError(
                whole, TRAINER, f"{values[whole]} is not a multiple of {part} ({values[part]})"
            )
    if values.get("lr_warmup_fraction") is not None and values.get("lr_warmup_iters"):
        raise ArgumentError("lr_warmup_fraction", TRAINER, "excludes lr_warmup_iters; keep one")
    if str(values.get("lr_decay_style")).startswith("infinite") and not values.get("min_lr"):
        raise ArgumentError("min_lr", TRAINER, "must be above 0: the infinite schedules take its logarithm")
    lr, least = values.get("lr"), values.get("min_lr", 0.0)
    if lr is not None and path_of(lr) is None and least > lr:
        raise ArgumentError("min_lr", TRAINER, f"{least:g} is above lr ({lr:g})")
