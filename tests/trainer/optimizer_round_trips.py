"""Run inside the trainer's environment: train, and train again from the middle, for every optimizer that is named.

Prints one JSON line per case: the losses of an uninterrupted run and of one resumed at iteration 3, whether the last
checkpoints agree bit by bit, and both validations.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "Megatron-LM"))

from megatron_core_trainer import arguments, console, cpu_device, distributed
from megatron_core_trainer.tokenizer import load_tokenizer

cpu_device.install()

import torch  # noqa: E402 - after the device is prepared
from megatron.core import num_microbatches_calculator  # noqa: E402
from megatron_core_trainer.exit_conditions import ExitConditions  # noqa: E402
from megatron_core_trainer.training import Trainer  # noqa: E402


def run(argv: list[str]) -> str:
    """Train as ``pretrain_gpt.py`` does once its process groups are there; return what it prints."""
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    args.rank = args.local_rank = 0
    arguments.complete_args(args)
    tokenizer = load_tokenizer(args)
    arguments.pad_vocab(args, tokenizer)
    num_microbatches_calculator.unset_num_microbatches_calculator()
    distributed.set_random_seeds(args.seed)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        Trainer(args, tokenizer, ExitConditions(args, time.time())).run()
    return printed.getvalue()


def weights(directory: Path, iteration: int) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint."""
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(directory / f"iter_{iteration:07d}")
    found = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in reader.read_metadata().state_dict_metadata.items()
        if hasattr(meta, "properties")
    }
    load(found, storage_reader=reader, no_dist=True)
    return found


def lines(text: str) -> dict[int, list[str]]:
    """Pick learning rate, loss and gradient norm out of the iteration lines."""
    found = {}
    for line in text.splitlines():
        if "] iteration " in line:
            fields = dict(part.split(": ", 1) for part in line.split(" | ")[1:] if ": " in part)
            number = int(line.split("iteration")[1].split("/")[0])
            found[number] = [fields["learning rate"], fields["lm loss"], fields["grad norm"]]
    return found


def main(base: list[str], directory: Path, cases: dict[str, list[str]]) -> None:
    """Run every case and print what came of it."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    console.set_rank(0, 1)
    cpu_device.install_rng_tracker()
    cpu_device.install_checkpoint_writer()
    distributed.initialize_process_groups(
        distributed.place_from_environment({}),
        backend="gloo",
        timeout_minutes=1,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
    )
    for name, extra in cases.items():
        whole, part = directory / name / "whole", directory / name / "part"
        first = run([*base, *extra, "--save", str(whole)])
        second = run([*base, *extra, "--save", str(part), "--load", str(whole), "--ckpt-step", "3"])
        ours, theirs = weights(whole, 6), weights(part, 6)
        equal = ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
        validations = [
            [line for line in text.splitlines() if "validation loss at iteration 6 on valid" in line]
            for text in (first, second)
        ]
        outcome = {
            "case": name,
            "whole": lines(first),
            "resumed": lines(second),
            "equal": equal,
            "tensors": len(ours),
            "validations": validations,
        }
        print(json.dumps(outcome), flush=True)
    distributed.leave()


if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    main(request["base"], Path(request["directory"]), request["cases"])
