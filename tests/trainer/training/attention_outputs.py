"""Run inside the trainer's environment: compare the trainer's attention on a CPU with megatron-core's.

One JSON line for each case: its name, whether the fused kernel ran, and the largest differences of contexts and
gradients.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))

import torch
from megatron_core_trainer import cpu_device

cpu_device.install()

from megatron.core import parallel_state  # noqa: E402 - after the device is prepared
from megatron.core.tensor_parallel import get_cuda_rng_tracker  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron_core_trainer import cpu_attention  # noqa: E402

LENGTH, BATCH, HEADS, CHANNELS = 24, 3, 4, 8


def documents() -> torch.Tensor:
    """A mask of documents that end at other positions in each sequence; True: must not be read."""
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    ends = torch.tensor([5, 11, 17])
    document = (torch.arange(LENGTH)[None, :] > ends[:, None]).long()
    return (later | (document[:, :, None] != document[:, None, :]))[:, None]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "query groups": {"config": {"num_query_groups": 2}},
    "documents": {"mask": documents()},
    "bf16": {"config": {"bf16": True, "params_dtype": torch.bfloat16}, "dtype": torch.bfloat16},
    "layer scaling": {"config": {"apply_query_key_layer_scaling": True}},
    "dropout, validation": {"config": {"attention_dropout": 0.5}, "training": False},
    "dropout, training": {"config": {"attention_dropout": 0.5}},
    "window": {"config": {"window_size": (4, 0)}},
    "softmax with an offset": {"config": {"softmax_type": "off-by-one"}},
    "all positions": {
        "kind": AttnMaskType.padding,
        "mask": torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.bool),
    },
}


def outcome(attention: type, case: dict[str, Any]) -> list[torch.Tensor]:
    """Return the context and the gradients of query, key and value."""
    dropout = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    settings = {"num_layers": 4, "hidden_size": HEADS * CHANNELS, "num_attention_heads": HEADS, **dropout}
    config = TransformerConfig(**(settings | case.get("config", {})))
    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    kind = case.get("kind", AttnMaskType.causal)
    layer = attention(config, 3, kind, "self", pg_collection=groups).train(case.get("training", True))
    generator = torch.Generator().manual_seed(7)
    heads = (HEADS, config.num_query_groups, config.num_query_groups)
    inputs = [
        torch.randn(LENGTH, BATCH, n, CHANNELS, generator=generator).to(case.get("dtype")) for n in heads
    ]
    for tensor in inputs:
        tensor.requires_grad_()
    torch.manual_seed(11)
    context = layer(*inputs, case.get("mask"))
    context.float().square().sum().backward()
    return [context.detach(), *(tensor.grad for tensor in inputs)]  # type: ignore[list-item]


parallel_state._set_global_memory_buffer()
cpu_device.install_rng_tracker()
get_cuda_rng_tracker().add("model-parallel-rng", 3)
for name, case in CASES.items():
    states = get_cuda_rng_tracker().states_.copy()
    kernel = cpu_attention.scaled_dot_product_attention
    with mock.patch.object(cpu_attention, "scaled_dot_product_attention", side_effect=kernel) as called:
        ours = outcome(cpu_attention.CpuAttention, case)
    get_cuda_rng_tracker().states_ = states
    theirs = outcome(DotProductAttention, case)
    differences = [float((a.float() - b.float()).abs().max()) for a, b in zip(ours, theirs, strict=True)]
    alike = ours[0].shape == theirs[0].shape and ours[0].is_contiguous()
    print(json.dumps({"case": name, "fused": called.called, "alike": alike, "differences": differences}))
