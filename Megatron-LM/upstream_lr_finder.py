#!/usr/bin/env python3
"""Search for a learning rate with upstream's unchanged training script, which has no such search.

    python upstream_lr_finder.py CHECKOUT/pretrain_gpt.py --lr-finder-save DIR ARGUMENT…

The script trains with the other arguments while the learning rate rises exponentially over ``--train-iters``. The
search has the options of ``lr_finder.py sweep`` (``--lr-finder-start-lr`` …) and writes the same files to
``DIR/lr_finder``. It does not change validation and checkpoints: give ``--eval-iters 0`` and no ``--save``. ``--lr``,
which upstream requires, only determines the ratios between the rates of parameter groups (``--decoupled-lr``). Without
a GPU, ``upstream_on_cpu.py`` precedes this program.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.distributed import max_over_ranks
from megatron_core_trainer.optimization import lr_finder_options
from megatron_core_trainer.optimization.lr_curve import LossCurve, write_search
from megatron_core_trainer.optimization.schedules import ExponentialSweep

if TYPE_CHECKING:
    import argparse

_NAME = "upstream_lr_finder.py"
_LOSS = "lm loss"


class Search:
    """A learning-rate search that upstream's training loop calls in each step.

    :param options: options of the search; ``lr_finder_save`` is the output folder.
    :param arguments: returns upstream's arguments, after upstream has parsed them.
    """

    def __init__(self, options: argparse.Namespace, arguments: Any) -> None:
        self._options, self._arguments = options, arguments
        self._curve = LossCurve(options.lr_finder_smoothing, options.lr_finder_stop_factor)
        self._iterations = 0
        self.stopped = False

    def rate(self, samples: float) -> float:
        """Return the learning rate after a number of sequences.

        :param samples: the number of sequences in upstream's schedule.
        """
        args, options = self._arguments(), self._options
        steps = max(1, args.train_iters - 1) * args.global_batch_size
        return ExponentialSweep(options.lr_finder_start_lr, options.lr_finder_end_lr, steps).rate(
            samples, high=0.0, low=0.0
        )

    def group_rate(self, scheduler: Any, group: dict[str, Any]) -> float:
        """Return the learning rate of a parameter group; the ratios between groups are those of the command line.

        :param scheduler: upstream's ``OptimizerParamScheduler``.
        :param group: the group.
        """
        own = group.get("max_lr")
        relation = own / scheduler.max_lr if own and scheduler.max_lr else 1.0
        return self.rate(scheduler.num_steps) * relation

    def add(self, rate: float, losses: dict[str, Any]) -> None:
        """Record the losses of an iteration, and agree with the other ranks whether to stop.

        :param rate: the learning rate of its step.
        :param losses: losses by name; empty on ranks without the last pipeline stage.
        """
        self._iterations += 1
        loss = losses.get(_LOSS, next(iter(losses.values()), None))
        stop = loss is not None and self._curve.add(rate, float(loss))
        self.stopped = bool(max_over_ranks(float(stop))[0])

    def write(self, *, last_rank: bool) -> None:
        """Write the files of the search.

        :param last_rank: whether this process is the last one, which has the losses.
        :raises SystemExit: if the training ended before the search, for example after a signal
        """
        args = self._arguments()
        if not self.stopped and self._iterations < args.train_iters:
            raise SystemExit(
                f"{_NAME}: error: the search ended after {self._iterations} of {args.train_iters} iterations "
                "and suggests no learning rate"
            )
        if last_rank:
            about = {
                "optimizer": args.optimizer,
                "iterations": self._iterations,
                "stopped_early": self.stopped,
            }
            write_search(Path(self._options.lr_finder_save), self._curve, about)


def install(search: Search, training: Any, scheduler: Any) -> None:
    """Patch upstream so that a search sets the learning rates, reads the losses and can end the training.

    :param search: the search.
    :param training: the module ``megatron.training.training``.
    :param scheduler: the class ``OptimizerParamScheduler``.
    """
    train, step, decide = training.train, training.train_step, training.checkpoint_and_decide_exit
    torch = import_module("torch")

    def searched_step(*words: Any, **settings: Any) -> Any:
        rate = search.rate(words[4].num_steps)  # forward step, data, model, optimizer, scheduler
        result = step(*words, **settings)
        search.add(rate, result[0])
        return result

    def decided(*words: Any, **settings: Any) -> bool:
        return bool(decide(*words, **settings)) or search.stopped

    def searched(*words: Any, **settings: Any) -> Any:
        def write() -> None:
            search.write(last_rank=torch.distributed.get_rank() == torch.distributed.get_world_size() - 1)

        try:
            result = train(*words, **settings)
        except SystemExit as end:  # upstream stops early in this way
            if not end.code:
                write()
            raise
        write()
        return result

    scheduler.get_lr = lambda self, group: search.group_rate(self, group)
    training.train, training.train_step, training.checkpoint_and_decide_exit = (
        searched,
        searched_step,
        decided,
    )


def main(words: list[str]) -> None:
    """Run the script of the first argument while the learning rate rises.

    :param words: the arguments, without this program's name.
    """
    script = Path(words[0]) if words else Path()
    if not script.is_file():
        sys.exit(f"{_NAME}: error: {str(script)!r} is not a file; name CHECKOUT/pretrain_gpt.py")
    options, rest = lr_finder_options.split(_NAME, words[1:])
    if (problem := lr_finder_options.problem(options)) is not None:
        sys.exit(f"{_NAME}: error: {problem}")
    sys.argv = [words[0], *rest]
    sys.path[0] = str(script.parent)
    training = import_module("megatron.training.training")
    scheduler = import_module("megatron.core.optimizer_param_scheduler").OptimizerParamScheduler
    install(Search(options, training.get_args), training, scheduler)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
