"""OpenSci models: Qwen3 with biases also in the feed-forward networks. Copied beside the `config.json` of the model."""

from __future__ import annotations

from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM


class OpensciConfig(Qwen3Config):
    """Configuration of Qwen3, and whether the feed-forward networks have biases."""

    model_type = "opensci"
    mlp_bias: bool = False


class OpensciForCausalLM(Qwen3ForCausalLM):
    """A causal language model.

    :param config: its configuration.
    """

    config_class = OpensciConfig

    def __init__(self, config: OpensciConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers if config.mlp_bias else ():
            for name in ("gate_proj", "up_proj", "down_proj"):
                plain = getattr(layer.mlp, name)
                setattr(layer.mlp, name, nn.Linear(plain.in_features, plain.out_features))
        self.post_init()
