"""Batch sizes that grow during a training, and the number of iterations for a number of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from megatron.core import num_microbatches_calculator as calculator

if TYPE_CHECKING:
    import argparse


def start(args: argparse.Namespace) -> None:
    """Initialize megatron-core's microbatch calculator, and set ``train_iters`` if the length is given in samples.

    :param args: complete arguments.
    """
    calculator.init_num_microbatches_calculator(
        torch.distributed.get_rank(),
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
    )
    if args.train_samples is not None:
        args.train_iters = _iterations(args)


def at(consumed: int) -> tuple[int, int]:
    """Return the samples and microbatches of the batch that follows after a number of samples."""
    calculator.update_num_microbatches(consumed, consistency_check=False)
    return calculator.get_current_global_batch_size(), calculator.get_num_microbatches()


def _iterations(args: argparse.Namespace) -> int:
    """Count iterations as upstream's ``update_train_iters`` does: an incomplete last batch is dropped."""
    iterations = consumed = 0
    if args.rampup_batch_size is not None:
        while consumed <= args.rampup_batch_size[2] and consumed <= args.train_samples:
            consumed += at(consumed)[0]
            iterations += 1
    return int(iterations + max(args.train_samples - consumed, 0) // args.global_batch_size)
