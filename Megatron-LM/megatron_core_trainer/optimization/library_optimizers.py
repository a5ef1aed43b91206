"""Optimizers of the ``pytorch_optimizer`` library inside megatron-core's optimizer classes.

megatron-core's wrappers provide gradients from the data-parallel buffers, clipping, and float32 main parameters of a
bfloat16 model. A checkpoint stores the optimizer's state as one object per tensor- and pipeline-parallel rank, because
the state contains tensors (preconditioners, norms) whose shapes differ from those of the parameters. A run can
therefore continue only with the same parallel layout.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytorch_optimizer
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from pytorch_optimizer.base.exception import NegativeStepError

from megatron_core_trainer.arguments import ArgumentError
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY, parse_settings
from megatron_core_trainer.optimization.parametrization import parametrization

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


class Sophia(pytorch_optimizer.SophiaH):  # type: ignore[misc]
    """Sophia with the squared-gradient estimate of the Hessian's diagonal.

    Every ``update_period`` steps the estimate is ``B g * g``, where g is the mean gradient over the B tokens of the
    batch (Liu et al. 2023, arXiv:2305.14342, equation 9, with the labels of the data instead of sampled ones). Unlike
    Hutchinson's estimate, it needs no second backward pass.

    :param params: parameter groups.
    :param batch_tokens: tokens of a batch, B.
    :param settings: settings of ``SophiaH``.
    """

    def __init__(self, params: Any, *, batch_tokens: int, **settings: Any) -> None:
        self.batch_tokens = batch_tokens
        super().__init__(params, **settings)

    @torch.no_grad()
    def step(self, closure: Any = None, hessian: list[torch.Tensor] | None = None) -> Any:
        """Make one step.

        :param closure: as in torch.
        :param hessian: the caller's estimate, one tensor per parameter.
        """
        done = self.param_groups[0].get("step", 0)
        if hessian is None and done % self.update_period == 0:
            gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
            hessian = [gradient.square() * self.batch_tokens for gradient in gradients]
        return super().step(closure, hessian)


class _WholeState:
    """Save and load an optimizer's state as one object per model-parallel rank."""

    optimizer: Any
    # Schedule-free optimizers: the training parameters, while the model contains the averaged ones.
    set_aside: list[torch.Tensor] | None = None

    def parameters(self) -> list[torch.Tensor]:
        """Return the tensors that the optimizer updates: the parameters, or their float32 copies."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def publish(self) -> None:
        """Copy the optimizer's parameters to the model."""

    def sharded_state_dict(
        self, model_sharded_state_dict: Any, is_loading: bool = False, **_: Any
    ) -> dict[str, Any]:
        """Return the state in megatron-core's format for checkpoints.

        :param model_sharded_state_dict: state of the model, which the optimizer's state does not use.
        :param is_loading: whether it will be loaded, not saved.
        """
        shape = (
            parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_tensor_model_parallel_world_size(),
        )
        place = (
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_tensor_model_parallel_rank(),
        )
        replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        state = None if is_loading else self._whole_state()
        return {"library": ShardedObject("optimizer.library_state", state, shape, place, replica_id=replica)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        :param state: the loaded state, in the format of :meth:`sharded_state_dict`.
        """
        whole = state["library"]
        self.optimizer.load_state_dict(whole["optimizer"])
        for parameter, value in zip(self.parameters(), whole["parameters"], strict=True):
            parameter.data.copy_(value)
        self.publish()

    def _whole_state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        if self.set_aside is not None:
            state["param_groups"] = [{**group, "train_mode": True} for group in state["param_groups"]]
        current = self.set_aside if self.set_aside is not None else self.parameters()
        return {"optimizer": state, "parameters": [parameter.detach().clone() for parameter in current]}


class _Float32(_WholeState, FP32Optimizer):  # type: ignore[misc]
    pass


class _Float16(_WholeState, Float16OptimizerWithFloat16Params):  # type: ignore[misc]
    def publish(self) -> None:
        self._copy_main_params_to_model_params()


def check_settings(args: argparse.Namespace) -> None:
    """Refuse settings that the optimizer does not accept.

    :param args: complete arguments with an optimizer of the library.
    :raises ArgumentError: with the library's reason.
    """
    _create([{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "use_muon": True}], args)


def build_library_optimizer(args: argparse.Namespace, model: Any) -> ChainedOptimizer:
    """Build the optimizer of the model's parameters.

    :param args: complete arguments.
    :param model: the data-parallel model.
    """
    optimizer = _create(_parameter_groups(args, model), args)
    config = OptimizerConfig(
        optimizer=args.optimizer,
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        bf16=args.bf16,
        params_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        clip_grad=args.clip_grad,
        log_num_zeros_in_grad=args.log_num_zeros_in_grad,
    )
    part = (
        _Float16(optimizer, config, None, lambda *_: None)
        if args.bf16
        else _Float32(optimizer, config, lambda *_: None)
    )
    part.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    part.tp_group = parallel_state.get_tensor_model_parallel_group()
    return ChainedOptimizer([part])


@contextlib.contextmanager
def averaged_weights(optimizer: Any) -> Iterator[None]:
    """Put the averaged weights of a schedule-free optimizer into the model during the block; others are not changed.

    The training weights are restored exactly, which the library's ``train()`` after ``eval()`` does not guarantee.

    :param optimizer: the optimizer.
    """
    parts = [
        part
        for part in optimizer.chained_optimizers
        if isinstance(part, _WholeState)
        and any("train_mode" in group for group in part.optimizer.param_groups)
    ]
    for part in parts:
        part.set_aside = [parameter.detach().clone() for parameter in part.parameters()]
        part.optimizer.eval()
        part.publish()
    yield
    for part in parts:
        for parameter, value in zip(part.parameters(), part.set_aside, strict=True):
            parameter.data.copy_(value)
        for group in part.optimizer.param_groups:
            group["train_mode"] = True
        part.set_aside = None
        part.publish()


def _create(groups: list[dict[str, Any]], args: argparse.Namespace) -> Any:
    choice = LIBRARY[args.optimizer]
    kind = getattr(pytorch_optimizer, choice.class_name)
    given = parse_settings(args.optimizer_settings)
    settings = {**choice.settings, **given, "lr": args.lr, "weight_decay": args.weight_decay}
    if args.optimizer == "sophia":
        kind, settings["batch_tokens"] = Sophia, args.global_batch_size * args.seq_length
    try:
        return kind(groups, **settings)
    except (TypeError, ValueError, AttributeError, NegativeStepError) as error:
        raise ArgumentError(f"--optimizer {args.optimizer} cannot be made: {error}") from error


def _parameter_groups(args: argparse.Namespace, model: Any) -> list[dict[str, Any]]:
    """Group the parameters: no weight decay for biases and norms, Muon only for hidden matrices, muP's rates."""
    muon = args.optimizer == "muon"
    # The other parameters of Muon may have a separate rate; the schedule scales it like --lr.
    other_rate = parse_settings(args.optimizer_settings).get("adamw_lr", args.lr) if muon else args.lr
    scaling = parametrization(vars(args))
    members: dict[tuple[float, bool, float], list[Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        hidden = parameter.dim() == 2 and not ("embedding" in name or "output_layer." in name)
        decay, rate = 1.0, 1.0 if hidden or not (muon and args.lr) else other_rate / args.lr
        if scaling is not None:
            factors = scaling.factors(name, parameter.dim(), optimizer=args.optimizer)
            decay, rate = factors.weight_decay, factors.rate
        if parameter.dim() == 1 or name.endswith(".bias"):
            decay = 0.0
        members.setdefault((decay, muon and hidden, rate), []).append(parameter)
    groups = []
    for (decay, hidden, rate), parameters in sorted(members.items(), key=lambda item: item[0], reverse=True):
        group = {
            "params": parameters,
            "wd_mult": decay,
            "lr_mult": rate,
            "max_lr": args.lr * rate,
            "min_lr": args.min_lr * rate,
            "lr": args.lr * rate,
            "weight_decay": args.weight_decay * decay,
            "default_config": rate == 1.0,
            "is_expert_parallel": False,
            "is_decoupled_lr": False,
        }
        groups.append({**group, "use_muon": hidden} if muon else group)
    return groups
