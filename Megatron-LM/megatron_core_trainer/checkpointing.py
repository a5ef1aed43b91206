"""Checkpoints in upstream's ``torch_dist`` layout.

``DIR/iter_0000100/{.metadata, metadata.json, common.pt, __<rank>_<part>.distcp}`` and
``DIR/latest_checkpointed_iteration.txt``. megatron-core writes ``metadata.json`` after all other files, and the tracker
file follows by atomic rename. A run that is killed while it saves therefore leaves no checkpoint that would be loaded.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import (
    get_default_load_sharded_strategy,
    get_default_save_sharded_strategy,
)
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from megatron_core_trainer.console import print_rank_0, timestamp
from megatron_core_trainer.optimization.optimizer import (
    ScheduleError,
    prepare_to_load,
    restore_optimizer,
    restore_scheduler,
)
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY
from megatron_core_trainer.optimization.parametrization import difference, parametrization

if TYPE_CHECKING:
    import argparse

TRACKER = "latest_checkpointed_iteration.txt"
# Arguments that must be equal in a checkpoint and in the run that continues it (upstream's check_checkpoint_args).
_FIXED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "tokens_in_vocabulary",
)


class CheckpointError(Exception):
    """A checkpoint is missing, incomplete, or belongs to another model."""


def iteration_dir(directory: str | Path, iteration: int) -> Path:
    """Return the directory of one iteration's checkpoint.

    :param directory: ``--save`` or ``--load``.
    :param iteration: the iteration.
    """
    return Path(directory) / f"iter_{iteration:07d}"


def read_tracker(directory: str | Path) -> int | None:
    """Return the last complete checkpoint's iteration, or None if there is no tracker file.

    :param directory: ``--save`` or ``--load``.
    :raises CheckpointError: if the file does not contain a number.
    """
    path = Path(directory) / TRACKER
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(f"{path} must hold an iteration, not {text[:40]!r}") from None


def require_complete(checkpoint: Path) -> None:
    """Raise an error if a checkpoint was not written completely, or has the format of one file for each rank.

    :param checkpoint: an ``iter_*`` directory.
    :raises CheckpointError: with the name of the missing part.
    """
    if not checkpoint.is_dir():
        raise CheckpointError(f"there is no checkpoint {checkpoint}")
    if any(checkpoint.glob("mp_rank_*")) and not (checkpoint / "metadata.json").is_file():
        raise CheckpointError(
            f"the checkpoint {checkpoint} has the format torch, and this program loads torch_dist only; continue it"
            " with upstream Megatron-LM (trainer: megatron_lm)"
        )
    missing = [
        name for name in (".metadata", "common.pt", "metadata.json") if not (checkpoint / name).is_file()
    ]
    if missing:
        raise CheckpointError(f"the checkpoint {checkpoint} is incomplete: it has no {', '.join(missing)}")
    empty = sorted(path.name for path in checkpoint.glob("*.distcp") if path.stat().st_size == 0)
    if empty:
        raise CheckpointError(f"the checkpoint {checkpoint} is incomplete: {', '.join(empty)} is empty")


def load_common_state(checkpoint: Path) -> dict[str, Any]:
    """Read the part of a checkpoint that all processes share: arguments, iteration, schedule.

    :param checkpoint: an ``iter_*`` directory.
    :raises CheckpointError: if it is incomplete.
    """
    require_complete(checkpoint)
    return dict(dist_checkpointing.load_common_state_dict(str(checkpoint)))


def checkpoint_to_load(args: argparse.Namespace) -> Path | None:
    """Return the checkpoint to start from; print upstream's message if there is none.

    :param args: the run's arguments; ``finetune`` is set when falling back to ``--pretrained-checkpoint``.
    :raises CheckpointError: if the requested checkpoint is incomplete.
    """
    directory = args.load
    iteration = args.ckpt_step
    if directory is not None and iteration is None:
        iteration = read_tracker(directory)
    if iteration is None and args.pretrained_checkpoint is not None:
        print_rank_0(
            f"Checkpoint file not found in load directory {directory} attempting to finetune with checkpoint in"
            f" {args.pretrained_checkpoint}"
        )
        directory, args.finetune = args.pretrained_checkpoint, True
        iteration = read_tracker(directory)
        if iteration is None:
            raise CheckpointError(f"--pretrained-checkpoint {directory} holds no {TRACKER}")
    if directory is None:
        return None
    if iteration is None:
        print_rank_0(f"WARNING: could not find the metadata file {Path(directory) / TRACKER}")
        print_rank_0("    will not load any checkpoints and will start from random")
        return None
    checkpoint = iteration_dir(directory, iteration)
    require_complete(checkpoint)
    return checkpoint


def checkpoint_is_missing(args: argparse.Namespace) -> bool:
    """Return whether ``--exit-on-missing-checkpoint`` is given and there is no checkpoint to load.

    :param args: the run's arguments.
    """
    if (
        not args.exit_on_missing_checkpoint
        or args.ckpt_step is not None
        or args.pretrained_checkpoint is not None
    ):
        return False
    return args.load is None or read_tracker(args.load) is None


class Checkpointer:
    """Saves and loads one run's state.

    :param args: the run's arguments, saved with every checkpoint.
    :param model: the unwrapped model.
    :param optimizer: the optimizer.
    :param scheduler: the schedule.
    """

    def __init__(self, args: argparse.Namespace, model: Any, optimizer: Any, scheduler: Any) -> None:
        self._args, self._model, self._optimizer, self._scheduler = args, model, optimizer, scheduler
        self._data_group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self._place = (
            f"[ t {parallel_state.get_tensor_model_parallel_rank() + 1}"
            f"/{parallel_state.get_tensor_model_parallel_world_size()}, "
            f"p {parallel_state.get_pipeline_model_parallel_rank() + 1}"
            f"/{parallel_state.get_pipeline_model_parallel_world_size()} ]"
        )

    def save(self, iteration: int, floating_point_operations: float) -> None:
        """Write a checkpoint, then the tracker file, then delete the previous checkpoint unless it is to be kept.

        :param iteration: iterations done.
        :param floating_point_operations: operations done so far; a run that continues adds to them.
        """
        args = self._args
        target = iteration_dir(args.save, iteration)
        print_rank_0(
            f"[{timestamp()}] saving checkpoint at iteration {iteration:7d} to {args.save} in torch_dist format"
        )
        first = torch.distributed.get_rank() == 0
        if first:
            # Delete the remains of a killed run: its metadata.json would make an incomplete checkpoint look complete.
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
        torch.distributed.barrier()
        args.iteration = iteration
        state = self._state(None if args.no_save_optim else self._optimizer, with_random=not args.no_save_rng)
        state["iteration"] = iteration
        state["num_floating_point_operations_so_far"] = floating_point_operations
        strategy = get_default_save_sharded_strategy("torch_dist")
        if torch.distributed.get_world_size(self._data_group) > 1:
            strategy = FullyParallelSaveStrategyWrapper(strategy, self._data_group)
        dist_checkpointing.save(
            state,
            str(target),
            strategy,
            preprocess_common_before_consistancy_check=_without_rank,
            content_metadata={k: v for k, v in self._metadata().items() if k != "dp_cp_group"},
        )
        torch.distributed.barrier()
        if first:
            previous = read_tracker(args.save)
            _write_tracker(Path(args.save), iteration)
            print_rank_0(
                f"  [{timestamp()}] successfully saved checkpoint from iteration {iteration:7d} to {args.save}"
                f" {self._place}"
            )
            self._log_progress(f"Saved checkpoint\tIteration: {iteration}")
            self._drop(previous, iteration)
        torch.distributed.barrier()

    def load(self, checkpoint: Path) -> tuple[int, float]:
        """Restore the state and return the iteration and the floating-point operations done so far.

        :param checkpoint: a complete ``iter_*`` directory.
        :raises CheckpointError: if it belongs to another model.
        """
        args = self._args
        common = load_common_state(checkpoint)
        saved = vars(common["args"])
        _check_same_model(saved, vars(args), checkpoint)
        number = int(checkpoint.name.removeprefix("iter_"))
        print_rank_0(f" loading distributed checkpoint from {checkpoint.parent} at iteration {number}")
        layout = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
        same_layout = all(saved.get(name, 1) == getattr(args, name) for name in layout)
        with_optimizer = not (args.finetune or args.no_load_optim or saved.get("no_save_optim"))
        with_random = not (args.finetune or args.no_load_rng or saved.get("no_save_rng"))
        if with_random and not same_layout:
            ours, theirs = (tuple(getattr(args, n) for n in layout), tuple(saved.get(n, 1) for n in layout))
            print_rank_0(
                f"(TP, PP) mismatch after resume ({ours} vs {theirs} from checkpoint): RNG state will be ignored"
            )
            with_random = False
        saved_distributed = bool(saved.get("use_distributed_optimizer"))
        if with_optimizer and saved_distributed != args.use_distributed_optimizer:
            raise CheckpointError(
                f"{checkpoint} was saved {'with' if saved_distributed else 'without'} --use-distributed-optimizer;"
                " continue the same way, or give --no-load-optim"
            )
        if with_optimizer:
            _check_same_optimizer(saved, vars(args), checkpoint, same_layout=same_layout)
        wanted = self._state(
            self._optimizer if with_optimizer else None, with_random=with_random, loading=True
        )
        state = dist_checkpointing.load(
            wanted, str(checkpoint), get_default_load_sharded_strategy(str(checkpoint))
        )
        self._model.load_state_dict(state["model"])
        if with_optimizer:
            restore_optimizer(self._optimizer, state["optimizer"])
            try:
                restore_scheduler(self._scheduler, state["opt_param_scheduler"])
            except ScheduleError as error:
                raise CheckpointError(f"{checkpoint}: {error}") from error
        elif args.bf16:
            self._optimizer.reload_model_params()
        if with_random:
            _set_random_state(state["rng_state"][0])
        iteration = 0
        if not args.finetune:
            iteration = int(common["iteration"])
            for name in ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples"):
                setattr(args, name, saved.get(name, 0))
        torch.distributed.barrier()
        print_rank_0(
            f"  successfully loaded checkpoint from {checkpoint.parent} {self._place} at iteration {iteration}"
        )
        operations = 0.0 if args.finetune else float(common.get("num_floating_point_operations_so_far", 0))
        return iteration, operations

    def _state(self, optimizer: Any, *, with_random: bool, loading: bool = False) -> dict[str, Any]:
        metadata = self._metadata()
        model = self._model.sharded_state_dict(metadata=metadata)
        state: dict[str, Any] = {"args": self._args, "checkpoint_version": 3.0, "model": model}
        if optimizer is not None:
            if loading:
                prepare_to_load(optimizer)
            state["optimizer"] = optimizer.sharded_state_dict(
                {"model": model}, is_loading=loading, metadata=metadata
            )
            state["opt_param_scheduler"] = self._scheduler.state_dict()
        if with_random:
            state["rng_state"] = _random_state()
        return state

    def _metadata(self) -> dict[str, Any]:
        metadata = {
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
            "dp_cp_group": self._data_group,
        }
        if self._args.use_distributed_optimizer:
            metadata["distrib_optim_sharding_type"] = "dp_reshardable"
        return metadata

    def _drop(self, previous: int | None, iteration: int) -> None:
        keep = self._args.save_retain_interval
        if not keep or not previous or previous == iteration or previous % keep == 0:
            return
        old = iteration_dir(self._args.save, previous)
        if old.is_symlink():
            print_rank_0(
                f"  skipping deleting checkpoint from iteration {previous:7d} at {self._args.save} since it is a"
                " symbolic link"
            )
            return
        shutil.rmtree(old, ignore_errors=True)
        print_rank_0(
            f"  [{timestamp()}] successfully deleted checkpoint from iteration {previous:7d} at {self._args.save}"
        )
        self._log_progress(f"Deleted checkpoint\tIteration: {previous}")

    def _log_progress(self, text: str) -> None:
        if self._args.log_progress:
            append_progress(self._args, text)


def append_progress(args: argparse.Namespace, text: str) -> None:
    """Add a line to ``SAVE/progress.txt`` (``--log-progress``).

    :param args: the run's arguments.
    :param text: what happened.
    """
    path = Path(args.save) / "progress.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    job = os.environ.get("SLURM_JOB_ID", "")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{timestamp()}\t{job}\t{args.world_size}\t{text}\n")


def _write_tracker(directory: Path, iteration: int) -> None:
    temporary = directory / f".{TRACKER}.new"
    with temporary.open("w") as file:
        file.write(str(iteration))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / TRACKER)


def _check_same_model(saved: dict[str, Any], ours: dict[str, Any], checkpoint: Path) -> None:
    for name in _FIXED:
        if name in saved and saved[name] != ours[name]:
            raise CheckpointError(
                f"{name} of the checkpoint {checkpoint} ({saved[name]}) is not this run's ({ours[name]});"
                " give the checkpoint's value, or --use-checkpoint-args"
            )
    types = [values.get("position_embedding_type", "learned_absolute") for values in (saved, ours)]
    if (types[0] == "learned_absolute") != (types[1] == "learned_absolute"):
        raise CheckpointError(
            f"position_embedding_type of the checkpoint {checkpoint} ({types[0]}) is not this run's ({types[1]});"
            " give the checkpoint's value, or --use-checkpoint-args"
        )
    other = difference(parametrization(saved), parametrization(ours))
    if other is not None:
        raise CheckpointError(
            f"the checkpoint {checkpoint} has other multipliers: {other}; give the checkpoint's values, or"
            " --use-checkpoint-args"
        )


def _check_same_optimizer(
    saved: dict[str, Any], ours: dict[str, Any], checkpoint: Path, *, same_layout: bool
) -> None:
    theirs, wanted = saved.get("optimizer", "adam"), ours["optimizer"]
    if theirs != wanted and {theirs, wanted} != {"adam", "adamw"}:
        raise CheckpointError(
            f"{checkpoint} was saved with --optimizer {theirs}, not {wanted}; continue with the same, or give"
            " --no-load-optim"
        )
    if (wanted in LIBRARY or ours["use_distributed_optimizer"]) and not same_layout:
        what = f"--optimizer {wanted}" if wanted in LIBRARY else "--use-distributed-optimizer"
        raise CheckpointError(
            f"{checkpoint} holds the state of {what} for other tensor- and pipeline-parallel sizes;"
            " continue with the same sizes, or give --no-load-optim"
        )


def _without_rank(common: dict[str, Any]) -> dict[str, Any]:
    own = {"rank", "local_rank"}
    saved = {name: value for name, value in vars(common["args"]).items() if name not in own}
    return {**common, "args": saved}


def _random_state() -> ShardedObject:
    state = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(),
        "rng_tracker_states": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    pipeline = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    shape = (
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    return ShardedObject("rng_state", [state], shape, pipeline, replica_id=replica)


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["random_rng_state"])
    np.random.set_state(state["np_rng_state"])
    torch.cuda.set_rng_state(state["cuda_rng_state"])
    torch.set_rng_state(state["torch_rng_state"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["rng_tracker_states"])
