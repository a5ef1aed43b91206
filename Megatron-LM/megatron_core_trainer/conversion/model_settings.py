"""Model settings of a checkpoint, with the same names for every release of Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Settings that change what a model computes, and the value of a GPT without them (Megatron-LM's arguments.py and
# megatron-core's TransformerConfig, core_v0.12.0 to core_v0.19.0). An architecture requires it unless it names another.
PLAIN: dict[str, Any] = {
    "activation_func_clamp_value": None,
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "attention_output_gate": False,
    "experimental_attention_variant": None,
    "glu_linear_offset": 0.0,
    "heterogeneous_layers_config_path": None,
    "hybrid_layer_pattern": None,
    "hybrid_override_pattern": None,
    "is_hybrid_model": False,
    "linear_attention_freq": None,
    "linear_attention_type": None,
    "moe_apply_probs_on_input": False,
    "moe_expert_capacity_factor": None,
    "moe_latent_size": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_group_topk": None,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_num_groups": None,
    "moe_router_pre_softmax": False,
    "moe_router_score_function": "softmax",
    "moe_router_topk_scaling_factor": None,
    "moe_shared_expert_gate": False,
    "moe_shared_expert_intermediate_size": None,
    "mtp_num_layers": None,
    "multi_latent_attention": False,
    "no_rope_freq": None,
    "num_experts": None,
    "openai_gelu": False,
    "qk_l2_norm": False,
    "qk_layernorm": False,
    "quick_geglu": False,
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "rotary_seq_len_interpolation_factor": None,
    "softmax_scale": None,
    "softmax_type": "vanilla",
    "squared_relu": False,
    "use_mup": False,
    "use_rope_scaling": False,
    "window_size": None,
}
# Names of the same setting in other releases.
_OTHER_NAMES = {
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "norm_epsilon": "layernorm_epsilon",
    "num_moe_experts": "num_experts",
}
# This trainer always saves it; upstream never does.
_OWN_ARGUMENT = "small_init"
_DEFAULTS: dict[str, Any] = {
    "add_qkv_bias": False,
    "bias_gelu_fusion": True,
    "bf16": False,
    "fp16": False,
    "init_method_std": 0.02,
    "moe_layer_freq": 1,
    "rope_scaling_factor": 8.0,
    "rotary_base": 10000,
}


def model_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the completed arguments of a training run.

    ``num_query_groups`` is the number of key and value heads with and without grouped-query attention,
    ``dense_layers`` has the numbers of the layers without experts, and ``of_this_trainer`` is true for checkpoints of
    this trainer. Settings that a release does not have get their plain value.

    :param saved: the arguments saved in the checkpoint, by this trainer or by upstream Megatron-LM.
    """
    renamed = {new: saved[old] for old, new in _OTHER_NAMES.items() if old in saved}
    settings = {**PLAIN, **_DEFAULTS, **renamed, **saved}
    # core_v0.16 and later have both arguments, and one of them may be unset.
    settings |= {new: value for new, value in renamed.items() if settings[new] is None}
    if not settings.get("group_query_attention", True) or settings.get("num_query_groups") is None:
        settings["num_query_groups"] = settings["num_attention_heads"]
    settings |= _balancing(settings)
    settings["dense_layers"] = _dense_layers(settings)
    settings["of_this_trainer"] = _OWN_ARGUMENT in saved
    return settings


def _balancing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have the effect of ``moe_router_load_balancing_type`` outside training.

    Only ``sinkhorn`` has one: the weight of a token's only expert is a sigmoid, and those of several experts are those
    of a softmax over all (megatron-core's ``TopKRouter.sinkhorn_load_balancing``).
    """
    if not settings["num_experts"] or settings["moe_router_load_balancing_type"] != "sinkhorn":
        return {"moe_router_load_balancing_type": "aux_loss"}
    if settings.get("moe_router_topk") == 1:
        return {}
    return {"moe_router_load_balancing_type": "aux_loss", "moe_router_pre_softmax": True}


def _dense_layers(settings: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the layers without experts; ``moe_layer_freq`` is an interval or a list of 0 and 1."""
    layers, pattern = range(settings["num_layers"]), settings["moe_layer_freq"]
    if not settings["num_experts"]:
        return list(layers)
    if isinstance(pattern, int):
        return [layer for layer in layers if layer % pattern]
    return [layer for layer in layers if not pattern[layer]]
