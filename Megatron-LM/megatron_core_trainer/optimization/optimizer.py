"""Build megatron-core's optimizer and its schedule of learning rate and weight decay."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer_config import (
    AdamOptimizerConfig,
    ParamKey,
    ParamWithNamePredicate,
    SGDOptimizerConfig,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler, get_canonical_lr_for_logging

from megatron_core_trainer.optimization.optimizer_choices import LIBRARY
from megatron_core_trainer.optimization.parametrization import Factors, parametrization
from megatron_core_trainer.optimization.schedules import (
    INFINITE_STYLES,
    ConstantWithCooldown,
    ExponentialSweep,
    Infinite,
    Schedule,
)

if TYPE_CHECKING:
    import argparse


class ParamScheduler(OptimizerParamScheduler):  # type: ignore[misc]
    """megatron-core's schedule, with additional closed forms of the learning rate.

    :param schedule: the learning rate after warm-up; None for megatron-core's own.
    """

    def __init__(self, optimizer: Any, *, schedule: Schedule | None, **values: Any) -> None:
        self.schedule = schedule
        super().__init__(optimizer, **values)

    def get_lr(self, param_group: dict[str, Any]) -> float:
        """Return the learning rate of a parameter group.

        :param param_group: the group; its ``max_lr`` and ``min_lr`` have precedence over those of the schedule.
        """
        warming = self.lr_warmup_steps > 0 and self.num_steps <= self.lr_warmup_steps
        if self.schedule is None or (warming and not isinstance(self.schedule, ExponentialSweep)):
            return float(super().get_lr(param_group))
        # A group whose rate differs from --lr (Muon's other parameters) follows the same curve.
        scale = param_group.get("lr_mult", 1.0)
        return scale * self.schedule.rate(self.num_steps, high=self.max_lr, low=self.min_lr)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, including the settings that identify the closed form."""
        state = dict(super().state_dict())
        if self.schedule is not None:
            state["schedule"] = repr(self.schedule)
        return state


class ScheduleError(Exception):
    """The schedule of a checkpoint differs from that of the command line."""


def build_optimizer(args: argparse.Namespace, model: Any) -> Any:
    """Build the (distributed) optimizer of the model's parameters.

    :param args: complete arguments.
    :param model: the data-parallel model.
    """
    if args.optimizer in LIBRARY:
        from megatron_core_trainer.optimization.library_optimizers import build_library_optimizer

        return build_library_optimizer(args, model)
    values = {
        "lr": args.lr,
        "min_lr": args.min_lr,
        "weight_decay": args.weight_decay,
        "bf16": args.bf16,
        "params_dtype": torch.bfloat16 if args.bf16 else torch.float32,
        "use_distributed_optimizer": args.use_distributed_optimizer,
        "overlap_param_gather": args.overlap_param_gather,
        "clip_grad": args.clip_grad,
        "log_num_zeros_in_grad": args.log_num_zeros_in_grad,
    }
    if args.optimizer == "sgd":
        config = SGDOptimizerConfig(**values, sgd_momentum=args.sgd_momentum)
    else:
        config = AdamOptimizerConfig(
            **values, adam_beta1=args.adam_beta1, adam_beta2=args.adam_beta2, adam_eps=args.adam_eps
        )
    overrides = {**get_standard_config_overrides(config), **_mup_overrides(args, model)}
    return get_megatron_optimizer(config, [model], overrides)


def _mup_overrides(args: argparse.Namespace, model: Any) -> dict[ParamKey, dict[str, float]]:
    """Return muP's settings of the parameter groups.

    ``lr_mult`` does not change a rate here: it is one of the keys by which megatron-core identifies a group in a
    checkpoint.
    """
    scaling = parametrization(vars(args))
    if scaling is None:
        return {}
    members: dict[Factors, set[str]] = {}
    for name, parameter in model.named_parameters():
        factors = scaling.factors(name, parameter.dim(), optimizer=args.optimizer)
        members.setdefault(factors, set()).add(name)
    overrides = {}
    for factors, names in members.items():
        values = {}
        if factors.rate != 1.0:
            values["lr_mult"] = factors.rate
            values["max_lr"], values["min_lr"] = args.lr * factors.rate, args.min_lr * factors.rate
        if factors.weight_decay != 1.0:
            values["wd_mult"] = factors.weight_decay
        if factors.epsilon != 1.0:
            values["eps"] = args.adam_eps * factors.epsilon
        predicate = ParamWithNamePredicate(str(factors), partial(_is_one_of, names))
        overrides[ParamKey(with_name_predicate=predicate)] = values
    return overrides


def _is_one_of(names: set[str], _: torch.nn.Parameter, name: str) -> bool:
    return name in names


def build_scheduler(args: argparse.Namespace, optimizer: Any) -> ParamScheduler:
    """Build the schedule; its steps count sequences, as in upstream.

    :param args: complete arguments.
    :param optimizer: the optimizer whose parameter groups it sets.
    """
    # the unit is a sample, or an iteration of one batch
    unit, batch = ("iters", args.global_batch_size) if args.train_samples is None else ("samples", 1)
    decay, wsd_decay = getattr(args, f"lr_decay_{unit}") * batch, getattr(args, f"lr_wsd_decay_{unit}")
    if args.lr_warmup_fraction is None:
        warmup = getattr(args, f"lr_warmup_{unit}") * batch
    else:
        warmup = args.lr_warmup_fraction * decay
    return ParamScheduler(
        optimizer,
        schedule=_schedule(args, warmup, decay),
        init_lr=args.lr_warmup_init,
        max_lr=args.lr,
        min_lr=args.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay,
        lr_decay_style=args.lr_decay_style,
        start_wd=args.start_weight_decay,
        end_wd=args.end_weight_decay,
        wd_incr_steps=getattr(args, f"train_{unit}") * batch,
        wd_incr_style=args.weight_decay_incr_style,
        use_checkpoint_opt_param_scheduler=args.use_checkpoint_opt_param_scheduler,
        override_opt_param_scheduler=args.override_opt_param_scheduler,
        wsd_decay_steps=None if wsd_decay is None else wsd_decay * batch,
        lr_wsd_decay_style=args.lr_wsd_decay_style,
    )


def _schedule(args: argparse.Namespace, warmup: float, decay: float) -> Schedule | None:
    if args.lr_finder:
        steps = max(1, args.train_iters - 1) * args.global_batch_size
        return ExponentialSweep(args.lr_finder_start_lr, args.lr_finder_end_lr, steps)
    if args.lr_constant_plus_cooldown:
        return ConstantWithCooldown(decay, args.lr_constant_plus_cooldown_frac * decay)
    if args.lr_decay_style in INFINITE_STYLES:
        return Infinite(
            style=args.lr_decay_style,
            warmup=warmup,
            fall=args.lr_cooldown_fraction * decay,
            constant=args.lr_constant_fraction * decay,
            decay=decay,
            constant_rate=args.constant_lr,
            timescale=args.timescale,
        )
    return None


def prepare_to_load(optimizer: Any) -> None:
    """Initialize the state of torch's Adam, which megatron-core's distributed optimizer expects when it loads.

    The fused optimizers of Transformer Engine do not need this.

    :param optimizer: the optimizer, before its first step.
    """
    for part in optimizer.chained_optimizers:
        if isinstance(part.optimizer, torch.optim.SGD) and part.init_state_fn is None:
            part.init_state_fn = _start_momentum
        if isinstance(part, DistributedOptimizer) and isinstance(part.optimizer, torch.optim.Adam):
            part.init_state_fn(part.optimizer, part.config)
            for state in part.optimizer.state.values():
                state["step"] = torch.zeros(())


def _start_momentum(sgd: torch.optim.SGD, config: Any = None) -> None:
    # megatron-core calls this function when it loads a checkpoint, but does not define it for SGD.
    for group in sgd.param_groups:
        for parameter in group["params"]:
            if group["momentum"]:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def restore_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Load an optimizer's state.

    :param optimizer: the optimizer.
    :param state: its state in the checkpoint.
    """
    # Float32 parameters are their own main copy, which megatron-core overwrites in place.
    with torch.no_grad():
        optimizer.load_state_dict(state)
    for part in optimizer.chained_optimizers:
        if isinstance(part, DistributedOptimizer) and isinstance(part.optimizer, torch.optim.Adam):
            _restore_steps(part.optimizer)


def _restore_steps(adam: torch.optim.Adam) -> None:
    # megatron-core restores the step count in the parameter groups, as the fused optimizers store it; torch's Adam has
    # one for each parameter.
    for group in adam.param_groups:
        step = float(group.pop("step"))
        for parameter in group["params"]:
            adam.state[parameter]["step"] = torch.tensor(step)


def restore_scheduler(scheduler: OptimizerParamScheduler, state: dict[str, Any]) -> None:
    """Continue a schedule from a checkpoint.

    The optimizer's state contains ``max_lr`` and ``min_lr`` of each parameter group. They would have precedence over
    the schedule, even if the command line asks to override it (upstream's pull request 5213).

    :param scheduler: the schedule made from the command line.
    :param state: its state in the checkpoint.
    :raises ScheduleError: if the two differ and the command line does not choose one.
    """
    ours = scheduler.state_dict()
    differing = [
        name for name in sorted(ours) if name != "num_steps" and ours[name] != state.get(name, ours[name])
    ]
    decided = scheduler.override_opt_param_scheduler or scheduler.use_checkpoint_opt_param_scheduler
    if differing and not decided:
        listed = ", ".join(f"{name} {state[name]} (now {ours[name]})" for name in differing)
        raise ScheduleError(
            f"the checkpoint's schedule is another one: {listed}, in samples where it counts steps; give"
            " --override-opt_param-scheduler to follow the command line, or --use-checkpoint-opt_param-scheduler"
        )
    scheduler.num_steps = 0
    scheduler.load_state_dict(state)
    for group in scheduler.optimizer.param_groups:
        scale = group.get("lr_mult", 1.0)
        group["max_lr"], group["min_lr"] = scale * scheduler.max_lr, scale * scheduler.min_lr
    scheduler.step(increment=0)


def learning_rate(optimizer: Any) -> float:
    """Return the learning rate for the log: that of the first ordinary parameter group.

    :param optimizer: the optimizer.
    """
    return float(get_canonical_lr_for_logging(optimizer.param_groups) or 0.0)
