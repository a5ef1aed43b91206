"""Run inside the trainer's environment: train, and train again from the middle, for every optimizer that is named.

Prints one JSON line per case: the losses of an uninterrupted run and of one resumed at iteration 3, whether the last
checkpoints agree bit by bit, and both validations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from in_process_training import iteration_lines, run, start
from megatron_core_trainer import distributed

import torch  # isort: skip - after the device is prepared


def weights(directory: Path, iteration: int) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint except the distributed optimizer's buckets, whose gaps are uninitialized."""
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(directory / f"iter_{iteration:07d}")
    found = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in reader.read_metadata().state_dict_metadata.items()
        if hasattr(meta, "properties") and not name.startswith("optimizer.distributed.")
    }
    load(found, storage_reader=reader, no_dist=True)
    return found


def main(base: list[str], directory: Path, cases: dict[str, list[str]]) -> None:
    """Run every case and print its result."""
    start()
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
            "whole": iteration_lines(first),
            "resumed": iteration_lines(second),
            "equal": equal,
            "tensors": len(ours),
            "validations": validations,
        }
        print(json.dumps(outcome), flush=True)
    distributed.leave()


if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    main(request["base"], Path(request["directory"]), request["cases"])
