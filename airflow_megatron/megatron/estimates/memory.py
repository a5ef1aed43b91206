"""Memory of a GPU of each pipeline stage.

Weights, gradients and optimizer state are counted; activations follow Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (2022), table 2, computed per tensor, so that gated units, grouped queries,
experts and missing dropout are counted correctly. Three terms are measured rather than derived (:data:`CONTEXT_BYTES`,
:data:`RING_BYTES`, :data:`ALLOCATOR_SLACK`); ``benchmarks/estimates.py`` compares the sum with reported runs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.estimates.parameters import (
    embedding_parameters,
    expert_input,
    layer_parameters,
    mlp_matrices,
    moe_layers,
    padded_vocabulary,
    prediction_layers,
    prediction_parameters,
    prediction_weights,
    projection_sizes,
)

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.settings import Settings

#: CUDA context, cuBLAS workspace and communicators of a process that trains.
CONTEXT_BYTES: Final = 0.7e9
#: Buffers of ring attention, per doubling of the context-parallel size.
RING_BYTES: Final = 2.0e9
#: Memory of PyTorch's caching allocator in addition to the live activations.
ALLOCATOR_SLACK: Final = 0.05
_SHARDED_WEIGHTS: Final = "optim_grads_params"
_SHARDED_GRADIENTS: Final = ("optim_grads", "optim_grads_params")


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one GPU of a pipeline stage, at the peak of the backward pass.

    :param weights: model parameters in the training format
    :param gradients: gradient buffers
    :param optimizer: main parameters and moments
    :param activations: activations of the microbatches in flight
    :param logits: output of the last stage and its loss
    :param overhead: context, communication buffers, allocator
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    overhead: float

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))

    def to_json(self) -> dict[str, float]:
        """Return the memory as a JSON object, in bytes."""
        return asdict(self) | {"total": self.total}


def memory_per_stage(s: Settings) -> tuple[StageMemory, ...]:
    """Estimate the memory of a GPU of each pipeline stage, first stage first."""
    layers, predictions = _layers_of_stages(s), _predictions_of_stages(s)
    return tuple(
        _stage(s, layers[rank], predictions[rank], rank) for rank in range(s.pipeline_model_parallel_size)
    )


def _stage(s: Settings, layers: list[bool], predictions: list[bool], rank: int) -> StageMemory:
    last = rank == s.pipeline_model_parallel_size - 1
    dense, expert = _stage_parameters(s, layers, predictions, rank=rank, last=last)
    weights = gradients = optimizer = 0.0
    replicas = s.data_parallel_size * s.context_parallel_size
    pipeline_gpus = s.world_size // s.pipeline_model_parallel_size
    expert_replicas = max(pipeline_gpus // (s.expert_tensor_parallel_size * s.expert_model_parallel_size), 1)
    for count, copies in ((dense, replicas), (expert, expert_replicas)):
        weight, gradient, state = _bytes_per_parameter(s, copies)
        weights += count * weight
        gradients += count * gradient
        optimizer += count * state
    activations = _activations(s, layers, predictions, rank)
    logits = _logits(s) if last else 0.0
    ring = RING_BYTES * math.log2(s.context_parallel_size)
    overhead = CONTEXT_BYTES + ring + ALLOCATOR_SLACK * (activations + logits)
    return StageMemory(weights, gradients, optimizer, activations, logits, overhead)


def _layers_of_stages(s: Settings) -> list[list[bool]]:
    """Distribute the layers (True: experts) over the stages as upstream does."""
    kinds, stages = moe_layers(s), s.pipeline_model_parallel_size
    if s.pipeline_layout is not None:
        counts = [sum(part.count("t") for part in s.pipeline_layout[rank::stages]) for rank in range(stages)]
    else:
        counts = _even_counts(s, stages)
    spread, start = [], 0
    for count in counts:
        spread.append(kinds[start : start + count])
        start += count
    return spread


def _predictions_of_stages(s: Settings) -> list[list[bool]]:
    """Distribute the layers of multi-token prediction: to the last stage, or by the layout."""
    kinds, stages = prediction_layers(s), s.pipeline_model_parallel_size
    if s.pipeline_layout is None:
        return [[]] * (stages - 1) + [kinds]
    return [
        kinds if any("m" in part for part in s.pipeline_layout[rank::stages]) else []
        for rank in range(stages)
    ]


def _even_counts(s: Settings, stages: int) -> list[int]:
    first, last = s.decoder_first_pipeline_num_layers, s.decoder_last_pipeline_num_layers
    if stages == 1:
        return [s.num_layers]
    if first is not None or last is not None:
        middle = stages - (first is not None) - (last is not None)
        between = (s.num_layers - (first or 0) - (last or 0)) // middle if middle else 0
        counts = [between] * stages
        counts[0] = between if first is None else first
        counts[-1] = between if last is None else last
        return counts
    counts = [s.layers_to_split // stages] * stages
    counts[0] -= bool(s.account_for_embedding_in_pipeline_split)
    counts[-1] -= bool(s.account_for_loss_in_pipeline_split)
    return counts


def _stage_parameters(
    s: Settings, layers: list[bool], predictions: list[bool], *, rank: int, last: bool
) -> tuple[float, float]:
    """Return the parameters on one GPU of a stage: of the experts, and all others."""
    tensor = s.tensor_model_parallel_size
    words, positions = embedding_parameters(s)
    dense = expert = 0.0
    counts = [layer_parameters(s, moe=moe) for moe in layers]
    if predictions:
        counts += [prediction_parameters(s, moe=moe) for moe in prediction_weights(s)]
    for layer in counts:
        dense += layer.split / tensor + layer.whole
        expert += (
            layer.expert * layer.experts / (s.expert_model_parallel_size * s.expert_tensor_parallel_size)
        )
    if rank == 0:
        dense += words / tensor + positions
    elif predictions and (s.untie_embeddings_and_output_weights or not last):
        dense += words / tensor  # they embed the tokens that they predict from
    # The last stage has an output layer: its own, or (with several stages) a copy of the embedding.
    if last and (s.untie_embeddings_and_output_weights or s.pipeline_model_parallel_size > 1):
        dense += words / tensor
    if last:
        dense += (1 if s.normalization == "RMSNorm" else 2) * s.hidden_size
    return dense, expert


def _bytes_per_parameter(s: Settings, replicas: int) -> tuple[float, float, float]:
    """Return the bytes of weight, gradient and optimizer state of a parameter on one GPU."""
    moments = 4 if s.optimizer == "sgd" else 8
    if not (s.fp16 or s.bf16):
        weight, gradient, state = 4.0, 4.0, float(moments)
    else:
        # fp16 gradients stay in fp16; for bf16 upstream accumulates them in fp32 by default.
        weight, state = 2.0, 4.0 + moments
        gradient = (
            4.0 if s.accumulate_allreduce_grads_in_fp32 or (s.bf16 and not s.grad_reduce_in_bf16) else 2.0
        )
    if s.use_torch_fsdp2:
        return weight / replicas, gradient / replicas, state / replicas
    if s.use_megatron_fsdp:
        strategy = s.data_parallel_sharding_strategy
        return (
            weight / (replicas if strategy == _SHARDED_WEIGHTS else 1),
            gradient / (replicas if strategy in _SHARDED_GRADIENTS else 1),
            state / (1 if strategy == "no_shard" else replicas),
        )
    return weight, gradient, state / (replicas if s.use_distributed_optimizer else 1)


def _tokens(s: Settings) -> float:
    """Return the tokens of a microbatch on one GPU."""
    return float(s.micro_batch_size * s.seq_length / s.context_parallel_size)


def _number_bytes(s: Settings) -> int:
    return 2 if s.fp16 or s.bf16 else 4


def _fused_attention(s: Settings) -> bool:
    return bool(
        s.transformer_impl == "transformer_engine" and s.attention_backend not in ("unfused", "local")
    )


def _recomputed_modules(s: Settings) -> set[str]:
    return set(s.recompute_modules or ()) if s.recompute_granularity == "selective" else set()


def _layer_activations(s: Settings, *, moe: bool) -> float:
    """Return the bytes on one GPU for the backward pass of one layer and one microbatch."""
    size, tokens = _number_bytes(s), _tokens(s)
    tensor = s.tensor_model_parallel_size
    outside = tensor if s.sequence_parallel else 1  # divisor of tensors outside of the split regions
    recomputed = _recomputed_modules(s)
    queries, keys = projection_sizes(s)
    dropout_mask = s.hidden_size * (1 if s.hidden_dropout else 0)

    norms = 2 * size * s.hidden_size + (0 if "layernorm" in recomputed else 2 * size * s.hidden_size)
    held = tokens * (norms + 2 * dropout_mask) / outside
    held += tokens * size * (2 * queries + 2 * keys) / tensor
    if not _fused_attention(s) and "core_attn" not in recomputed:
        scores = s.num_attention_heads * s.seq_length
        held += tokens * scores * (2 * size + (1 if s.attention_dropout else 0)) / tensor
    matrices = mlp_matrices(s)
    if not moe:
        dense = 0 if "mlp" in recomputed else matrices * s.ffn_hidden_size
        return float(held + tokens * size * dense / tensor)
    if "moe" in recomputed:
        return float(held)
    routed = tokens * s.moe_router_topk * size
    held += routed * 2 * expert_input(s) / outside  # tokens as sent to and returned by the experts
    held += routed * matrices * s.moe_ffn_hidden_size / s.expert_tensor_parallel_size
    shared = matrices * (s.moe_shared_expert_intermediate_size or 0)
    return float(held + tokens * size * shared / tensor)


def _prediction_activations(s: Settings, *, moe: bool) -> float:
    """Return the bytes of a layer of multi-token prediction: a layer, two inputs with norms, the projection's
    input.
    """
    outside = s.tensor_model_parallel_size if s.sequence_parallel else 1
    inputs: float = _tokens(s) * _number_bytes(s) * 6 * s.hidden_size / outside
    return _layer_activations(s, moe=moe) + inputs


def _activations(s: Settings, layers: list[bool], predictions: list[bool], rank: int) -> float:
    per_layer = [_layer_activations(s, moe=moe) for moe in layers]
    per_layer += [_prediction_activations(s, moe=moe) for moe in predictions]
    held = sum(per_layer)
    working = 0.0
    if s.recompute_granularity == "full" and per_layer:
        outside = s.tensor_model_parallel_size if s.sequence_parallel or s.distribute_saved_activations else 1
        kept = _tokens(s) * _number_bytes(s) * s.hidden_size / outside
        chunk = max(min(s.recompute_num_layers, len(per_layer)), 1)
        working = max(per_layer)
        if s.recompute_method == "uniform":
            held = kept * math.ceil(len(per_layer) / chunk)
            working *= chunk
        else:
            held = kept * chunk + sum(per_layer[chunk:])
    if rank == 0:
        embedding = _number_bytes(s) * s.hidden_size + (s.hidden_size if s.hidden_dropout else 0)
        held += _tokens(s) * embedding / (s.tensor_model_parallel_size if s.sequence_parallel else 1)
    return held * _microbatches_in_flight(s, rank) + working


def _microbatches_in_flight(s: Settings, rank: int) -> float:
    """Return the number of microbatches whose activations a stage keeps (1F1B, interleaved with virtual stages)."""
    stages = s.pipeline_model_parallel_size
    count = max(s.global_batch_size // (s.micro_batch_size * s.data_parallel_size), 1)
    virtual = s.virtual_pipeline_model_parallel_size
    if virtual is None:
        return float(min(count, stages - rank))
    chunks = (stages - rank - 1) * 2 + (virtual - 1) * stages + 1
    return float(min(count * virtual, chunks) / virtual)


def _logits(s: Settings) -> float:
    """Return the bytes of logits in the training format and in fp32, the softmax for backward, and their gradient."""
    size = _number_bytes(s)
    per_logit = size + 4 + 4 if not s.cross_entropy_loss_fusion else size + 4
    outputs = 1 + (s.mtp_num_layers or 0)
    return float(_tokens(s) * outputs * padded_vocabulary(s) * per_logit / s.tensor_model_parallel_size)
