"""Apply the multipliers of muP and CompleteP to a model, or fold them into its weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from megatron_core_trainer.optimization.parametrization import parametrization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from megatron.core.models.gpt import GPTModel

    from megatron_core_trainer.optimization.parametrization import Parametrization

    Weights = dict[str, torch.Tensor]


def apply_multipliers(model: GPTModel, scaling: Parametrization) -> None:
    """Multiply embeddings, outputs of blocks and logits; give untied output weights the deviation of the embeddings.

    :param model: this process's share of the model, just after the initialization of its weights.
    :param scaling: its parametrization.
    """
    if model.pre_process:
        _scale_output(model.embedding, scaling.embedding)
    for layer in model.decoder.layers:
        _scale_output(layer.self_attention, scaling.residual)
        _scale_output(layer.mlp, scaling.residual)
    if not model.post_process:
        return
    if not model.share_embeddings_and_output_weights:
        # megatron-core initializes them like hidden weights.
        with torch.no_grad():
            model.output_layer.weight.mul_(scaling.outer_std / scaling.hidden_std)

    # Multiply the hidden states, which are much smaller than the logits.
    def scale_input(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0] * scaling.output, *given[1:]

    if scaling.output != 1.0:
        model.output_layer.register_forward_pre_hook(scale_input)


def _scale_output(module: torch.nn.Module, factor: float) -> None:
    def scale(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # output and bias of a block
            return tuple(None if part is None else part * factor for part in output)
        return output * factor

    if factor != 1.0:
        module.register_forward_hook(scale)


def folded_weights(weights: Weights, saved: Mapping[str, Any]) -> Weights:
    """Return the weights of an equivalent model without multipliers.

    The factor of the attention logits is applied to the query weights, or to the norm of the queries if there is one.
    Tied embedding and output weights become separate.

    :param weights: state dict of a whole (not tensor- or pipeline-parallel) local-spec GPT model.
    :param saved: the arguments saved in the checkpoint.
    """
    scaling = parametrization(saved)
    if scaling is None:
        return weights
    attention = scaling.attention * math.sqrt(saved["kv_channels"])
    result = dict(weights)
    embedding = "embedding.word_embeddings.weight"
    result["output_layer.weight"] = weights.get("output_layer.weight", weights[embedding]) * scaling.output
    for name, tensor in weights.items():
        if tensor is None:  # extra state of Transformer Engine's modules
            continue
        if name.startswith("embedding."):
            result[name] = tensor * scaling.embedding
        elif ".linear_proj." in name or ".linear_fc2." in name:
            result[name] = tensor * scaling.residual
        elif ".self_attention.q_layernorm." in name:
            result[name] = tensor * attention
        elif ".self_attention.linear_qkv." in name and not saved["qk_layernorm"]:
            result[name] = _scale_queries(tensor, saved, attention)
    return result


def _scale_queries(fused: torch.Tensor, saved: Mapping[str, Any], factor: float) -> torch.Tensor:
    """Scale the query rows; each query group has its query heads first, then one key and one value head."""
    groups = saved["num_query_groups"] if saved["group_query_attention"] else saved["num_attention_heads"]
    heads = fused.clone().view(groups, -1, saved["kv_channels"], *fused.shape[1:])
    heads[:, :-2] *= factor
    return heads.view_as(fused)
