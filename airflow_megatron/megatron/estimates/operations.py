"""Floating point operations of training, counted as in Megatron-LM's ``throughput per GPU`` line.

Source: ``num_floating_point_operations`` in upstream's ``megatron/training/training.py``: two operations per
multiply-add, the backward pass twice the forward pass, half of the attention matrix (causal), no recomputation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.estimates.parameters import (
    moe_layers,
    padded_vocabulary,
    prediction_layers,
    projection_sizes,
)

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.settings import Settings

_FORWARD_AND_BACKWARD = 3
_PER_MULTIPLY_ADD = 2
_LATENT_EXPERTS_COUNT_SINCE = (0, 17)


def operations_per_token(s: Settings) -> float:
    """Return the operations of one token, forward and backward, averaged over a sequence."""
    attention = _attention_multiplications(s)
    predictions = prediction_layers(s)
    total = s.hidden_size * padded_vocabulary(s) * (1 + len(predictions))
    total += len(predictions) * (2 * s.hidden_size**2 + 3 * s.hidden_size)
    for moe in moe_layers(s) + predictions:
        total += attention + _mlp_multiplications(s, moe=moe)
    return float(_FORWARD_AND_BACKWARD * _PER_MULTIPLY_ADD * total)


def _mlp_multiplications(s: Settings, *, moe: bool) -> float:
    # upstream counts the gate of --swiglu but not that of --quick-geglu
    matrices, hidden = 3 if s.swiglu else 2, s.hidden_size
    if not moe:
        return float(matrices * hidden * s.ffn_hidden_size)
    latent = s.moe_latent_size if s.release >= _LATENT_EXPERTS_COUNT_SINCE else None
    routed = matrices * (latent or hidden) * s.moe_ffn_hidden_size * s.moe_router_topk
    shared = matrices * hidden * (s.moe_shared_expert_intermediate_size or 0)
    return float(routed + shared + 2 * hidden * (latent or 0))


def _attention_multiplications(s: Settings) -> float:
    hidden, heads, length = s.hidden_size, s.num_attention_heads, s.seq_length
    if s.multi_latent_attention:
        query_head = s.qk_head_dim + s.qk_pos_emb_head_dim
        if s.q_lora_rank is None:
            query = hidden * heads * query_head
        else:
            query = s.q_lora_rank * (hidden + heads * query_head + 1)
        key_value = s.kv_lora_rank * (hidden + heads * (s.qk_head_dim + s.v_head_dim) + 1)
        linear = query + key_value + hidden * s.qk_pos_emb_head_dim + heads * s.v_head_dim * hidden
        return float(linear + length * heads * (query_head + s.v_head_dim) / 2)
    queries, keys = projection_sizes(s)
    gate = queries if s.attention_output_gate else 0
    linear = hidden * (queries + 2 * keys + gate) + queries * hidden
    return float(linear + queries * length)
