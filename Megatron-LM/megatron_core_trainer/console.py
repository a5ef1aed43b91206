"""Lines of the training log, exactly as upstream Megatron-LM core_v0.16.1 prints them.

Sensors and result tables parse these lines, so their text is an interface:
``megatron/training/training.py`` (iteration line, markers, validation) and ``megatron/training/checkpointing.py``.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_rank = 0
_world_size = 1


def set_rank(rank: int, world_size: int) -> None:
    """Set the rank of this process; before this call a process behaves as the only one.

    :param rank: rank of this process.
    :param world_size: number of processes.
    """
    global _rank, _world_size
    _rank, _world_size = rank, world_size


def print_rank_0(text: str) -> None:
    """Print on the first rank.

    :param text: the line.
    """
    if _rank == 0:
        print(text, flush=True)


def print_rank_last(text: str) -> None:
    """Print on the last rank, which holds the loss when the pipeline has several stages.

    :param text: the line.
    """
    if _rank == _world_size - 1:
        print(text, flush=True)


def timestamp() -> str:
    """Return the time in upstream's format, in microseconds."""
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")


def print_marker(text: str) -> None:
    """Print ``[text] datetime: ...`` on the first rank.

    :param text: the event, for example ``after training is done``.
    """
    print_rank_0(f"[{text}] datetime: {timestamp()} ")


def iteration_line(
    *,
    iteration: int,
    train_iters: int,
    consumed_samples: int,
    seconds: float,
    throughput: float | None,
    learning_rate: float,
    global_batch_size: int,
    losses: Mapping[str, float],
    loss_scale: float,
    grad_norm: float | None,
    num_zeros: float | None,
    params_norm: float | None,
    skipped: int,
    nan: int,
) -> str:
    """Format the line that reports an iteration.

    :param iteration: iterations done.
    :param train_iters: total number of iterations.
    :param consumed_samples: sequences seen since the start of training.
    :param seconds: mean time of an iteration.
    :param throughput: TFLOP/s per process, or None to leave the field out.
    :param learning_rate: the rate after the step.
    :param global_batch_size: sequences per iteration.
    :param losses: mean losses; one that is not positive (or NaN) is left out, as upstream does.
    :param loss_scale: 1.0 unless fp16.
    :param grad_norm: norm before clipping.
    :param num_zeros: zeros among the gradients, or None to leave the field out.
    :param params_norm: norm of the parameters, or None to leave the field out.
    :param skipped: iterations without an update.
    :param nan: iterations whose loss was not finite.
    """
    fields = [
        f" [{timestamp()}] iteration {iteration:8d}/{train_iters:8d}",
        f"consumed samples: {consumed_samples:12d}",
        f"elapsed time per iteration (ms): {seconds * 1000.0:.1f}",
    ]
    if throughput is not None:
        fields.append(f"throughput per GPU (TFLOP/s/GPU): {throughput:.1f}")
    fields += [f"learning rate: {learning_rate:.6E}", f"global batch size: {global_batch_size:5d}"]
    fields += [f"{name}: {value:.6E}" for name, value in losses.items() if value > 0.0]
    fields.append(f"loss scale: {loss_scale:.1f}")
    if grad_norm is not None:
        fields.append(f"grad norm: {grad_norm:.3f}")
    if num_zeros is not None:
        fields.append(f"num zeros: {num_zeros}")
    if params_norm is not None:
        fields.append(f"params norm: {params_norm:.3f}")
    fields += [f"number of skipped iterations: {skipped:3d}", f"number of nan iterations: {nan:3d}"]
    return " | ".join(fields) + " |"


def validation_lines(prefix: str, losses: Mapping[str, float]) -> str:
    """Format a validation result between two rules.

    :param prefix: ``iteration 10`` or ``iteration 20 on test set``.
    :param losses: mean losses; the perplexity is exp(loss), with the loss capped at 20.
    """
    text = f" validation loss at {prefix} | "
    for name, value in losses.items():
        text += f"{name} value: {value:.6E} | {name} PPL: {math.exp(min(20.0, value)):.6E} | "
    rule = "-" * (len(text) + 1)
    return f"{rule}\n{text}\n{rule}"
