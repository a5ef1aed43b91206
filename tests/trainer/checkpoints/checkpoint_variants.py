"""Writes real checkpoints, damages copies of them in every way, and reports which can still be loaded.

    checkpoint_variants.py REFERENCE OUTPUT    (in the trainer's environment)

REFERENCE is a ``torch_dist`` checkpoint that the trainer wrote. Prints one JSON object: variant → whether PyTorch and
megatron-core load all of it. A variant is ``OUTPUT/<variant>/iter_0000012``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))
import torch
import torch.distributed.checkpoint as dcp
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron_core_trainer import cpu_device
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "iter_0000012"


def write_torch_dist(directory: Path, *, finish: bool) -> None:
    """Write one with megatron-core's asynchronous save, the last step of which may be left out."""
    directory.mkdir(parents=True)
    state = {
        "w": ShardedTensor.from_rank_offsets("w", torch.ones(64, 8)),
        "rng": ShardedObject("rng", b"state", (1,), (0,)),
        "iteration": 12,
    }
    request = dist_checkpointing.save(state, str(directory), async_sharded_save=True)
    if request.preload_fn is not None:
        request = request._replace(
            async_fn_args=(*request.async_fn_args[:1], request.preload_fn(), *request.async_fn_args[2:])
        )
    request.async_fn(*request.async_fn_args, **request.async_fn_kwargs)
    if finish:
        for finalize in request.finalize_fns:
            finalize()


def write_torch_dcp(directory: Path) -> None:
    state = {
        "model.w": torch.ones(64, 8),
        "iteration": 12,
        "args": argparse.Namespace(ckpt_format="torch_dcp"),
    }
    dcp.save(state, checkpoint_id=directory, no_dist=True)


def write_legacy(directory: Path) -> None:
    args = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    for rank in ("mp_rank_00", "mp_rank_01"):
        (directory / rank).mkdir(parents=True)
        torch.save({"args": args, "model": {"w": torch.ones(64, 8)}}, directory / rank / "model_optim_rng.pt")


def variants(source: Path, output: Path, prefix: str) -> Iterator[str]:
    """Yield the names of copies of a checkpoint: whole, and each file in turn absent, cut off, or never written."""
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    yield _copy(source, output, f"{prefix}: whole")
    for file in files:
        content = (source / file).read_bytes()
        size = len(content)
        changes = {f"{cut} of {size} bytes": content[:cut] for cut in {0, 1, size // 2, size - 1}}
        for what, data in {**changes, "zeros": bytes(size), "absent": None}.items():
            name = _copy(source, output, f"{prefix}: {str(file).replace('/', ' ')}: {what}")
            target = output / name / NAME / file
            if data is None:
                target.unlink()
            else:
                target.write_bytes(data)
            yield name


def _copy(source: Path, output: Path, name: str) -> str:
    shutil.copytree(source, output / name / NAME)
    return name


def loads(directory: Path) -> bool:
    """Load all of a checkpoint, as upstream's loader of its format does."""
    try:
        if any(directory.glob("mp_rank_*")):
            for rank in ("mp_rank_00", "mp_rank_01"):
                torch.load(directory / rank / "model_optim_rng.pt", weights_only=False)
            return True
        if not directory.parent.name.startswith("torch_dcp"):
            dist_checkpointing.load_common_state_dict(str(directory))  # fails without metadata.json
        state: dict[str, Any] = {}
        reader = dcp.FileSystemReader(directory)
        _load_state_dict(state, reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    except (Exception, dcp.api.CheckpointException):  # for any error, it cannot be loaded
        return False
    return bool(state)


def main(reference: Path, output: Path) -> int:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    cpu_device.install()  # the asynchronous save copies from a device before it writes
    cpu_device.install_checkpoint_writer()
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    made = output / "made"
    with contextlib.redirect_stdout(sys.stderr):
        write_torch_dist(made / "async", finish=True)
        write_torch_dist(made / "in flight", finish=False)
        write_torch_dcp(made / "dcp")
        write_legacy(made / "legacy")
        names = [
            *variants(reference, output, "torch_dist of the trainer"),
            *variants(made / "async", output, "torch_dist saved asynchronously"),
            _copy(made / "in flight", output, "torch_dist in flight"),
            *variants(made / "dcp", output, "torch_dcp"),
            *variants(made / "legacy", output, "torch"),
        ]
        loaded = {name: loads(output / name / NAME) for name in names}
    print(json.dumps(loaded))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
