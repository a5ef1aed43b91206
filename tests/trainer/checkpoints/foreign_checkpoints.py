"""Run inside the trainer's environment: write and convert checkpoints that this trainer does not write itself.

    foreign_checkpoints.py OUTPUT TOKENIZER CASES_JSON

A case is ``{"name": …, "settings": {…}}``, and for one file per rank ``"layout": {"tensor": 2, "pipeline": 2, "expert":
1}`` with ``"interleaved": true`` for two chunks of layers in each stage. The checkpoint is
``OUTPUT/<name>/iter_0000003``, with arguments named as upstream's. All weights, biases and norms are random, so that
none can be dropped, swapped or left at its first value unnoticed. What a rank's file holds is what megatron-core gives
to that rank when it loads the whole model.

Then each is converted to ``OUTPUT/<name>/hf``, with the case's further ``"arguments"``; what that prints is in
``OUTPUT/<name>/log``. Prints one JSON line per case: the exit status, and whether the weights read from ranks' files
are those of the whole model, bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers  # noqa: F401 - imported once, before the device is prepared, for all conversions

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))

from megatron_core_trainer import cpu_device

cpu_device.install()

import torch  # noqa: E402 - after the device is prepared
from convert_to_hf import main as convert_to_hf  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402
from megatron.core.transformer import enums  # noqa: E402
from megatron_core_trainer import arguments, distributed, model  # noqa: E402
from megatron_core_trainer.conversion.checkpoint_weights import read_weights  # noqa: E402
from megatron_core_trainer.conversion.model_settings import model_settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = {
    "num_layers": 4,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "kv_channels": 8,
    "group_query_attention": False,
    "num_query_groups": 1,
    "max_position_embeddings": 64,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-5,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": False,
    "seq_length": 64,
    "padded_vocab_size": 384,
    "bias_gelu_fusion": False,
}
AXES = ("tensor", "pipeline", "expert")
# Names of Transformer Engine's layers, which upstream uses on GPUs.
ENGINE_NAMES = (
    (".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"),
    (".local_experts.0.linear_fc1.weight", ".linear_fc1.weight0"),
    (".local_experts.1.linear_fc1.weight", ".linear_fc1.weight1"),
)


def build(settings: dict[str, Any], layout: dict[str, int]) -> Any:
    """Build the model, or a rank's part of it."""
    args = arguments.build_parser().parse_args([])
    for name, value in settings.items():
        setattr(args, name, value)
    args.tensor_model_parallel_size, args.pipeline_model_parallel_size = layout["tensor"], layout["pipeline"]
    args.world_size = torch.distributed.get_world_size()
    args.micro_batch_size = args.train_iters = 1
    args.lr, args.mock_data, args.tokenizer_type, args.vocab_size = 1.0, True, "NullTokenizer", 1
    arguments.run_on_cpu(args)
    arguments.complete_args(args)
    args.layernorm_epsilon = settings["norm_epsilon"]
    args.num_moe_experts = settings.get("num_experts")
    args.expert_model_parallel_size = layout["expert"]
    args.sequence_parallel = layout["expert"] > 1 and layout["tensor"] > 1
    return model.build_model(args)


def meet(rank: int, world_size: int, store: Path, layout: dict[str, int]) -> None:
    """Create the process groups of a layout."""
    from megatron.core import tensor_parallel

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(store), world_size), rank=rank, world_size=world_size
    )
    parallel_state.initialize_model_parallel(
        layout["tensor"], layout["pipeline"], expert_model_parallel_size=layout["expert"]
    )
    cpu_device.install_rng_tracker()
    cpu_device.install_checkpoint_writer()
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def in_processes(count: int, work: Callable[[int], None]) -> None:
    """Do something in so many processes; they are copies of this one, which must not have met others yet."""
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(rank)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    if any(ends):
        raise SystemExit("a process failed")


def write_whole(case: dict[str, Any], saved: argparse.Namespace, directory: Path, store: Path) -> None:
    """Write a ``torch_dist`` checkpoint of a model with random weights."""
    whole = dict.fromkeys(AXES, 1)
    meet(0, 1, store, whole)
    built = build(vars(saved), whole)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise if "layernorm.weight" in name else noise)
    if case.get(
        "later_release"
    ):  # its arguments hold an enumeration that the installed release does not have
        enums.LaterScope = enum.Enum("LaterScope", "full", module=enums.__name__)
        saved.cuda_graph_scope = enums.LaterScope.full
    common = {"args": saved, "checkpoint_version": 3.0, "iteration": 3}
    state = {**common, "model": built.sharded_state_dict()}
    if case.get("later_release"):  # core_v0.19.0 stores the common state of all ranks among the tensors
        state["common_state"] = ShardedObject("common_state", common, (1,), (0,))
    dist_checkpointing.save(state, str(directory))
    if case.get("later_release"):
        (directory / "common.pt").unlink()


def write_rank(case: dict[str, Any], saved: argparse.Namespace, whole: Path, target: Path, rank: int) -> None:
    """Write a rank's file, with the weights of a whole checkpoint."""
    layout = case["layout"]
    built = build(vars(saved), layout)
    loaded = dist_checkpointing.load({"model": built.sharded_state_dict()}, str(whole))
    weights = {}
    for name, value in loaded["model"].items():
        for ours, theirs in ENGINE_NAMES if case.get("engine_names") else ():
            name = name.replace(ours, theirs)
        weights[name] = value
    state = {"args": saved, "checkpoint_version": 3.0, "iteration": 3, "model": weights}
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if layout["pipeline"] > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if layout["expert"] > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    (target / name).mkdir(parents=True, exist_ok=True)
    torch.save(state, target / name / "model_optim_rng.pt")


def interleave(directory: Path) -> None:
    """Make two stages of two chunks each out of four stages (``--num-virtual-stages-per-pipeline-rank 2``)."""
    stages = [
        torch.load(directory / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt", weights_only=False)
        for stage in range(4)
    ]
    for stage in (0, 1):
        state = stages[stage]
        state["model0"], state["model1"] = state.pop("model"), stages[stage + 2]["model"]
        torch.save(state, directory / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt")
        shutil.rmtree(directory / f"mp_rank_00_{stage + 2:03d}")


def write(case: dict[str, Any], directory: Path, tokenizer: str, scratch: Path) -> bool:
    """Write the checkpoint of a case; return whether the converter reads the whole model from it."""
    saved = argparse.Namespace(**{**BASE, **case["settings"]}, tokenizer_model=tokenizer)
    layout = case.get("layout")
    whole = scratch / "whole" if layout else directory
    whole.mkdir(parents=True, exist_ok=True)
    in_processes(1, lambda _: write_whole(case, saved, whole, scratch / "first"))
    if not layout:
        return True
    count = layout["tensor"] * layout["pipeline"] * layout["expert"]
    saved.pipeline_model_parallel_size = layout["pipeline"]

    def work(rank: int) -> None:
        meet(rank, count, scratch / "second", layout)
        write_rank(case, saved, whole, directory, rank)
        distributed.leave()

    in_processes(count, work)
    if case.get("interleaved"):
        interleave(directory)
    settings = model_settings(vars(saved))
    wanted = read_weights(whole, settings, {})
    found = read_weights(directory, settings, {name: weight.shape for name, weight in wanted.items()})
    tied = {"output_layer.weight"} - wanted.keys()
    return found.keys() - tied == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) for name in wanted
    )


def convert(run: Path, words: list[str]) -> int:
    """Convert a run's checkpoint in a separate process; return the exit status."""
    child = os.fork()
    if child == 0:
        status = 99
        with (run / "log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                status = convert_to_hf(["--load", str(run), "--output", str(run / "hf"), *words])
            finally:
                log.flush()
                os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in json.loads(sys.argv[3]):
        run = Path(sys.argv[1], each["name"])
        (run / "iter_0000003").mkdir(parents=True)
        with tempfile.TemporaryDirectory() as temporary:
            same = write(each, run / "iter_0000003", sys.argv[2], Path(temporary))
        (run / "latest_checkpointed_iteration.txt").write_text("3")
        status = convert(run, each.get("arguments", []))
        print(json.dumps({"name": each["name"], "status": status, "same_weights": same}), flush=True)
