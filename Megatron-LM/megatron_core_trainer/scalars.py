"""Writers of a training's scalars: TensorBoard, and Weights & Biases with upstream's names and steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import argparse


class Scalars:
    """Writes each value to TensorBoard, and to a run of Weights & Biases.

    :param args: complete arguments, with ``tensorboard_dir``.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(log_dir=args.tensorboard_dir, max_queue=1000)
        self._run = _weights_and_biases(args) if args.wandb_project else None

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write a value.

        :param step: iteration, or samples if the name ends in ``vs samples``. W&B does not get the latter, because its
            steps must increase.
        """
        self._board.add_scalar(name, value, step)
        if self._run is not None and not name.endswith(" vs samples"):
            self._run.log({name: value}, step)

    def close(self) -> None:
        """Flush and close the writers."""
        self._board.close()
        if self._run is not None:
            self._run.finish()


def open_scalars(args: argparse.Namespace) -> Scalars | None:
    """Return the writer of the last process; None in other processes and without ``--tensorboard-dir``."""
    if not args.tensorboard_dir or torch.distributed.get_rank() != args.world_size - 1:
        return None
    return Scalars(args)


def _weights_and_biases(args: argparse.Namespace) -> Any:
    import wandb

    folder = Path(args.wandb_save_dir or f"{args.save}/wandb")
    folder.mkdir(parents=True, exist_ok=True)
    entity = {"entity": args.wandb_entity} if args.wandb_entity else {}
    return wandb.init(
        dir=str(folder), name=args.wandb_exp_name, project=args.wandb_project, config=vars(args), **entity
    )
