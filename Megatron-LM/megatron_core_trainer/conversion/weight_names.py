"""Translate names of weights to those in models of megatron-core's own layers."""

from __future__ import annotations

import re

# Transformer Engine stores a norm together with the projection that follows it.
_NORMS = {
    ".self_attention.linear_qkv.layer_norm_": ".input_layernorm.",
    ".mlp.linear_fc1.layer_norm_": ".pre_mlp_layernorm.",
}
# Its grouped experts have their number at the end: mlp.experts.linear_fc1.weight3.
_GROUPED = re.compile(r"(.*\.mlp\.experts\.)(linear_fc[12])\.(weight|bias)(\d+)\Z")


def local_name(name: str) -> str:
    """Return the name of a weight in a model of megatron-core's own layers.

    :param name: that name, or the name in a model of Transformer Engine's layers.
    """
    for theirs, ours in _NORMS.items():
        name = name.replace(theirs, ours)
    return _GROUPED.sub(r"\1local_experts.\4.\2.\3", name)
