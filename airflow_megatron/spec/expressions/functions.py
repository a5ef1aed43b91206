"""Functions of expressions in sweep specs: arithmetic, and rules of thumb of Megatron training runs.

All sizes are counts (tokens, iterations, parameters), all batch sizes are in sequences. A tokens argument may be a
quantity such as ``2B`` or ``100_000_000``.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.documents.quantities import parse_duration, parse_quantity
from airflow_megatron.spec.expressions.bounds import summed
from airflow_megatron.spec.expressions.file_values import file_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def ceil_div(dividend: int, divisor: int) -> int:
    """Return ``dividend / divisor`` rounded up to an integer."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``value``."""
    return ceil_div(value, multiple) * multiple


def round_down(value: int, multiple: int) -> int:
    """Return the largest multiple of ``multiple`` that is at most ``value``, as of a save interval."""
    return value // multiple * multiple


def bounded_round(value: float, digits: int | None = None) -> int | float:
    """Return Python's ``round``; refuse more digits than a float has, which could take any amount of time."""
    if digits is not None and abs(digits) > 400:
        raise ValueError(f"round takes at most 400 digits, not {digits}")
    return round(value, digits)


def iterations(tokens: int | str, seq_length: int, global_batch_size: int) -> int:
    """Return the iterations that consume at least ``tokens`` tokens: tokens / (seq_length · global_batch_size)."""
    return ceil_div(parse_quantity(tokens), seq_length * global_batch_size)


def tokens_in(iterations: int, seq_length: int, global_batch_size: int) -> int:
    """Return the tokens that a number of iterations consumes."""
    return iterations * seq_length * global_batch_size


def warmup_for_fraction(train_iters: int, fraction: float = 0.01, at_most: int | None = None) -> int:
    """Return warm-up iterations as a fraction of the run, like ``--lr-warmup-fraction`` (of the decay steps).

    :param at_most: upper bound on the result
    """
    warmup = int(train_iters * fraction)
    return warmup if at_most is None else min(warmup, at_most)


def warmup_for_tokens(tokens: int | str, seq_length: int, global_batch_size: int) -> int:
    """Return warm-up iterations within ``tokens`` tokens, rounded down, at least one."""
    return max(1, parse_quantity(tokens) // (seq_length * global_batch_size))


def warmup_for_parameters(
    parameters: int,
    seq_length: int,
    global_batch_size: int,
    tokens_per_parameter: float = 2,
    at_most: int = 5000,
) -> int:
    """Return warm-up iterations in proportion to the model: ``tokens_per_parameter`` tokens for each parameter.

    Porian et al. 2024, "Resolving Discrepancies in Compute-Optimal Scaling of Language Models" (arXiv:2406.19146),
    warm up for as many tokens as the model has parameters; the open-sci scaling study takes two for each and stops at
    5,000 iterations.
    """
    return min(int(tokens_per_parameter * parameters) // (seq_length * global_batch_size), at_most)


def approximate_parameters(num_layers: int, hidden_size: int, vocab_size: int = 0) -> int:
    """Return 12 · layers · hidden² + vocabulary · hidden.

    Kaplan et al. 2020 (arXiv:2001.08361, table 1) with a feed-forward size of 4 · hidden, plus one embedding matrix.
    """
    return 12 * num_layers * hidden_size**2 + vocab_size * hidden_size


def gpt_parameters(
    num_layers: int,
    hidden_size: int,
    vocab_size: int,
    num_attention_heads: int,
    *,
    ffn_hidden_size: int | None = None,
    num_query_groups: int | None = None,
    kv_channels: int | None = None,
    swiglu: bool = False,
    bias: bool = True,
    rms_norm: bool = False,
    qk_layernorm: bool = False,
    untied: bool = False,
    positions: int = 0,
) -> int:
    """Return the exact number of parameters of Megatron's GPT model without experts.

    Source: ``megatron/core/models/gpt/gpt_model.py`` (core_v0.16.1).

    :param vocab_size: after padding, see :func:`padded_vocab`
    :param ffn_hidden_size: default: Megatron's, see :func:`ffn_size`
    :param num_query_groups: query groups of grouped-query attention; default: one per head
    :param kv_channels: size of a head; default hidden_size / num_attention_heads
    :param bias: False with ``--disable-bias-linear``
    :param rms_norm: RMSNorm has a weight only, LayerNorm weight and bias
    :param untied: True with ``--untie-embeddings-and-output-weights``
    :param positions: ``max_position_embeddings`` with learned absolute positions, 0 with rotary ones
    """
    head = kv_channels or hidden_size // num_attention_heads
    ffn = ffn_hidden_size or ffn_size(hidden_size, swiglu)
    queries, keys = num_attention_heads * head, (num_query_groups or num_attention_heads) * head
    widened = ffn * (2 if swiglu else 1)
    norm = 1 if rms_norm else 2
    attention = hidden_size * (queries + 2 * keys) + queries * hidden_size
    layer = attention + hidden_size * widened + ffn * hidden_size + 2 * norm * hidden_size
    if bias:
        layer += queries + 2 * keys + hidden_size + widened + hidden_size
    if qk_layernorm:
        layer += 2 * norm * head
    embeddings = vocab_size * hidden_size * (2 if untied else 1) + positions * hidden_size
    return num_layers * layer + norm * hidden_size + embeddings


def ffn_size(hidden_size: int, swiglu: bool = False) -> int:
    """Return Megatron's default feed-forward size: 4 · hidden, with SwiGLU two thirds of it in steps of 64.

    ``megatron/training/arguments.py``, ``validate_args`` (core_v0.16.1).
    """
    return int(4 * hidden_size * 2 / 3 / 64) * 64 if swiglu else 4 * hidden_size


def padded_vocab(vocab_size: int, tensor_model_parallel_size: int = 1, divisible_by: int = 128) -> int:
    """Return the vocabulary size that Megatron pads to: a multiple of ``divisible_by`` · tensor parallel size.

    ``megatron/training/tokenizer/tokenizer.py``, ``_vocab_size_with_padding``; ``divisible_by`` is
    ``--make-vocab-size-divisible-by``.
    """
    return round_up(vocab_size, divisible_by * tensor_model_parallel_size)


def training_flops(parameters: int, tokens: int | str) -> int:
    """Return 6 · parameters · tokens, the floating-point operations of a training run (Kaplan et al. 2020, §2.1)."""
    return 6 * parameters * parse_quantity(tokens)


def small_init_std(hidden_size: int) -> float:
    """Return sqrt(2 / (5 · hidden)), the standard deviation of "small init" for ``--init-method-std``.

    Nguyen and Salazar 2019, "Transformers without Tears" (arXiv:1910.05895, §2.2).
    """
    return math.sqrt(2 / (5 * hidden_size))


def output_init_std(std: float, num_layers: int) -> float:
    """Return std / sqrt(2 · layers), the standard deviation for layers that write to the residual stream.

    ``megatron/core/utils.py``, ``scaled_init_method_normal``; after Radford et al. 2019 (GPT-2), §2.3.
    """
    return std / math.sqrt(2 * num_layers)


MAX_DIGITS: Final = 4096
"""Maximum number of bits of a whole number in arguments of functions."""
MAX_QUANTITY: Final = 100
"""Maximum number of characters of a quantity, such as ``100M``."""


def of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an arithmetic function that accepts only numbers, and quantities such as ``2B``.

    ``*`` on a text or a list would repeat it any number of times.
    """

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, str) and len(value) <= MAX_QUANTITY:
                continue
            if value is not None and not isinstance(value, int | float):
                raise TypeError(f"{function.__name__} takes numbers, not a {type(value).__name__}")
            if isinstance(value, int) and value.bit_length() > MAX_DIGITS:
                raise ValueError(f"a number of {value.bit_length()} bits is too large")
        return _no_text(function, function(*args, **kwargs))

    return checked


def _no_text(function: Callable[..., Any], result: Any) -> Any:
    if isinstance(result, str | list | tuple):
        raise TypeError(f"{function.__name__} takes numbers, not a {type(result).__name__}")
    return result


_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "approximate_parameters": approximate_parameters,
    "ceil": math.ceil,
    "ceil_div": ceil_div,
    "exp": math.exp,
    "ffn_size": ffn_size,
    "floor": math.floor,
    "gcd": math.gcd,
    "gpt_parameters": gpt_parameters,
    "iterations": iterations,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "output_init_std": output_init_std,
    "padded_vocab": padded_vocab,
    "round": bounded_round,
    "round_down": round_down,
    "round_up": round_up,
    "small_init_std": small_init_std,
    "sqrt": math.sqrt,
    "tokens_in": tokens_in,
    "training_flops": training_flops,
    "warmup_for_fraction": warmup_for_fraction,
    "warmup_for_parameters": warmup_for_parameters,
    "warmup_for_tokens": warmup_for_tokens,
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: of_numbers(function) for name, function in _OF_NUMBERS.items()},
    "duration": parse_duration,
    "file_value": file_value,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "quantity": parse_quantity,
    "str": str,
    "sum": summed,
}
