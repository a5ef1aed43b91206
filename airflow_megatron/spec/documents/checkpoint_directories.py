"""Names of checkpoint directories: Megatron-LM's ``iter_0002000`` and DeepSpeed's ``global_step2000``.

Megatron-LM pads to seven digits (``megatron/training/checkpointing.py``, ``get_checkpoint_name``); DeepSpeed does not
pad (``deepspeed/runtime/engine.py``, ``save_checkpoint``). A folder holds one kind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

_NAME = re.compile(r"iter_(\d{7}|[1-9]\d{7,14})|global_step(0|[1-9]\d{0,14})", re.ASCII)


def iteration_of(name: str) -> int | None:
    """Return the iteration of a checkpoint directory.

    :param name: name of the directory, without its parents.
    :returns: the iteration, or None if the name does not have the exact form of a trainer.
    """
    match = _NAME.fullmatch(name)
    return int(match.group(1) or match.group(2)) if match else None


def directory_name(iteration: int, there: Container[str] = ()) -> str:
    """Return the name of an iteration's directory.

    :param iteration: a number of training iterations, not negative.
    :param there: names of the directories in the folder; if DeepSpeed's name is among them, it is returned.
    :raises ValueError: for a negative iteration.
    """
    if iteration < 0:
        raise ValueError(f"an iteration cannot be negative: {iteration}")
    tag = deepspeed_tag(iteration)
    return tag if tag in there else f"iter_{iteration:07d}"


def deepspeed_tag(iteration: int) -> str:
    """Return DeepSpeed's tag, and directory name, of the checkpoint of an iteration."""
    return f"global_step{iteration}"
