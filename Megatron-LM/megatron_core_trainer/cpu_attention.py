"""Causal attention on a CPU with PyTorch's fused kernel.

megatron-core's ``DotProductAttention`` without its CUDA kernels writes the scores of all pairs of positions to memory
several times, a sixth of an iteration of the quick start's larger model. The fused kernel computes the same attention
block by block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer.spec_utils import ModuleSpec


class CpuAttention(DotProductAttention):  # type: ignore[misc]
    """``DotProductAttention`` that uses the fused kernel wherever the kernel computes the same."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        **settings: Any,
    ) -> torch.Tensor:
        """Return the context of each position, shape [sequence, batch, hidden].

        :param query: shape [sequence, batch, heads, channels].
        :param key: shape [sequence, batch, query groups, channels].
        :param value: shape [sequence, batch, query groups, channels].
        :param attention_mask: True where a position must not be read, shape [batch or 1, 1, sequence, sequence];
            None for the causal mask.
        """
        if not self._kernel_computes_this(query, key):
            return super().forward(query, key, value, attention_mask, *args, **settings)
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, dim=2), value.repeat_interleave(repeats, dim=2)
        # [sequence, batch, heads, channels] -> [batch, heads, sequence, channels]
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        context = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if attention_mask is None else ~attention_mask,
            is_causal=attention_mask is None,
            # with --apply-query-key-layer-scaling the scores are divided by the layer's number, then multiplied
            scale=self.softmax_scale * (self.scale_mask_softmax.scale or 1.0),
        )
        return context.permute(2, 0, 1, 3).flatten(start_dim=2)

    def _kernel_computes_this(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        # Dropout would draw other random numbers.
        return (
            self.attn_mask_type == AttnMaskType.causal
            and query.shape[0] == key.shape[0]
            and self.softmax_offset is None
            and self.scale_mask_softmax.window_size is None
            and not (self.training and self.attention_dropout.p)
        )


def use_fused_kernel(layer: ModuleSpec) -> None:
    """Replace the attention of a layer.

    :param layer: a layer of megatron-core's local implementation.
    """
    layer.submodules.self_attention.submodules.core_attention = CpuAttention
