"""Parameter counts by part of the model and by the parallelism that divides them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.settings import Settings


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model.

    :param embedding: word and position embeddings, and a separate output layer (untied)
    :param non_embedding: everything else, all experts
    :param active: parameters used by one token, including embeddings
    :param padding: those of ``embedding`` without a token, because the vocabulary is rounded up
    """

    embedding: int
    non_embedding: int
    active: int
    padding: int = 0

    @property
    def total(self) -> int:
        """All parameters, as upstream counts them: with the padding of the vocabulary."""
        return self.embedding + self.non_embedding

    @property
    def without_padding(self) -> int:
        """All parameters except those of the vocabulary's padding, as papers and model cards count them."""
        return self.total - self.padding

    def to_json(self) -> dict[str, int]:
        """Return the counts as a JSON object."""
        return asdict(self) | {"total": self.total, "without_padding": self.without_padding}


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one transformer layer.

    :param split: divided by tensor parallelism
    :param whole: on every tensor-parallel rank (norms, biases after the sum, router)
    :param expert: one routed expert, divided by expert tensor parallelism
    :param experts: number of routed experts, 0 in a dense layer
    """

    split: int
    whole: int
    expert: int = 0
    experts: int = 0


def padded_vocabulary(s: Settings) -> int:
    """Round the vocabulary up as upstream does (``vocab_size_with_padding``)."""
    unit = s.make_vocab_size_divisible_by * s.tensor_model_parallel_size
    size: int = -(-s.vocab_size // unit) * unit
    return size


def moe_layers(s: Settings) -> list[bool]:
    """Return for every layer whether its MLP is a mixture of experts (upstream's ``moe_layer_freq``)."""
    if s.num_experts is None:
        return [False] * s.num_layers
    if isinstance(s.moe_layer_freq, list):
        return [bool(flag) for flag in s.moe_layer_freq]
    return [index % s.moe_layer_freq == 0 for index in range(s.num_layers)]


def prediction_layers(s: Settings) -> list[bool]:
    """Return :func:`moe_layers` for the layers of multi-token prediction, each of which is like the model's last
    layer.
    """
    return [moe_layers(s)[-1]] * (s.mtp_num_layers or 0)


def prediction_weights(s: Settings) -> list[bool]:
    """Return the same for the layers with separate parameters: one, if one layer is repeated."""
    return prediction_layers(s)[: 1 if s.mtp_use_repeated_layer else None]


def expert_input(s: Settings) -> int:
    """Return the input width of the routed experts: the latent width, if there are projections."""
    width: int = s.moe_latent_size or s.hidden_size
    return width


def projection_sizes(s: Settings) -> tuple[int, int]:
    """Return the total width of the queries of all heads, and that of the keys (= values)."""
    groups = s.num_query_groups if s.group_query_attention else s.num_attention_heads
    return s.kv_channels * s.num_attention_heads, s.kv_channels * groups


def mlp_matrices(s: Settings) -> int:
    """Return the number of matrices of an MLP: three with a gated unit, else two."""
    return 3 if s.swiglu or s.quick_geglu else 2


def layer_parameters(s: Settings, *, moe: bool) -> LayerParameters:
    """Count one layer's parameters, biases and norms included."""
    hidden, norm = s.hidden_size, (1 if s.normalization == "RMSNorm" else 2)
    split, whole = _attention(s, norm)
    whole += 2 * norm * hidden
    matrices = mlp_matrices(s)
    if not moe:
        split += matrices * hidden * s.ffn_hidden_size
        if s.add_bias_linear:
            split += (matrices - 1) * s.ffn_hidden_size
            whole += hidden
        return LayerParameters(split, whole)
    width = expert_input(s)
    expert = matrices * width * s.moe_ffn_hidden_size
    if s.add_bias_linear:
        expert += (matrices - 1) * s.moe_ffn_hidden_size + width
    split += matrices * hidden * (s.moe_shared_expert_intermediate_size or 0)
    whole += hidden if s.moe_shared_expert_intermediate_size and s.moe_shared_expert_gate else 0
    whole += (hidden + bool(s.add_bias_linear)) * s.num_experts  # the router
    if s.moe_latent_size:
        whole += 2 * hidden * width + (hidden + width if s.add_bias_linear else 0)
    return LayerParameters(split, whole, expert, s.num_experts)


def prediction_parameters(s: Settings, *, moe: bool) -> LayerParameters:
    """Count the parameters of one layer of multi-token prediction: a transformer layer, its input and its norms.

    Source: ``megatron/core/transformer/multi_token_prediction.py``, ``MultiTokenPredictionLayer``.
    """
    layer = layer_parameters(s, moe=moe)
    norms = 3 * (1 if s.normalization == "RMSNorm" else 2) * s.hidden_size
    return replace(layer, split=layer.split + 2 * s.hidden_size**2, whole=layer.whole + norms)


def embedding_parameters(s: Settings) -> tuple[int, int]:
    """Count word embedding (divided by tensor parallelism) and learned positions (not divided)."""
    positions = s.max_position_embeddings if s.position_embedding_type == "learned_absolute" else 0
    return padded_vocabulary(s) * s.hidden_size, positions * s.hidden_size


def parameter_counts(s: Settings) -> ParameterCounts:
    """Count a model's parameters."""
    words, positions = embedding_parameters(s)
    matrices = 2 if s.untie_embeddings_and_output_weights else 1
    embedding = words * matrices + positions
    padding = (words - s.vocab_size * s.hidden_size) * matrices
    final_norm = (1 if s.normalization == "RMSNorm" else 2) * s.hidden_size
    total = active = final_norm
    layers = [(layer_parameters(s, moe=moe), moe) for moe in moe_layers(s)]
    layers += [(prediction_parameters(s, moe=moe), moe) for moe in prediction_weights(s)]
    for layer, moe in layers:
        total += layer.split + layer.whole + layer.expert * layer.experts
        active += layer.split + layer.whole + layer.expert * (s.moe_router_topk if moe else 0)
    return ParameterCounts(embedding, total, active + embedding, padding)


def _attention(s: Settings, norm: int) -> tuple[int, int]:
    hidden = s.hidden_size
    output_bias = hidden if s.add_bias_linear else 0
    if s.multi_latent_attention:
        norm = norm if s.qk_layernorm else 0
        query_head = s.qk_head_dim + s.qk_pos_emb_head_dim
        heads = s.num_attention_heads
        if s.q_lora_rank is None:
            query, query_down = hidden * heads * query_head, 0
        else:
            query, query_down = s.q_lora_rank * heads * query_head, s.q_lora_rank * (hidden + norm)
        key_value = s.kv_lora_rank * heads * (s.qk_head_dim + s.v_head_dim)
        down = s.kv_lora_rank * (hidden + norm) + hidden * s.qk_pos_emb_head_dim
        return query + key_value + heads * s.v_head_dim * hidden, query_down + down + output_bias
    queries, keys = projection_sizes(s)
    split = hidden * (queries + 2 * keys) + queries * hidden
    if s.softmax_type == "learnable":  # an offset for each head
        split += s.num_attention_heads
    whole = (2 * norm * s.kv_channels if s.qk_layernorm else 0) + output_bias
    if s.attention_output_gate:
        split += hidden * queries
    if s.add_qkv_bias:
        split += queries + 2 * keys
    return split, whole
