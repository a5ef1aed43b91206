"""The trainer's command line: upstream Megatron-LM's flags, as far as this trainer honours them.

Names, types and defaults are those of core_v0.16.1 (``megatron/training/arguments.py``); the differences are that
``--exit-duration-in-mins`` takes fractions, ``--data-cache-path`` defaults to memory, ``--rope-scaling-factor`` has an
effect, and there are more optimizers, schedules and flags (:data:`EXTENSIONS`). A flag that upstream knows and this
trainer does not is an error, never silently ignored. The namespace is saved in every checkpoint.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.util
import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from megatron_core_trainer.optimization import lr_finder_options
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY, MEGATRON_CORE, parse_settings
from megatron_core_trainer.optimization.parametrization import DEFAULTS as MUP_DEFAULTS
from megatron_core_trainer.optimization.schedules import INFINITE_STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Flags that upstream Megatron-LM core_v0.16.1 does not have: Megatron-DeepSpeed's, this trainer's own, and those of muP
# that later releases have.
EXTENSIONS = (
    "constant_lr",
    "lr_constant_fraction",
    "lr_constant_plus_cooldown",
    "lr_constant_plus_cooldown_frac",
    "lr_cooldown_fraction",
    "lr_finder",
    "timescale",
    "enable_depth_scale",
    "depth_alpha",
    "depth_base",
    "lr_finder_end_lr",
    "lr_finder_smoothing",
    "lr_finder_start_lr",
    "lr_finder_stop_factor",
    "optimizer_settings",
    "small_init",
    "use_mup",
    "mup_attn_scale_power",
    "mup_base_head_dim",
    "mup_base_hidden_size",
    "mup_embedding_mult",
    "mup_output_mult",
)


class ArgumentError(Exception):
    """A command line that cannot work; the text names the flag and the hint."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


@dataclass(frozen=True)
class Tokenizer:
    """What training needs to know of a tokenizer.

    :param kind: ``NullTokenizer`` or ``HuggingFaceTokenizer``.
    :param vocab_size: number of tokens, the special ones included.
    :param eod: id of the end-of-document token.
    """

    kind: str
    vocab_size: int
    eod: int

    @property
    def unique_identifiers(self) -> dict[str, str]:
        """Identify the tokenizer in a data set's description."""
        return {"class": self.kind, "vocab_size": str(self.vocab_size), "eod": str(self.eod)}


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the trainer's command line."""
    parser = _Parser(
        prog="pretrain_gpt.py",
        description="Train a GPT model with megatron-core; flags as in Megatron-LM core_v0.16.1.",
        allow_abbrev=False,
    )
    for add in (
        _add_model,
        _add_parametrization,
        _add_parallelism,
        _add_training,
        _add_learning_rate,
        _add_checkpointing,
    ):
        add(parser)
    for add in (_add_lr_finder, _add_exit, _add_validation, _add_data, _add_logging):
        add(parser)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--num-layers", type=int)
    add("--hidden-size", type=int)
    add("--ffn-hidden-size", type=int, help="default 4h, or int(4h*2/3/64)*64 with --swiglu")
    add("--num-attention-heads", type=int)
    add("--kv-channels", type=int, help="default hidden size / attention heads")
    add("--group-query-attention", action="store_true")
    add("--num-query-groups", type=int, default=1)
    add("--max-position-embeddings", type=int)
    add("--position-embedding-type", choices=["learned_absolute", "rope", "none"], default="learned_absolute")
    add("--rotary-base", type=int, default=10000)
    add("--rotary-percent", type=float, default=1.0)
    add("--rotary-interleaved", action="store_true")
    add(
        "--use-rope-scaling",
        action="store_true",
        help="rotary frequencies of Llama 3.1 (from 8192 positions)",
    )
    add("--rope-scaling-factor", type=float, default=8.0, help="of the lowest; upstream's has no effect")
    add("--normalization", choices=["LayerNorm", "RMSNorm"], default="LayerNorm")
    add("--norm-epsilon", dest="layernorm_epsilon", type=float, default=1e-5)
    add("--swiglu", action="store_true")
    add("--disable-bias-linear", dest="add_bias_linear", action="store_false")
    add("--add-qkv-bias", action="store_true")
    add("--qk-layernorm", action="store_true")
    add("--untie-embeddings-and-output-weights", action="store_true")
    add("--make-vocab-size-divisible-by", type=int, default=128)
    add("--init-method-std", type=float, default=0.02)
    add("--embedding-init-method-std", type=float, help="default: that of the other weights")
    add(
        "--small-init",
        action="store_true",
        help="standard deviation sqrt(2 / (5 hidden size)) in place of --init-method-std; not upstream's",
    )
    add("--attention-dropout", type=float, default=0.1)
    add("--hidden-dropout", type=float, default=0.1)
    add("--attention-softmax-in-fp32", action="store_true")
    add("--transformer-impl", choices=["local", "transformer_engine"], default="transformer_engine")
    add("--attention-backend", choices=["flash", "fused", "unfused", "auto"], default="auto")
    add("--no-gradient-accumulation-fusion", dest="gradient_accumulation_fusion", action="store_false")
    add("--no-masked-softmax-fusion", dest="masked_softmax_fusion", action="store_false")
    add("--no-bias-gelu-fusion", dest="bias_gelu_fusion", action="store_false")
    add("--no-bias-swiglu-fusion", dest="bias_swiglu_fusion", action="store_false")
    add("--no-bias-dropout-fusion", dest="bias_dropout_fusion", action="store_false")
    add("--no-rope-fusion", dest="apply_rope_fusion", action="store_false")
    add("--no-persist-layer-norm", action="store_true")


def _add_parametrization(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "parametrization (megatron_core_trainer/optimization/parametrization.py has the formulas)"
    )
    add = group.add_argument
    # Upstream's, from core_v0.17.0 on.
    add("--use-mup", action="store_true", help="hyperparameters of the base width hold at other widths")
    add("--mup-base-hidden-size", type=int, help="default: the hidden size, which scales nothing")
    add("--mup-embedding-mult", type=float, default=MUP_DEFAULTS["mup_embedding_mult"])
    add(
        "--mup-output-mult",
        type=float,
        default=MUP_DEFAULTS["mup_output_mult"],
        help="1.0: base hidden size / hidden size",
    )
    add(
        "--mup-base-head-dim", type=float, help="attention scale sqrt(this) / head dimension^power; default 1"
    )
    add("--mup-attn-scale-power", type=float, default=MUP_DEFAULTS["mup_attn_scale_power"])
    # Megatron-DeepSpeed's.
    add(
        "--enable-depth-scale", action="store_true", help="CompleteP: ... and at other depths; with --use-mup"
    )
    add("--depth-base", type=int, help="layers of the base model")
    add("--depth-alpha", type=float, default=MUP_DEFAULTS["depth_alpha"], help="power of the depth, 0.5 to 1")


def _add_parallelism(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parallelism")
    add = group.add_argument
    add("--tensor-model-parallel-size", type=int, default=1)
    add("--pipeline-model-parallel-size", type=int, default=1)
    add("--sequence-parallel", action="store_true")
    add("--use-distributed-optimizer", action="store_true")
    add("--overlap-grad-reduce", action="store_true")
    add("--overlap-param-gather", action="store_true")
    add("--distributed-backend", choices=["nccl", "gloo"], default="nccl")
    add("--distributed-timeout-minutes", type=int, default=10)
    add(
        "--use-cpu-initialization",
        action="store_true",
        help="weights do not depend on the number of tensor parallel ranks; with pipeline stages they are others",
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--micro-batch-size", type=int)
    add("--global-batch-size", type=int, help="default micro batch size x data-parallel size")
    add("--seq-length", type=int)
    add("--train-iters", type=int)
    add("--train-samples", type=int, help="length of the training, in place of --train-iters")
    add(
        "--rampup-batch-size",
        nargs=3,
        type=int,
        metavar=("START", "INCREMENT", "SAMPLES"),
        help="grow to --global-batch-size over so many samples; with --train-samples",
    )
    add("--seed", type=int, default=1234)
    add("--bf16", action="store_true")
    add(
        "--optimizer",
        choices=[*MEGATRON_CORE, *sorted(LIBRARY)],
        default="adam",
        help=f"{', '.join(MEGATRON_CORE)} are megatron-core's, the others the library pytorch_optimizer's",
    )
    add(
        "--optimizer-settings",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the library's optimizer; not upstream's",
    )
    add("--sgd-momentum", type=float, default=0.9)
    add("--adam-beta1", type=float, default=0.9)
    add("--adam-beta2", type=float, default=0.999)
    add("--adam-eps", type=float, default=1e-8)
    add("--clip-grad", type=float, default=1.0)
    add("--weight-decay", type=float, default=0.01)
    add("--start-weight-decay", type=float)
    add("--end-weight-decay", type=float)
    add("--weight-decay-incr-style", choices=["constant", "linear", "cosine"], default="constant")
    add(
        "--no-check-for-nan-in-loss-and-grad",
        dest="check_for_nan_in_loss_and_grad",
        action="store_false",
        help="go on when a loss or a gradient is not finite",
    )


def _add_learning_rate(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning rate")
    add = group.add_argument
    styles = ["constant", "linear", "cosine", "inverse-square-root", "WSD", *INFINITE_STYLES]
    add("--lr", type=float)
    add("--min-lr", type=float, default=0.0)
    add("--lr-decay-style", choices=styles, default="linear")
    add("--lr-decay-iters", type=int, help="default --train-iters")
    add("--lr-decay-samples", type=int, help="default --train-samples")
    add(
        "--lr-wsd-decay-style",
        choices=["exponential", "linear", "cosine", "minus_sqrt"],
        default="exponential",
    )
    add("--lr-wsd-decay-iters", type=int)
    add("--lr-wsd-decay-samples", type=int)
    add("--lr-warmup-iters", type=int, default=0)
    add("--lr-warmup-samples", type=int, default=0)
    add(
        "--lr-warmup-fraction",
        type=float,
        help="of --lr-decay-iters (or samples), in place of the two others",
    )
    add("--lr-warmup-init", type=float, default=0.0)
    # Flags of Megatron-DeepSpeed, fractions of --lr-decay-iters.
    add("--lr_constant_plus_cooldown", "--lr-constant-plus-cooldown", action="store_true")
    add("--lr_constant_plus_cooldown_frac", "--lr-constant-plus-cooldown-frac", type=float, default=0.05)
    add("--constant-lr", type=float, default=0.00011, help="rate of the constant phase of an infinite style")
    add("--lr-cooldown-fraction", type=float, default=0.65, help="infinite styles: the fall after warm-up")
    add("--lr-constant-fraction", type=float, default=0.001, help="infinite styles: the constant phase")
    add("--timescale", type=float, default=10.0, help="steepness of infinite-inv-square-root")
    add("--override-opt_param-scheduler", "--override-opt-param-scheduler", action="store_true")
    add("--use-checkpoint-opt_param-scheduler", "--use-checkpoint-opt-param-scheduler", action="store_true")


def _add_lr_finder(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning-rate finder")
    group.add_argument(
        "--lr-finder",
        action="store_true",
        help="raise the learning rate exponentially over --train-iters and write SAVE/lr_finder/",
    )
    lr_finder_options.add_options(group)


def _add_checkpointing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpointing")
    add = group.add_argument
    add("--save")
    add("--save-interval", "--persistent-save-interval", type=int)
    add("--save-retain-interval", type=int)
    add("--no-save-optim", action="store_true")
    add("--no-save-rng", action="store_true")
    add("--load")
    add("--no-load-optim", action="store_true")
    add("--no-load-rng", action="store_true")
    add("--ckpt-step", type=int, help="load this iteration, whatever the tracker file says")
    add("--finetune", action="store_true", help="load the weights only and start at iteration 0")
    add("--pretrained-checkpoint", help="finetune from here while --load holds no checkpoint")
    add("--ckpt-format", choices=["torch_dist"], default="torch_dist")
    add("--use-checkpoint-args", action="store_true", help="take the model's shape from the checkpoint")
    add("--exit-on-missing-checkpoint", action="store_true")


def _add_exit(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("exit")
    add = group.add_argument
    add("--exit-interval", type=int)
    add("--exit-duration-in-mins", type=float)
    add("--exit-signal-handler", action="store_true", help="save and exit with 0 on --exit-signal")
    add("--exit-signal", type=_signal, default=signal.SIGTERM, help="name or number, default SIGTERM")


def _add_validation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("validation")
    add = group.add_argument
    add("--eval-iters", type=int, default=100)
    add("--eval-interval", type=int, help="default: only at the end")
    add("--full-validation", action="store_true", help="validate on the whole validation set, each time")
    add("--skip-train", action="store_true")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    add = group.add_argument
    add("--data-path", nargs="*")
    add("--data-args-path", help="file with what --data-path would say, for blends that are long")
    add("--split", help="shares of --data-path, default 969,30,1")
    add("--train-data-path", nargs="*")
    add("--valid-data-path", nargs="*")
    add("--test-data-path", nargs="*")
    add("--data-cache-path", help="keep the sample order in files; default: in memory")
    add("--mock-data", action="store_true")
    add("--num-workers", type=int, default=2)
    add("--num-dataset-builder-threads", type=int, default=1)
    add("--tokenizer-type", choices=["NullTokenizer", "HuggingFaceTokenizer"])
    add("--tokenizer-model", help="directory with tokenizer.json")
    add("--vocab-size", type=int, help="of the NullTokenizer, without its end-of-document token")
    add("--reset-position-ids", action="store_true")
    add("--reset-attention-mask", action="store_true")
    add("--eod-mask-loss", action="store_true")
    add(
        "--no-create-attention-mask-in-dataloader",
        dest="create_attention_mask_in_dataloader",
        action="store_false",
    )
    add("--no-mmap-bin-files", dest="mmap_bin_files", action="store_false")


def _add_logging(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logging")
    add = group.add_argument
    add("--log-interval", type=int, default=100)
    add("--log-throughput", action="store_true")
    add("--log-params-norm", action="store_true")
    add("--log-num-zeros-in-grad", action="store_true")
    add("--log-progress", action="store_true", help="append what happens to SAVE/progress.txt")
    add("--tensorboard-dir")
    add("--tensorboard-log-interval", type=int, default=1)
    add("--wandb-project", help="send what TensorBoard gets to Weights & Biases too")
    add("--wandb-entity")
    add("--wandb-exp-name")
    add("--wandb-save-dir", help="default SAVE/wandb")


def _signal(text: str) -> signal.Signals:
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[text.upper()]
    except (KeyError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"no signal is called {text!r}") from error


def parse_args(argv: Sequence[str], *, world_size: int, has_cuda: bool) -> argparse.Namespace:
    """Read and check the command line.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :param has_cuda: whether the model will run on GPUs; without one, what needs CUDA kernels is switched off.
    :raises ArgumentError: for an unknown flag, or values that do not fit together.
    """
    parser = build_parser()
    args, unknown = parser.parse_known_args(list(argv))
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else " (see --help)"
        raise ArgumentError(f"this trainer has no argument {unknown[0]!r}{hint}")
    args.world_size = world_size
    args.exit_signal = int(args.exit_signal)
    if not has_cuda:
        run_on_cpu(args)
    return args


def run_on_cpu(args: argparse.Namespace) -> None:
    """Switch off what needs CUDA kernels.

    :param args: parsed arguments.
    """
    args.distributed_backend = "gloo"
    args.transformer_impl = "local"
    args.use_cpu_initialization = True
    args.attention_backend = "unfused"
    args.no_persist_layer_norm = True
    args.gradient_accumulation_fusion = args.masked_softmax_fusion = args.apply_rope_fusion = False
    args.bias_gelu_fusion = args.bias_swiglu_fusion = args.bias_dropout_fusion = False


# Settings that belong to the model rather than to a run: --use-checkpoint-args takes them from the checkpoint.
MODEL_SETTINGS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "kv_channels",
    "group_query_attention",
    "num_query_groups",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "use_rope_scaling",
    "rope_scaling_factor",
    "normalization",
    "layernorm_epsilon",
    "swiglu",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "untie_embeddings_and_output_weights",
    "seq_length",
    "attention_dropout",
    "hidden_dropout",
    "padded_vocab_size",
    "use_mup",
    *MUP_DEFAULTS,
)
_OVERRIDABLE = ("seq_length", "max_position_embeddings")


def take_model_settings(args: argparse.Namespace, saved: Mapping[str, Any]) -> None:
    """Set the model's shape from a checkpoint (``--use-checkpoint-args``).

    :param args: the run's arguments; a sequence length given there stays.
    :param saved: the arguments saved in the checkpoint.
    """
    for name in MODEL_SETTINGS:
        if name in saved and not (name in _OVERRIDABLE and getattr(args, name) is not None):
            setattr(args, name, saved[name])


def complete_args(args: argparse.Namespace) -> None:
    """Fill in derived values and refuse what cannot work, before anything expensive starts.

    The rules are those of upstream's ``validate_args``, ``TransformerConfig`` and ``OptimizerParamScheduler``.

    :param args: parsed arguments.
    :raises ArgumentError: naming the flags that do not fit.
    """
    _complete_model(args)
    _complete_parallelism(args)
    _complete_init(args)
    _complete_batch(args)
    _complete_lr_finder(args)
    _complete_learning_rate(args)
    _check_optimizer(args)
    _check_checkpointing(args)
    _check_data(args)
    _check_wandb(args)
    args.consumed_train_samples = args.skipped_train_samples = args.consumed_valid_samples = 0
    args.iteration = 0


def check_machine(args: argparse.Namespace) -> None:
    """Refuse what this machine lacks: data files, a package.

    :param args: complete arguments.
    :raises ArgumentError: naming what is missing.
    """
    if args.data_args_path is not None:
        if not Path(args.data_args_path).is_file():
            raise ArgumentError(f"--data-args-path: there is no file {args.data_args_path}")
        args.data_path = Path(args.data_args_path).read_text(encoding="utf-8").split()
    if args.wandb_project and not importlib.util.find_spec("wandb"):
        raise ArgumentError("--wandb-project needs the package wandb; install it")
    per_split = [args.train_data_path, args.valid_data_path, args.test_data_path]
    for path in [*(args.data_path or []), *(prefix for paths in per_split for prefix in paths or [])]:
        if not _is_number(path) and not Path(path + ".idx").is_file():
            raise ArgumentError(
                f"{path}.idx does not exist: data paths are prefixes of a .bin and an .idx file"
            )
    if args.transformer_impl == "transformer_engine" and not importlib.util.find_spec("transformer_engine"):
        raise ArgumentError(
            "Transformer Engine is not installed; install it, or give --transformer-impl local"
        )
    if args.optimizer in LIBRARY and not importlib.util.find_spec("pytorch_optimizer"):
        raise ArgumentError(f"--optimizer {args.optimizer} needs the package pytorch_optimizer; install it")


def _require(args: argparse.Namespace, *names: str) -> None:
    missing = ["--" + name.replace("_", "-") for name in names if getattr(args, name) is None]
    if missing:
        raise ArgumentError(f"{', '.join(missing)} must be given")


def _positive(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ArgumentError(f"--{name.replace('_', '-')} must be above zero, not {value}")


def _divides(what: str, value: int, by: str, divisor: int) -> None:
    if value % divisor:
        raise ArgumentError(f"{what} ({value}) must be a multiple of {by} ({divisor})")


def _complete_model(args: argparse.Namespace) -> None:
    _require(
        args, "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings"
    )
    _positive(args, "num_layers", "hidden_size", "num_attention_heads", "seq_length", "ffn_hidden_size")
    _positive(args, "rope_scaling_factor")
    if args.kv_channels is None:
        _divides("--hidden-size", args.hidden_size, "--num-attention-heads", args.num_attention_heads)
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
        _divides(
            "--num-attention-heads", args.num_attention_heads, "--num-query-groups", args.num_query_groups
        )
    else:
        args.num_query_groups = args.num_attention_heads
    if args.normalization == "RMSNorm" and args.transformer_impl == "local":
        # megatron-core's local RMSNorm is torch's, which has no fused form to persist.
        args.no_persist_layer_norm = True
    args.add_position_embedding = args.position_embedding_type == "learned_absolute"
    args.use_rotary_position_embeddings = args.position_embedding_type == "rope"


def _complete_init(args: argparse.Namespace) -> None:
    _check_parametrization(args)
    # SmallInit (Nguyen & Salazar 2019, arXiv:1910.05895); Takase et al. 2023, arXiv:2312.16903, add a larger embedding.
    if args.small_init:
        # muP scales from the base width to this one.
        width = (args.mup_base_hidden_size if args.use_mup else None) or args.hidden_size
        args.init_method_std = math.sqrt(2.0 / (5.0 * width))
    _positive(args, "init_method_std", "embedding_init_method_std")


def _check_parametrization(args: argparse.Namespace) -> None:
    def given(*names: str) -> str:
        return ", ".join(
            f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != MUP_DEFAULTS[name]
        )

    if not args.use_mup:
        if flags := given(*MUP_DEFAULTS):
            raise ArgumentError(f"{flags} has no meaning without --use-mup; give --use-mup, or leave it out")
        return
    _positive(
        args,
        *("mup_base_hidden_size", "mup_embedding_mult", "mup_output_mult", "mup_base_head_dim", "depth_base"),
    )
    choice = LIBRARY.get(args.optimizer)
    if choice is not None and not choice.entrywise:
        fitting = [*MEGATRON_CORE, *sorted(name for name, other in LIBRARY.items() if other.entrywise)]
        raise ArgumentError(
            f"--use-mup knows no rule for --optimizer {args.optimizer}, which does not move each weight by about the"
            f" learning rate as Adam does; it has rules for {', '.join(fitting)}"
        )
    if not args.enable_depth_scale:
        if flags := given("depth_base", "depth_alpha"):
            raise ArgumentError(
                f"{flags} has no meaning without --enable-depth-scale; give it, or leave it out"
            )
        return
    _require(args, "depth_base")
    if args.optimizer == "sgd":
        raise ArgumentError("--enable-depth-scale has rules for Adam and its kin, not for --optimizer sgd")
    if not 0.5 <= args.depth_alpha <= 1:
        raise ArgumentError(f"--depth-alpha must lie between 0.5 and 1 (CompleteP), not {args.depth_alpha}")


def _check_optimizer(args: argparse.Namespace) -> None:
    name = args.optimizer
    choice = LIBRARY.get(name)
    if choice is None:
        if args.optimizer_settings:
            raise ArgumentError(
                f"--optimizer-settings are for the library's optimizers; {name} has flags of its own"
            )
        return
    if args.use_distributed_optimizer:
        raise ArgumentError(
            f"--use-distributed-optimizer divides the state of {', '.join(MEGATRON_CORE)} only; leave it out with"
            f" --optimizer {name}"
        )
    if choice.whole_tensors and args.tensor_model_parallel_size > 1:
        raise ArgumentError(
            f"--optimizer {name} needs whole weight matrices, which --tensor-model-parallel-size"
            f" {args.tensor_model_parallel_size} divides; use pipeline and data parallelism"
        )
    plain = args.lr_decay_style == "constant" and not args.lr_constant_plus_cooldown
    if choice.schedule_free and not plain and not args.lr_finder:
        raise ArgumentError(
            f"--optimizer {name} averages the weights in place of a falling learning rate: give --lr-decay-style"
            " constant (warm-up is fine)"
        )
    try:
        parse_settings(args.optimizer_settings)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _complete_lr_finder(args: argparse.Namespace) -> None:
    if not args.lr_finder:
        return
    if not args.save:
        raise ArgumentError("--lr-finder needs --save: it writes SAVE/lr_finder/")
    if args.load and not args.finetune:
        raise ArgumentError("--lr-finder starts its own schedule: give --finetune with --load, or no --load")
    if (problem := lr_finder_options.problem(args)) is not None:
        raise ArgumentError(problem)
    # The sweep is the schedule; what it ends in is a loss that is not finite, which is no error here.
    args.lr, args.min_lr, args.lr_decay_style = args.lr_finder_end_lr, 0.0, "constant"
    args.lr_warmup_iters, args.lr_warmup_fraction, args.lr_warmup_init = 0, None, 0.0
    args.lr_constant_plus_cooldown = False
    args.check_for_nan_in_loss_and_grad = False
    args.save_interval = args.save_interval or args.train_iters


def _complete_parallelism(args: argparse.Namespace) -> None:
    _positive(args, "tensor_model_parallel_size", "pipeline_model_parallel_size")
    tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    _divides(
        "the number of processes",
        args.world_size,
        "--tensor-model-parallel-size x --pipeline-model-parallel-size",
        tensor * pipeline,
    )
    args.data_parallel_size = args.world_size // (tensor * pipeline)
    _divides("--num-layers", args.num_layers, "--pipeline-model-parallel-size", pipeline)
    _divides("--num-attention-heads", args.num_attention_heads, "--tensor-model-parallel-size", tensor)
    if args.num_query_groups % tensor and tensor % args.num_query_groups:
        raise ArgumentError(
            f"--num-query-groups ({args.num_query_groups}) must be a multiple or a divisor of"
            f" --tensor-model-parallel-size ({tensor})"
        )
    _divides("--ffn-hidden-size", args.ffn_hidden_size, "--tensor-model-parallel-size", tensor)
    if tensor == 1:
        args.sequence_parallel = False
    if args.sequence_parallel:
        _divides("--seq-length", args.seq_length, "--tensor-model-parallel-size", tensor)
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
    _require(args, "micro_batch_size")
    if args.train_samples is None:
        _require(args, "train_iters")
    _positive(args, "micro_batch_size", "global_batch_size", "train_iters", "train_samples")
    _positive(args, "log_interval", "seed")
    _check_length(args)
    rows = args.micro_batch_size * args.data_parallel_size
    if args.global_batch_size is None:
        args.global_batch_size = rows
    _divides("--global-batch-size", args.global_batch_size, "--micro-batch-size x data-parallel size", rows)
    args.num_microbatches = args.global_batch_size // rows
    if args.rampup_batch_size is not None:
        _check_ramp_up(args, rows)


def _unit(args: argparse.Namespace) -> str:
    """Return what the length of the training is given in, the end of its arguments' names."""
    return "iters" if args.train_samples is None else "samples"


def _check_length(args: argparse.Namespace) -> None:
    unit = _unit(args)
    other = "samples" if unit == "iters" else "iters"
    names = [f"{name}_{other}" for name in ("train", "lr_decay", "lr_warmup", "lr_wsd_decay")]
    given = [name for name in names if getattr(args, name)]
    if unit == "iters" and args.rampup_batch_size is not None:
        given.append("rampup_batch_size")
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise ArgumentError(f"{flag} does not go with --train-{unit}: it belongs to --train-{other}")
    if args.lr_finder:
        _require(args, "train_iters")


def _check_ramp_up(args: argparse.Namespace, rows: int) -> None:
    start, increment, samples = args.rampup_batch_size
    growth = args.global_batch_size - start
    if start < 1 or increment < 1 or samples < 1 or growth < 1 or growth % increment:
        raise ArgumentError(
            f"--rampup-batch-size {start} {increment} {samples} does not lead to --global-batch-size"
            f" ({args.global_batch_size}): start below it, and a number of increments up to it"
        )
    _divides("the start of --rampup-batch-size", start, "--micro-batch-size x data-parallel size", rows)
    _divides(
        "the increment of --rampup-batch-size", increment, "--micro-batch-size x data-parallel size", rows
    )


def _complete_learning_rate(args: argparse.Namespace) -> None:
    _require(args, "lr")
    unit = _unit(args)
    wsd_decay, warmup = getattr(args, f"lr_wsd_decay_{unit}"), getattr(args, f"lr_warmup_{unit}")
    _positive(args, "lr_decay_iters", "lr_decay_samples")
    if not 0 <= args.min_lr <= args.lr:
        raise ArgumentError(f"--min-lr ({args.min_lr}) must lie between 0 and --lr ({args.lr})")
    if args.lr_warmup_init > args.lr:
        raise ArgumentError(f"--lr-warmup-init ({args.lr_warmup_init}) must not exceed --lr ({args.lr})")
    decay = getattr(args, f"lr_decay_{unit}") or getattr(args, f"train_{unit}")
    if args.lr_warmup_fraction is not None:
        if warmup:
            raise ArgumentError(f"give --lr-warmup-fraction or --lr-warmup-{unit}, not both")
        if not 0 <= args.lr_warmup_fraction < 1:
            raise ArgumentError(f"--lr-warmup-fraction must lie in [0, 1), not {args.lr_warmup_fraction}")
    elif warmup >= decay:
        raise ArgumentError(f"--lr-warmup-{unit} ({warmup}) must be below --lr-decay-{unit} ({decay})")
    if args.lr_decay_style == "WSD":
        if wsd_decay is None:
            raise ArgumentError(f"--lr-decay-style WSD needs --lr-wsd-decay-{unit} (0: no decay)")
        if wsd_decay < 0:
            raise ArgumentError(f"--lr-wsd-decay-{unit} must not be negative")
        if wsd_decay > decay:
            raise ArgumentError(
                f"--lr-wsd-decay-{unit} ({wsd_decay}) must not exceed --lr-decay-{unit} ({decay})"
            )
    _check_closed_forms(
        args, warmup if args.lr_warmup_fraction is None else args.lr_warmup_fraction * decay, decay
    )
    setattr(args, f"lr_decay_{unit}", decay)
    if args.override_opt_param_scheduler and args.use_checkpoint_opt_param_scheduler:
        raise ArgumentError(
            "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler exclude each other"
        )
    if args.start_weight_decay is None and args.end_weight_decay is None:
        args.start_weight_decay = args.end_weight_decay = args.weight_decay
    elif args.start_weight_decay is None or args.end_weight_decay is None:
        raise ArgumentError("--start-weight-decay and --end-weight-decay go together")
    if args.weight_decay_incr_style == "constant" and args.start_weight_decay != args.end_weight_decay:
        raise ArgumentError(
            "different start and end weight decay need --weight-decay-incr-style linear or cosine"
        )
    if not 0 <= args.start_weight_decay <= args.end_weight_decay:
        raise ArgumentError("weight decay must not be negative and may only grow")


def _check_closed_forms(args: argparse.Namespace, warmup: float, decay: int) -> None:
    if args.lr_constant_plus_cooldown:
        share = args.lr_constant_plus_cooldown_frac
        if args.lr_decay_style != "constant":
            raise ArgumentError("--lr_constant_plus_cooldown goes with --lr-decay-style constant")
        if not 0 < share <= 1 or warmup + share * decay > decay:
            raise ArgumentError(
                f"--lr_constant_plus_cooldown_frac ({share}) must be above zero, and warm-up and cooldown must fit into"
                f" --lr-decay-iters ({decay})"
            )
    if args.lr_decay_style not in INFINITE_STYLES:
        return
    if not 0 < args.min_lr < args.constant_lr <= args.lr:
        raise ArgumentError(
            f"--lr-decay-style {args.lr_decay_style} falls exponentially at its end: 0 < --min-lr ({args.min_lr}) <"
            f" --constant-lr ({args.constant_lr}) <= --lr ({args.lr}) must hold"
        )
    _positive(args, "lr_cooldown_fraction", "timescale")
    if args.lr_constant_fraction < 0:
        raise ArgumentError("--lr-constant-fraction must not be negative")
    if warmup + (args.lr_cooldown_fraction + args.lr_constant_fraction) * decay >= decay:
        raise ArgumentError(
            "warm-up, --lr-cooldown-fraction and --lr-constant-fraction must leave something of --lr-decay-iters"
            f" ({decay})"
        )


def _check_checkpointing(args: argparse.Namespace) -> None:
    _positive(
        args, "save_interval", "save_retain_interval", "exit_interval", "exit_duration_in_mins", "ckpt_step"
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
    _positive(args, "eval_interval")
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
    if given[2] and args.split is not None:
        raise ArgumentError("--split divides --data-path; it has no meaning with --train-data-path")
    if given[2] and args.train_data_path is None and not args.skip_train:
        raise ArgumentError("--train-data-path must be given")
    if given[1] and args.split is None:
        args.split = "969,30,1"
    if args.tokenizer_type == "NullTokenizer":
        _require(args, "vocab_size")
    elif args.tokenizer_type == "HuggingFaceTokenizer":
        _require(args, "tokenizer_model")
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


def pad_vocab(args: argparse.Namespace, tokenizer: Tokenizer) -> None:
    """Set ``padded_vocab_size``: up to a multiple of ``--make-vocab-size-divisible-by`` x tensor-parallel size.

    :param args: the run's arguments; a size taken from a checkpoint stays.
    :param tokenizer: the tokenizer.
    """
    args.tokens_in_vocabulary = tokenizer.vocab_size
    saved = getattr(args, "padded_vocab_size", None)
    if saved is None:
        multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
        args.padded_vocab_size = math.ceil(tokenizer.vocab_size / multiple) * multiple
    elif saved < tokenizer.vocab_size or saved % args.tensor_model_parallel_size:
        raise ArgumentError(
            f"the checkpoint's vocabulary ({saved}) does not fit the tokenizer ({tokenizer.vocab_size} tokens) or"
            f" --tensor-model-parallel-size ({args.tensor_model_parallel_size})"
        )


def print_args(args: argparse.Namespace, print_line: Any = print) -> None:
    """Print all arguments in alphabetical order, as upstream does.

    :param args: the run's arguments.
    :param print_line: called with every line.
    """
    print_line("------------------------ arguments ------------------------")
    for name in sorted(vars(args), key=str.lower):
        print_line(f"  {name} {'.' * max(3, 48 - len(name))} {getattr(args, name)}")
    print_line("-------------------- end of arguments ---------------------")
