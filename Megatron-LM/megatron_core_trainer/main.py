"""Start of a training process: arguments, device, process groups, trainer."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING

from megatron_core_trainer import arguments, console, distributed
from megatron_core_trainer.arguments import ArgumentError
from megatron_core_trainer.data.tokenizer import load_tokenizer
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str], *, started: float) -> int:
    """Run one training process and return its exit status.

    0: finished, or stopped early after saving its state; 2: the command line or a checkpoint is invalid. Any other
    failure ends with a traceback and status 1.

    :param argv: the arguments, without the program's name.
    :param started: time of the program's start, seconds since the epoch.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if {"-h", "--help"} & set(argv):
        arguments.build_parser().print_help()
        return 0
    place = distributed.place_from_environment(os.environ)
    console.set_rank(place.rank, place.world_size)
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    # megatron-core warns about settings that are intended here: no data cache on disk, no rerun state machine.
    for name in ("megatron.core.datasets", "megatron.core.rerun_state_machine"):
        logging.getLogger(name).setLevel(logging.ERROR)

    from megatron_core_trainer import cpu_device

    on_cpu = cpu_device.is_needed()
    try:
        args = arguments.parse_args(argv, world_size=place.world_size, has_cuda=not on_cpu)
        args.rank, args.local_rank = place.rank, place.local_rank
        if not args.use_checkpoint_args:
            arguments.complete_args(args)
        arguments.check_machine(args)
        tokenizer = load_tokenizer(args)
    except ArgumentError as error:
        return _refuse(error, place.rank)

    from megatron_core_trainer.exit_conditions import ExitConditions

    exits = ExitConditions(args, started)
    if on_cpu:
        cpu_device.install()
        _set_threads(place)
    else:
        import torch

        torch.cuda.set_device(place.local_rank)

    from megatron_core_trainer import checkpointing

    try:
        if args.use_checkpoint_args:
            checkpoint = checkpointing.checkpoint_to_load(args)
            if checkpoint is not None:
                saved = vars(checkpointing.load_common_state(checkpoint)["args"])
                arguments.take_model_settings(args, saved)
            arguments.complete_args(args)
        arguments.pad_vocab(args, tokenizer)
        if args.optimizer in LIBRARY:
            from megatron_core_trainer.optimization.library_optimizers import check_settings

            check_settings(args)
        if checkpointing.checkpoint_is_missing(args):
            console.print_rank_0(">> '--exit-on-missing-checkpoint' set ... exiting. <<")
            return 0
    except (ArgumentError, checkpointing.CheckpointError) as error:
        return _refuse(error, place.rank)

    from megatron_core_trainer.training import Trainer

    if on_cpu:
        cpu_device.install_rng_tracker()
        cpu_device.install_checkpoint_writer()
    elif flags := arguments.switch_off_missing_kernels(args):
        console.print_rank_0(f"Apex is not installed on this machine; continuing with {' '.join(flags)}")
    _announce(args, on_cpu=on_cpu)
    distributed.initialize_process_groups(
        place,
        backend=args.distributed_backend,
        timeout_minutes=args.distributed_timeout_minutes,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
    )
    console.print_rank_0(f"> initialized tensor model parallel with size {args.tensor_model_parallel_size}")
    console.print_rank_0(
        f"> initialized pipeline model parallel with size {args.pipeline_model_parallel_size}"
    )
    console.print_rank_0(f"> setting random seeds to {args.seed} ...")
    distributed.set_random_seeds(args.seed)
    exits.synchronize_start()
    console.print_marker("after megatron is initialized")
    try:
        trainer = Trainer(args, tokenizer, exits)
    except checkpointing.CheckpointError as error:
        return _refuse(error, place.rank)
    trainer.run()
    distributed.leave()
    return 0


def _announce(args: argparse.Namespace, *, on_cpu: bool) -> None:
    show = console.print_rank_0
    show(
        f"using world size: {args.world_size}, data-parallel size: {args.data_parallel_size},"
        " context-parallel size: 1, hierarchical context-parallel sizes: None,"
        f" tensor-model-parallel size: {args.tensor_model_parallel_size},"
        f" pipeline-model-parallel size: {args.pipeline_model_parallel_size}"
    )
    show(f"using torch.{args.params_dtype} for parameters ...")
    arguments.print_args(args, show)
    if flags := arguments.unused_settings(args, arguments.build_parser()):
        instead = "; --optimizer-settings has its settings" if args.optimizer in LIBRARY else ""
        show(f"WARNING: --optimizer {args.optimizer} does not use {', '.join(flags)}{instead}")
    if on_cpu:
        show("no CUDA device: training on the CPU over gloo, without fused kernels")


def _set_threads(place: distributed.ProcessPlace) -> None:
    """Use as many threads as this process has CPUs; more threads would wait for each other.

    OMP_NUM_THREADS has precedence; under Slurm the number is ``--cpus-per-task`` (1 by default, as in Slurm).
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    if "SLURM_JOB_ID" in os.environ:
        threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    else:
        threads = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", place.world_size))
    torch.set_num_threads(max(1, threads))


def _refuse(error: Exception, rank: int) -> int:
    if rank == 0:
        print(f"pretrain_gpt.py: error: {error}", file=sys.stderr, flush=True)
    return 2
