"""A Megatron GPT model as a Hugging Face Llama model: which ones can be, and how the weights map.

RMSNorm, SwiGLU and rotary positions make the same function of the same weights in both. Megatron keeps query, key and
value of a query group together in one matrix, and gate and up projection in another; Llama keeps them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    Weights = dict[str, torch.Tensor]


class NotLlamaError(Exception):
    """A model that ``LlamaForCausalLM`` cannot express; the text says why."""


def require_llama(saved: Mapping[str, Any]) -> None:
    """Refuse a model that has no Llama equivalent.

    :param saved: the arguments saved in the checkpoint, by this trainer or by upstream Megatron-LM.
    :raises NotLlamaError: naming every setting in the way.
    """
    reasons = [
        text
        for is_so, text in (
            (
                saved.get("normalization") != "RMSNorm",
                f"normalization is {saved.get('normalization')}, not RMSNorm",
            ),
            (not saved.get("swiglu"), "the activation is not SwiGLU (--swiglu)"),
            (
                saved.get("position_embedding_type") != "rope",
                f"positions are {saved.get('position_embedding_type')}, not rope",
            ),
            (
                saved.get("rotary_percent", 1.0) != 1.0,
                f"rotary percent is {saved.get('rotary_percent')}, not 1.0",
            ),
            (
                bool(saved.get("rotary_interleaved")),
                "rotary dimensions are interleaved (--rotary-interleaved)",
            ),
            (bool(saved.get("use_rope_scaling")), "rotary frequencies are scaled (--use-rope-scaling)"),
            (bool(saved.get("qk_layernorm")), "queries and keys are normalised (--qk-layernorm)"),
            (bool(saved.get("apply_layernorm_1p")), "norm weights are offset by one (--apply-layernorm-1p)"),
            (bool(saved.get("num_experts")), "the model is a mixture of experts (--num-experts)"),
            (
                bool(saved.get("multi_latent_attention")),
                "attention is multi-latent (--multi-latent-attention)",
            ),
            (
                saved.get("mtp_num_layers") is not None,
                "there are multi-token prediction layers (--mtp-num-layers)",
            ),
        )
        if is_so
    ]
    if reasons:
        raise NotLlamaError("LlamaForCausalLM cannot express this model: " + "; ".join(reasons))


def llama_config(saved: Mapping[str, Any], *, vocab_size: int, eos: int, dtype: str) -> dict[str, Any]:
    """Return the keyword arguments of ``LlamaConfig``, every one from the checkpoint.

    :param saved: the arguments saved in the checkpoint.
    :param vocab_size: rows of the embedding that are kept.
    :param eos: end-of-document token; Megatron starts documents after it, so it also begins a text.
    :param dtype: ``float32`` or ``bfloat16``.
    """
    return {
        "vocab_size": vocab_size,
        "hidden_size": saved["hidden_size"],
        "intermediate_size": saved["ffn_hidden_size"],
        "num_hidden_layers": saved["num_layers"],
        "num_attention_heads": saved["num_attention_heads"],
        "num_key_value_heads": query_groups(saved),
        "head_dim": saved["kv_channels"],
        "hidden_act": "silu",
        "max_position_embeddings": saved["max_position_embeddings"],
        "initializer_range": saved.get("init_method_std", 0.02),
        "rms_norm_eps": norm_epsilon(saved),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(saved["rotary_base"])},
        "attention_bias": has_attention_bias(saved),
        "mlp_bias": bool(saved["add_bias_linear"]),
        "tie_word_embeddings": not saved["untie_embeddings_and_output_weights"],
        "bos_token_id": eos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "dtype": dtype,
    }


def query_groups(saved: Mapping[str, Any]) -> int:
    """Return the number of key/value heads.

    :param saved: the arguments saved in the checkpoint.
    """
    return int(saved["num_query_groups"] if saved["group_query_attention"] else saved["num_attention_heads"])


def norm_epsilon(saved: Mapping[str, Any]) -> float:
    """Return the norm's epsilon; upstream calls it ``norm_epsilon`` or, from 0.16, ``layernorm_epsilon``.

    :param saved: the arguments saved in the checkpoint.
    """
    return float(saved["layernorm_epsilon"] if "layernorm_epsilon" in saved else saved["norm_epsilon"])


def has_attention_bias(saved: Mapping[str, Any]) -> bool:
    """Whether any attention projection has a bias.

    :param saved: the arguments saved in the checkpoint.
    """
    return bool(saved["add_bias_linear"] or saved.get("add_qkv_bias"))


def llama_weights(weights: Mapping[str, torch.Tensor], saved: Mapping[str, Any], vocab_size: int) -> Weights:
    """Rename and split the weights of a whole (not tensor- or pipeline-parallel) local-spec GPT model.

    :param weights: its state dict.
    :param saved: the arguments saved in the checkpoint.
    :param vocab_size: rows of the embedding to keep; the rest is padding.
    """
    result: Weights = {
        "model.embed_tokens.weight": weights["embedding.word_embeddings.weight"][:vocab_size],
        "model.norm.weight": weights["decoder.final_layernorm.weight"],
    }
    if saved["untie_embeddings_and_output_weights"]:
        result["lm_head.weight"] = weights["output_layer.weight"][:vocab_size]
    for layer in range(saved["num_layers"]):
        ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        result[f"{theirs}.input_layernorm.weight"] = weights[f"{ours}.input_layernorm.weight"]
        result[f"{theirs}.post_attention_layernorm.weight"] = weights[f"{ours}.pre_mlp_layernorm.weight"]
        _attention(weights, saved, f"{ours}.self_attention", f"{theirs}.self_attn", result)
        _feed_forward(weights, f"{ours}.mlp", f"{theirs}.mlp", result)
    return {name: tensor.contiguous().clone() for name, tensor in result.items()}


def _attention(
    weights: Mapping[str, torch.Tensor], saved: Mapping[str, Any], ours: str, theirs: str, result: Weights
) -> None:
    groups, width = query_groups(saved), saved["kv_channels"]
    for kind in ("weight", "bias"):
        fused = weights.get(f"{ours}.linear_qkv.{kind}")
        if fused is None:
            continue
        rest = fused.shape[1:]
        # Rows: per query group its query heads, then one key head, then one value head.
        heads = fused.reshape(groups, -1, width, *rest)
        result[f"{theirs}.q_proj.{kind}"] = heads[:, :-2].reshape(-1, *rest)
        result[f"{theirs}.k_proj.{kind}"] = heads[:, -2].reshape(-1, *rest)
        result[f"{theirs}.v_proj.{kind}"] = heads[:, -1].reshape(-1, *rest)
    output = weights[f"{ours}.linear_proj.weight"]
    result[f"{theirs}.o_proj.weight"] = output
    if has_attention_bias(saved):
        # Llama has all four biases or none: with --add-qkv-bias alone the output projection gets a zero one.
        bias = weights.get(f"{ours}.linear_proj.bias")
        result[f"{theirs}.o_proj.bias"] = output.new_zeros(output.shape[0]) if bias is None else bias


def _feed_forward(weights: Mapping[str, torch.Tensor], ours: str, theirs: str, result: Weights) -> None:
    for kind in ("weight", "bias"):
        fused = weights.get(f"{ours}.linear_fc1.{kind}")
        if fused is None:
            continue
        gate, up = fused.chunk(2, dim=0)
        result[f"{theirs}.gate_proj.{kind}"] = gate
        result[f"{theirs}.up_proj.{kind}"] = up
        result[f"{theirs}.down_proj.{kind}"] = weights[f"{ours}.linear_fc2.{kind}"]
