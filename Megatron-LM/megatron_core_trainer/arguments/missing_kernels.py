"""Fusions whose CUDA kernels come from Apex, which is not on PyPI."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def switch_off_missing_kernels(args: argparse.Namespace) -> list[str]:
    """Switch off the fusions that this machine has no kernels for, and return their flags.

    megatron-core fails where it needs such a kernel. The output layer needs Apex also with Transformer Engine.

    :param args: complete arguments.
    """
    flags = []
    local = args.transformer_impl == "local"
    if args.gradient_accumulation_fusion and _is_missing("fused_weight_gradient_mlp_cuda"):
        args.gradient_accumulation_fusion = False
        flags.append("--no-gradient-accumulation-fusion")
    if local and args.masked_softmax_fusion and _is_missing("scaled_masked_softmax_cuda"):
        args.masked_softmax_fusion = False
        flags.append("--no-masked-softmax-fusion")
    if local and not args.no_persist_layer_norm and _is_missing("apex"):
        args.no_persist_layer_norm = True
        flags.append("--no-persist-layer-norm")
    return flags


def _is_missing(module: str) -> bool:
    return importlib.util.find_spec(module) is None
