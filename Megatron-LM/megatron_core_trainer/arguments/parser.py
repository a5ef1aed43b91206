"""The parser of the command line: names, types and defaults of the flags."""

from __future__ import annotations

import argparse
import difflib
import functools
import signal
from typing import TYPE_CHECKING, NoReturn

from megatron_core_trainer.arguments.errors import ArgumentError
from megatron_core_trainer.optimization import lr_finder_options
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY, MEGATRON_CORE
from megatron_core_trainer.optimization.parametrization import DEFAULTS as MUP_DEFAULTS
from megatron_core_trainer.optimization.schedules import INFINITE_STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence

# Flags that upstream Megatron-LM core_v0.16.1 does not have: flags of Megatron-DeepSpeed, of this trainer, and the muP
# flags of later releases.
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the trainer's command line."""
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
    # Upstream has these from core_v0.17.0 on.
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
    # Flags of Megatron-DeepSpeed.
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
    :param has_cuda: whether the model will run on GPUs; if not, options that need CUDA kernels are switched off.
    :raises ArgumentError: for an unknown flag, or for conflicting values.
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
    """Switch off the options that need CUDA kernels.

    :param args: parsed arguments.
    """
    args.distributed_backend = "gloo"
    args.transformer_impl = "local"
    args.use_cpu_initialization = True
    args.attention_backend = "unfused"
    args.no_persist_layer_norm = True
    args.gradient_accumulation_fusion = args.masked_softmax_fusion = args.apply_rope_fusion = False
    args.bias_gelu_fusion = args.bias_swiglu_fusion = args.bias_dropout_fusion = False
