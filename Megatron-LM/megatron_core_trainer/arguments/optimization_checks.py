"""Complete and check the arguments of the optimizer and its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_core_trainer.arguments.errors import ArgumentError
from megatron_core_trainer.arguments.value_checks import (
    finite,
    fraction,
    not_negative,
    positive,
    require,
)
from megatron_core_trainer.optimization import lr_finder_options
from megatron_core_trainer.optimization.lr_finder_options import LEAST_POINTS
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY, MEGATRON_CORE, parse_settings
from megatron_core_trainer.optimization.parametrization import DEFAULTS as MUP_DEFAULTS
from megatron_core_trainer.optimization.schedules import INFINITE_STYLES

if TYPE_CHECKING:
    import argparse


_SETTINGS = {"adam": ("adam_beta1", "adam_beta2", "adam_eps"), "sgd": ("sgd_momentum",)}


def length_unit(args: argparse.Namespace) -> str:
    """Return the unit of the training's length, ``iters`` or ``samples``: the last part of its arguments' names."""
    return "iters" if args.train_samples is None else "samples"


def check_parametrization(args: argparse.Namespace) -> None:
    """Check the arguments of muP and CompleteP.

    :raises ArgumentError: naming the flags that do not fit.
    """

    def given(*names: str) -> str:
        return ", ".join(
            f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != MUP_DEFAULTS[name]
        )

    if not args.use_mup:
        if flags := given(*MUP_DEFAULTS):
            raise ArgumentError(f"{flags} has no meaning without --use-mup; give --use-mup, or leave it out")
        return
    positive(
        args,
        *("mup_base_hidden_size", "mup_embedding_mult", "mup_output_mult", "mup_base_head_dim", "depth_base"),
    )
    finite(args, "mup_embedding_mult", "mup_output_mult", "mup_base_head_dim", "mup_attn_scale_power")
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
    require(args, "depth_base")
    if args.optimizer == "sgd":
        raise ArgumentError("--enable-depth-scale has rules for Adam and its kin, not for --optimizer sgd")
    if not 0.5 <= args.depth_alpha <= 1:
        raise ArgumentError(f"--depth-alpha must lie between 0.5 and 1 (CompleteP), not {args.depth_alpha}")


def check_optimizer(args: argparse.Namespace) -> None:
    """Check that the optimizer works with the parallelism, the schedule and its own settings.

    :raises ArgumentError: naming the flags that do not fit.
    """
    name = args.optimizer
    choice = LIBRARY.get(name)
    if choice is None:
        if name == "sgd":
            not_negative(args, "sgd_momentum")
            finite(args, "sgd_momentum")
        else:
            fraction(args, "adam_beta1", "adam_beta2", below_one=True)
            not_negative(args, "adam_eps")
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
        settings = parse_settings(args.optimizer_settings)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    for setting, value in settings.items():
        if (problem := choice.problem(setting, value)) is not None:
            raise ArgumentError(f"--optimizer {name} {problem}")


def unused_settings(args: argparse.Namespace, defaults: argparse.ArgumentParser) -> list[str]:
    """Return the given flags of optimizers other than ``--optimizer``, which does not use them.

    :param args: complete arguments.
    :param defaults: the parser, which has the values of flags that are not given.
    """
    used = "sgd" if args.optimizer == "sgd" else None if args.optimizer in LIBRARY else "adam"
    return [
        "--" + name.replace("_", "-")
        for optimizer, names in _SETTINGS.items()
        for name in names
        if optimizer != used and getattr(args, name) != defaults.get_default(name)
    ]


def start_lr_finder(args: argparse.Namespace) -> None:
    """Remove the schedule that a learning-rate search replaces, whose length may be in another unit.

    :raises ArgumentError: if the search has no number of steps, or too few for its analysis.
    """
    if not args.lr_finder:
        return
    args.lr_decay_iters = args.lr_decay_samples = args.lr_wsd_decay_iters = args.lr_wsd_decay_samples = None
    args.lr_warmup_iters, args.lr_warmup_samples, args.lr_warmup_fraction = 0, 0, None
    args.lr_warmup_init, args.lr_decay_style, args.lr_constant_plus_cooldown = 0.0, "constant", False
    if args.train_iters is None:
        other = ", in place of --train-samples" if args.train_samples is not None else ""
        raise ArgumentError(f"--lr-finder needs --train-iters, the number of its steps{other}")
    if args.train_iters < LEAST_POINTS:
        raise ArgumentError(
            f"--train-iters ({args.train_iters}) must be at least {LEAST_POINTS} with --lr-finder, which finds"
            " nothing in fewer steps"
        )


def complete_lr_finder(args: argparse.Namespace) -> None:
    """Set the learning rates of a search, if one is requested.

    :raises ArgumentError: naming the flags that do not fit.
    """
    if not args.lr_finder:
        return
    if not args.save:
        raise ArgumentError("--lr-finder needs --save: it writes SAVE/lr_finder/")
    if args.load and not args.finetune:
        raise ArgumentError("--lr-finder starts its own schedule: give --finetune with --load, or no --load")
    if (problem := lr_finder_options.problem(args)) is not None:
        raise ArgumentError(problem)
    # The search is the schedule. It may end with a loss that is not finite; that is not an error here.
    args.lr, args.min_lr = args.lr_finder_end_lr, 0.0
    args.check_for_nan_in_loss_and_grad = False
    args.save_interval = args.save_interval or args.train_iters


def complete_learning_rate(args: argparse.Namespace) -> None:
    """Fill in and check the schedules of learning rate and weight decay by the assertions of upstream's scheduler.

    :raises ArgumentError: naming the flags that do not fit.
    """
    require(args, "lr")
    finite(args, "lr", "lr_warmup_init", "weight_decay", "start_weight_decay", "end_weight_decay")
    unit = length_unit(args)
    wsd_decay, warmup = getattr(args, f"lr_wsd_decay_{unit}"), getattr(args, f"lr_warmup_{unit}")
    positive(args, "lr_decay_iters", "lr_decay_samples")
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
    positive(args, "lr_cooldown_fraction", "timescale")
    not_negative(args, "lr_constant_fraction")
    if warmup + (args.lr_cooldown_fraction + args.lr_constant_fraction) * decay >= decay:
        raise ArgumentError(
            "warm-up, --lr-cooldown-fraction and --lr-constant-fraction must leave something of --lr-decay-iters"
            f" ({decay})"
        )
