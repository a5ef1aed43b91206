"""Inside the trainer's environment: many trainings in one process, as starting one costs more than a short training."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))

from megatron_core_trainer import arguments, console, cpu_device, distributed
from megatron_core_trainer.data.tokenizer import load_tokenizer

cpu_device.install()

from megatron.core import num_microbatches_calculator  # noqa: E402 - after the device is prepared
from megatron_core_trainer.exit_conditions import ExitConditions  # noqa: E402
from megatron_core_trainer.training import Trainer  # noqa: E402


def start() -> None:
    """Join the data-parallel process groups of the environment."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    place = distributed.place_from_environment(os.environ)
    console.set_rank(place.rank, place.world_size)
    cpu_device.install_rng_tracker()
    cpu_device.install_checkpoint_writer()
    distributed.initialize_process_groups(
        place,
        backend="gloo",
        timeout_minutes=1,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
    )


def built(argv: list[str]) -> Trainer:
    """Build a training as ``pretrain_gpt.py`` does once its process groups are there.

    :param argv: its arguments.
    """
    place = distributed.place_from_environment(os.environ)
    args = arguments.parse_args(argv, world_size=place.world_size, has_cuda=False)
    args.rank, args.local_rank = place.rank, place.local_rank
    arguments.complete_args(args)
    tokenizer = load_tokenizer(args)
    arguments.pad_vocab(args, tokenizer)
    num_microbatches_calculator.unset_num_microbatches_calculator()
    distributed.set_random_seeds(args.seed)
    return Trainer(args, tokenizer, ExitConditions(args, time.time()))


def run(argv: list[str]) -> str:
    """Train; return what is printed.

    :param argv: the arguments of ``pretrain_gpt.py``.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        built(argv).run()
    return printed.getvalue()


def iteration_lines(text: str) -> dict[int, list[str]]:
    """Return learning rate, loss and gradient norm from the iteration lines.

    :param text: output of a training.
    """
    found = {}
    for line in text.splitlines():
        if "] iteration " in line:
            fields = dict(part.split(": ", 1) for part in line.split(" | ")[1:] if ": " in part)
            number = int(line.split("iteration")[1].split("/")[0])
            found[number] = [fields["learning rate"], fields["lm loss"], fields["grad norm"]]
    return found
