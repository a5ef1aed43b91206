"""Fill in derived arguments and refuse invalid ones."""

from __future__ import annotations

import importlib.util
import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_core_trainer.arguments.data_parts import check_parts, check_split
from megatron_core_trainer.arguments.errors import ArgumentError
from megatron_core_trainer.arguments.optimization_checks import (
    check_optimizer,
    check_parametrization,
    complete_learning_rate,
    complete_lr_finder,
    length_unit,
    start_lr_finder,
)
from megatron_core_trainer.arguments.value_checks import (
    divides,
    finite,
    fraction,
    not_negative,
    positive,
    require,
)
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY

if TYPE_CHECKING:
    import argparse

_SEEDS = 2**32
_UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)


def complete_args(args: argparse.Namespace) -> None:
    """Fill in derived values and refuse invalid arguments, before anything expensive starts.

    The rules are those of upstream's ``validate_args``, ``TransformerConfig`` and ``OptimizerParamScheduler``.

    :param args: parsed arguments.
    :raises ArgumentError: with the names of the conflicting flags.
    """
    problems = argument_problems(args)
    if problems:
        raise problems[0]
    args.consumed_train_samples = args.skipped_train_samples = args.consumed_valid_samples = 0
    args.iteration = 0


def argument_problems(args: argparse.Namespace) -> list[ArgumentError]:
    """Fill in derived values, and return what is wrong with the arguments: at most one problem of each part of them.

    A part that needs values of another one with a problem is not checked.

    :param args: parsed arguments.
    """
    problems: list[ArgumentError] = []
    failed: set[object] = set()
    for complete, needed in _PARTS:
        if failed.isdisjoint(needed):
            try:
                complete(args)
            except ArgumentError as error:
                problems.append(error)
                failed.add(complete)
        else:
            failed.add(complete)
    return problems


def check_machine(args: argparse.Namespace) -> None:
    """Refuse arguments that need data files or packages that this machine does not have.

    :param args: complete arguments.
    :raises ArgumentError: with the name of the missing file or package.
    """
    if args.data_args_path is not None:
        if not Path(args.data_args_path).is_file():
            raise ArgumentError(f"--data-args-path: there is no file {args.data_args_path}")
        args.data_path = Path(args.data_args_path).read_text(encoding="utf-8").split()
    if args.wandb_project and not importlib.util.find_spec("wandb"):
        raise ArgumentError("--wandb-project needs the package wandb; install it")
    per_split = [args.train_data_path, args.valid_data_path, args.test_data_path]
    for path in [*(args.data_path or []), *(prefix for paths in per_split for prefix in paths or [])]:
        for file in () if _is_number(path) else (f"{path}.idx", f"{path}.bin"):
            if not Path(file).is_file():
                raise ArgumentError(
                    f"{file} does not exist: data paths are prefixes of a .bin and an .idx file"
                )
    check_parts(args)
    if args.data_cache_path:
        try:
            Path(args.data_cache_path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"--data-cache-path {args.data_cache_path} cannot be created: {error.strerror}"
            raise ArgumentError(message) from error
    if args.transformer_impl == "transformer_engine" and not importlib.util.find_spec("transformer_engine"):
        raise ArgumentError(
            "Transformer Engine is not installed; install it, or give --transformer-impl local"
        )
    if args.optimizer in LIBRARY and not importlib.util.find_spec("pytorch_optimizer"):
        raise ArgumentError(f"--optimizer {args.optimizer} needs the package pytorch_optimizer; install it")


def _complete_model(args: argparse.Namespace) -> None:
    require(args, "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings")
    positive(args, "num_layers", "hidden_size", "num_attention_heads", "seq_length", "ffn_hidden_size")
    positive(args, "rope_scaling_factor", "kv_channels", "make_vocab_size_divisible_by")
    if args.position_embedding_type == "rope":
        positive(args, "rotary_base")
        not_negative(args, "rotary_percent")
    if not args.layernorm_epsilon >= 0:
        raise ArgumentError(f"--norm-epsilon must not be negative, not {args.layernorm_epsilon}")
    fraction(args, "attention_dropout", "hidden_dropout")
    if args.kv_channels is None:
        divides("--hidden-size", args.hidden_size, "--num-attention-heads", args.num_attention_heads)
        args.kv_channels = args.hidden_size // args.num_attention_heads
    if args.ffn_hidden_size is None:
        args.ffn_hidden_size = (
            int(4 * args.hidden_size * 2 / 3 / 64) * 64 if args.swiglu else 4 * args.hidden_size
        )
        if args.ffn_hidden_size == 0:
            raise ArgumentError(
                "--hidden-size is too small for the default of --swiglu; give --ffn-hidden-size"
            )
    if args.max_position_embeddings < args.seq_length:
        raise ArgumentError(
            f"--max-position-embeddings ({args.max_position_embeddings}) must reach --seq-length ({args.seq_length})"
        )
    if args.group_query_attention:
        positive(args, "num_query_groups")
        divides(
            "--num-attention-heads", args.num_attention_heads, "--num-query-groups", args.num_query_groups
        )
    else:
        args.num_query_groups = args.num_attention_heads
    if args.normalization == "RMSNorm" and args.transformer_impl == "local":
        # megatron-core's local RMSNorm is torch's, which has no fused form to persist.
        args.no_persist_layer_norm = True
    # upstream's check of a checkpoint's arguments requires its own value, True for each type
    args.add_position_embedding = True
    args.use_rotary_position_embeddings = args.position_embedding_type == "rope"


def _complete_init(args: argparse.Namespace) -> None:
    check_parametrization(args)
    # SmallInit (Nguyen & Salazar 2019, arXiv:1910.05895); Takase et al. 2023, arXiv:2312.16903, add a larger embedding.
    if args.small_init:
        # muP scales from the base width to this one.
        width = (args.mup_base_hidden_size if args.use_mup else None) or args.hidden_size
        args.init_method_std = math.sqrt(2.0 / (5.0 * width))
    positive(args, "init_method_std", "embedding_init_method_std")
    finite(args, "init_method_std", "embedding_init_method_std")


def _complete_parallelism(args: argparse.Namespace) -> None:
    positive(args, "tensor_model_parallel_size", "pipeline_model_parallel_size")
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    divides(
        "the number of processes",
        args.world_size,
        "--tensor-model-parallel-size x --pipeline-model-parallel-size",
        tensor * pipeline,
    )
    args.data_parallel_size = args.world_size // (tensor * pipeline)
    divides("--num-layers", args.num_layers, "--pipeline-model-parallel-size", pipeline)
    divides("--num-attention-heads", args.num_attention_heads, "--tensor-model-parallel-size", tensor)
    if args.num_query_groups % tensor and tensor % args.num_query_groups:
        raise ArgumentError(
            f"--num-query-groups ({args.num_query_groups}) must be a multiple or a divisor of"
            f" --tensor-model-parallel-size ({tensor})"
        )
    divides("--ffn-hidden-size", args.ffn_hidden_size, "--tensor-model-parallel-size", tensor)
    if tensor == 1:
        args.sequence_parallel = False
    if args.sequence_parallel:
        divides("--seq-length", args.seq_length, "--tensor-model-parallel-size", tensor)
        if args.transformer_impl == "local":
            raise ArgumentError(
                "--sequence-parallel needs Transformer Engine's norm (and a GPU): torch's norm cannot run on a part of"
                " the sequence; leave it out"
            )
    if args.overlap_param_gather and not (args.use_distributed_optimizer and args.overlap_grad_reduce):
        raise ArgumentError(
            "--overlap-param-gather needs --use-distributed-optimizer and --overlap-grad-reduce"
        )
    args.params_dtype = "bfloat16" if args.bf16 else "float32"
    args.accumulate_allreduce_grads_in_fp32 = args.bf16


def _complete_batch(args: argparse.Namespace) -> None:
    require(args, "micro_batch_size")
    if args.train_samples is None:
        require(args, "train_iters")
    positive(args, "micro_batch_size", "global_batch_size", "train_iters", "train_samples")
    positive(args, "log_interval", "seed")
    # The seed of the last pipeline stage (``set_random_seeds``) is the largest; NumPy takes 32 bits.
    end = _SEEDS - 100 * (args.pipeline_model_parallel_size - 1)
    if args.seed >= end:
        raise ArgumentError(f"--seed must be below {end}, not {args.seed}")
    not_negative(args, "num_workers", "distributed_timeout_minutes")
    if args.tensorboard_log_interval == 0:
        raise ArgumentError("--tensorboard-log-interval must be above zero, not 0")
    _check_length(args)
    rows = args.micro_batch_size * args.data_parallel_size
    if args.global_batch_size is None:
        args.global_batch_size = rows
    divides("--global-batch-size", args.global_batch_size, "--micro-batch-size x data-parallel size", rows)
    args.num_microbatches = args.global_batch_size // rows
    if args.rampup_batch_size is not None:
        _check_ramp_up(args, rows)


def _check_length(args: argparse.Namespace) -> None:
    unit = length_unit(args)
    other = "samples" if unit == "iters" else "iters"
    names = [f"{name}_{other}" for name in ("train", "lr_decay", "lr_warmup", "lr_wsd_decay")]
    given = [name for name in names if getattr(args, name)]
    if unit == "iters" and args.rampup_batch_size is not None:
        given.append("rampup_batch_size")
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise ArgumentError(f"{flag} does not go with --train-{unit}: it belongs to --train-{other}")


def _check_ramp_up(args: argparse.Namespace, rows: int) -> None:
    start, increment, samples = args.rampup_batch_size
    growth = args.global_batch_size - start
    if start < 1 or increment < 1 or samples < 1 or growth < 1 or growth % increment:
        raise ArgumentError(
            f"--rampup-batch-size {start} {increment} {samples} does not lead to --global-batch-size"
            f" ({args.global_batch_size}): start below it, and a number of increments up to it"
        )
    divides("the start of --rampup-batch-size", start, "--micro-batch-size x data-parallel size", rows)
    divides(
        "the increment of --rampup-batch-size", increment, "--micro-batch-size x data-parallel size", rows
    )


def _check_checkpointing(args: argparse.Namespace) -> None:
    positive(
        args, "save_interval", "save_retain_interval", "exit_interval", "exit_duration_in_mins", "ckpt_step"
    )
    if args.exit_signal_handler and args.exit_signal in _UNHANDLED:
        name = signal.Signals(args.exit_signal).name
        raise ArgumentError(
            f"--exit-signal {name} does not go with --exit-signal-handler: no process can handle it"
        )
    if args.save and args.save_interval is None:
        raise ArgumentError("--save needs --save-interval")
    if args.save_retain_interval and args.save_retain_interval % (args.save_interval or 1):
        raise ArgumentError(
            f"--save-retain-interval ({args.save_retain_interval}) must be a multiple of"
            f" --save-interval ({args.save_interval})"
        )
    if args.ckpt_step is not None and not args.load:
        raise ArgumentError("--ckpt-step needs --load")
    if args.log_progress and not args.save:
        raise ArgumentError("--log-progress needs --save")


def _check_data(args: argparse.Namespace) -> None:
    positive(args, "eval_interval")
    if args.eval_iters < 0:
        raise ArgumentError("--eval-iters must not be negative")
    per_split = [args.train_data_path, args.valid_data_path, args.test_data_path]
    if args.data_path is not None and args.data_args_path is not None:
        raise ArgumentError("give --data-path or --data-args-path, not both")
    blend = args.data_path is not None or args.data_args_path is not None
    given = [args.mock_data, blend, any(path is not None for path in per_split)]
    if sum(given) != 1:
        raise ArgumentError(
            "give exactly one of --mock-data, --data-path, or --train-data-path with --valid-data-path"
            " and --test-data-path"
        )
    for name in ("data_path", "train_data_path", "valid_data_path", "test_data_path"):
        if "" in (getattr(args, name) or []):
            raise ArgumentError(f"--{name.replace('_', '-')} names a data set with an empty text")
    if given[2] and args.split is not None:
        raise ArgumentError("--split divides --data-path; it has no meaning with --train-data-path")
    if given[2] and args.train_data_path is None and not args.skip_train:
        raise ArgumentError("--train-data-path must be given")
    if given[1] and args.split is None:
        args.split = "969,30,1"
    if given[1]:
        check_split(args)
    if args.tokenizer_type == "NullTokenizer":
        require(args, "vocab_size")
        not_negative(args, "vocab_size")
    elif args.tokenizer_type == "HuggingFaceTokenizer":
        require(args, "tokenizer_model")
        if not args.tokenizer_model:
            raise ArgumentError("--tokenizer-model is empty; give a directory with tokenizer files")
    else:
        raise ArgumentError("--tokenizer-type must be given (HuggingFaceTokenizer or NullTokenizer)")


def _check_wandb(args: argparse.Namespace) -> None:
    if not args.wandb_project:
        return
    if args.wandb_exp_name == "":
        raise ArgumentError("--wandb-project needs --wandb-exp-name to be more than an empty text")
    if not args.wandb_save_dir and not args.save:
        raise ArgumentError("--wandb-project without --save needs --wandb-save-dir")
    if not args.tensorboard_dir:
        raise ArgumentError("--wandb-project needs --tensorboard-dir: it gets what TensorBoard gets")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


_PARTS = (
    (start_lr_finder, ()),
    (_complete_model, (start_lr_finder,)),
    (_complete_parallelism, (_complete_model,)),
    (_complete_init, (_complete_model,)),
    (_complete_batch, (_complete_parallelism,)),
    (complete_lr_finder, (_complete_batch,)),
    (complete_learning_rate, (_complete_batch, complete_lr_finder)),
    (check_optimizer, (start_lr_finder,)),
    (_check_checkpointing, (start_lr_finder,)),
    (_check_data, ()),
    (_check_wandb, ()),
)
"""The parts of the arguments in the order of their checks, each with those whose values it needs."""
