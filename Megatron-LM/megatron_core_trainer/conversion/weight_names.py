"""Names of weights in models of megatron-core's own layers, whichever layers a model was trained with."""

from __future__ import annotations

import re

# Transformer Engine keeps a norm with the projection that follows it.
_NORMS = {
    ".self_attention.linear_qkv.layer_norm_": ".input_layernorm.",
    ".mlp.linear_fc1.layer_norm_": ".pre_mlp_layernorm.",
}
# Its grouped experts are numbered at the end: mlp.experts.linear_fc1.weight3.
_GROUPED = re.compile(r"(.*\.mlp\.experts\.)(linear_fc[12])\.(weight|bias)(\d+)\Z")


def local_name(name: str) -> str:
    """Return the name that a weight has in a model of megatron-core's own layers.

    :param name: its name there, or in a model of Transformer Engine's layers.
    """
    for theirs, ours in _NORMS.items():
        name = name.replace(theirs, ours)
    return _GROUPED.sub(r"\1local_experts.\4.\2.\3", name)
