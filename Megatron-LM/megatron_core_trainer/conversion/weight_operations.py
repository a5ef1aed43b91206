"""Operations that turn a Megatron weight into Hugging Face weights.

Megatron stores query, key and value of a query group in one matrix, and the gate and up projections of a gated
feed-forward network in another one. Most Hugging Face models have separate matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(frozen=True)
class WeightShape:
    """Sizes that determine where a fused matrix is split.

    :param query_groups: key (and value) heads.
    :param head_width: rows of a head.
    :param vocab_size: rows of the embedding that are kept; the rest is padding.
    """

    query_groups: int
    head_width: int
    vocab_size: int


def _heads(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    # Rows of each query group: its query heads, one key head, one value head.
    return fused.reshape(shape.query_groups, -1, shape.head_width, *fused.shape[1:])


def _query(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return _heads(fused, shape)[:, :-2].reshape(-1, *fused.shape[1:])


def _key(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return _heads(fused, shape)[:, -2].reshape(-1, *fused.shape[1:])


def _value(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return _heads(fused, shape)[:, -1].reshape(-1, *fused.shape[1:])


def _query_key_value(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    import torch

    return torch.cat([_query(fused, shape), _key(fused, shape), _value(fused, shape)])


def _gate(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return fused.chunk(2, dim=0)[0]


def _up(fused: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return fused.chunk(2, dim=0)[1]


def _transposed(weight: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return weight.mT if weight.dim() > 1 else weight


def _doubled(weight: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return 2 * weight


def _row_of_zeros(weight: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return weight.new_zeros(1, *weight.shape[1:])


def _vocabulary(weight: torch.Tensor, shape: WeightShape) -> torch.Tensor:
    return weight[: shape.vocab_size]


OPERATIONS: dict[str, Callable[[torch.Tensor, WeightShape], torch.Tensor]] = {
    "doubled": _doubled,
    "gate": _gate,
    "key": _key,
    "query": _query,
    "query_key_value": _query_key_value,
    "row_of_zeros": _row_of_zeros,
    "transposed": _transposed,
    "up": _up,
    "value": _value,
    "vocabulary": _vocabulary,
}
"""Name in an architecture file → what it does; biases, which have one dimension, go the same way as weights."""
