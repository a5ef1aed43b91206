"""Model settings of the command line: those copied from a checkpoint, and the padded vocabulary size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.arguments.errors import ArgumentError
from megatron_core_trainer.optimization.parametrization import DEFAULTS as MUP_DEFAULTS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

# Settings of the model, not of a run: --use-checkpoint-args copies them from the checkpoint.
MODEL_SETTINGS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "kv_channels",
    "group_query_attention",
    "num_query_groups",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "use_rope_scaling",
    "rope_scaling_factor",
    "normalization",
    "layernorm_epsilon",
    "swiglu",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "untie_embeddings_and_output_weights",
    "seq_length",
    "attention_dropout",
    "hidden_dropout",
    "padded_vocab_size",
    "use_mup",
    *MUP_DEFAULTS,
)
_OVERRIDABLE = ("seq_length", "max_position_embeddings")


@dataclass(frozen=True)
class Tokenizer:
    """Properties of a tokenizer that training needs.

    :param kind: ``NullTokenizer`` or ``HuggingFaceTokenizer``.
    :param vocab_size: number of tokens, including special tokens.
    :param eod: id of the end-of-document token.
    """

    kind: str
    vocab_size: int
    eod: int

    @property
    def unique_identifiers(self) -> dict[str, str]:
        """Return what identifies the tokenizer in the description of a data set."""
        return {"class": self.kind, "vocab_size": str(self.vocab_size), "eod": str(self.eod)}


def take_model_settings(args: argparse.Namespace, saved: Mapping[str, Any]) -> None:
    """Set the model's shape from a checkpoint (``--use-checkpoint-args``).

    :param args: the run's arguments; a sequence length given there is kept.
    :param saved: the arguments saved in the checkpoint.
    """
    for name in MODEL_SETTINGS:
        if name in saved and not (name in _OVERRIDABLE and getattr(args, name) is not None):
            setattr(args, name, saved[name])


def pad_vocab(args: argparse.Namespace, tokenizer: Tokenizer) -> None:
    """Set ``padded_vocab_size``: rounded up to a multiple of ``--make-vocab-size-divisible-by`` x tensor-parallel size.

    :param args: the run's arguments; a size copied from a checkpoint is kept.
    :param tokenizer: the tokenizer.
    """
    args.tokens_in_vocabulary = tokenizer.vocab_size
    saved = getattr(args, "padded_vocab_size", None)
    if saved is None:
        multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
        args.padded_vocab_size = math.ceil(tokenizer.vocab_size / multiple) * multiple
    elif saved < tokenizer.vocab_size or saved % args.tensor_model_parallel_size:
        raise ArgumentError(
            f"the checkpoint's vocabulary ({saved}) does not fit the tokenizer ({tokenizer.vocab_size} tokens) or"
            f" --tensor-model-parallel-size ({args.tensor_model_parallel_size})"
        )
