"""Single values that the parser accepts, but with which a job fails before its second iteration.

They were observed in ``pretrain_gpt.py`` of core_v0.16.1; ``tests/studies/iterations/first_iterations.py`` checks a
checkout. They are not rules, because :mod:`.repeated_checks` would then repeat all checks for each value, and sweeps
vary these values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.megatron.rules.settings import Settings

SINCE: Final = (0, 16)
"""The first release that was checked."""
_OPTIMIZER: Final = "megatron/core/optimizer/__init__.py _get_megatron_optimizer_based_on_param_groups"
_SCALER: Final = "megatron/core/optimizer/grad_scaler.py"
_DROPOUT: Final = "torch.nn.Dropout"
_MOST_CHANNELS: Final = 2**31
_SMALL_SPREAD: Final = 0.1
_HALF: Final = 0.5


@dataclass(frozen=True)
class Range:
    """The valid values of an argument.

    :param holds: returns whether a value is valid
    :param wanted: description of the valid values
    :param source: upstream file and function
    :param when: returns whether the other settings use the argument
    :param flag: the argument's flag, where it is not its name
    """

    holds: Callable[[float], bool]
    wanted: str
    source: str
    when: Callable[[Mapping[str, Any]], bool] = lambda _: True
    flag: str | None = None


def _with_adam(settings: Mapping[str, Any]) -> bool:
    return settings.get("optimizer") == "adam"


def _with_sgd(settings: Mapping[str, Any]) -> bool:
    return settings.get("optimizer") == "sgd" and not settings.get("skip_train")


def _scales_loss(settings: Mapping[str, Any]) -> bool:
    """Return whether the loss is scaled dynamically."""
    return bool(settings.get("fp16")) and not settings.get("loss_scale") and not settings.get("skip_train")


def _rotates_pairs(settings: Mapping[str, Any]) -> bool:
    """Return whether positions rotate several pairs of channels, and a NaN loss ends the job."""
    channels = min(settings.get("kv_channels") or 0, _MOST_CHANNELS)
    turned = channels * (settings.get("rotary_percent") or 0.0)
    return bool(
        settings.get("position_embedding_type") == "rope"
        and turned > 2
        and not settings.get("multi_latent_attention")
        and settings.get("no_rope_freq") is None
        and settings.get("check_for_nan_in_loss_and_grad")
    )


def _normalizes_small_states(settings: Mapping[str, Any]) -> bool:
    """Return whether the first states have a variance far below 1, and a NaN loss ends the job."""
    spreads = (settings.get("init_method_std"), settings.get("embedding_init_method_std") or 0.0)
    return bool(
        settings.get("check_for_nan_in_loss_and_grad")
        and not any(map(settings.get, ("skip_train", "load", "pretrained_checkpoint", "use_mup")))
        and not settings.get("init_method_xavier_uniform")
        and all(spread is not None and spread <= _SMALL_SPREAD for spread in spreads)
        and (settings.get("hidden_dropout") or 0.0) <= _HALF
    )


RANGES: Final[Mapping[str, Range]] = {
    "seed": Range(
        lambda value: 0 < value < 2**32, "1 to 4294967295", "megatron/training/initialize.py _set_random_seed"
    ),
    "weight_decay": Range(
        lambda value: value >= 0,
        "0 or more",
        _OPTIMIZER,
        lambda settings: _with_adam(settings) or _with_sgd(settings),
    ),
    "sgd_momentum": Range(lambda value: value >= 0, "0 or more", _OPTIMIZER, _with_sgd),
    "adam_beta1": Range(lambda value: 0 <= value < 1, "0 or more, and less than 1", _OPTIMIZER, _with_adam),
    "adam_beta2": Range(lambda value: 0 <= value < 1, "0 or more, and less than 1", _OPTIMIZER, _with_adam),
    "hidden_dropout": Range(lambda value: 0 <= value <= 1, "from 0 to 1", _DROPOUT),
    "attention_dropout": Range(lambda value: 0 <= value <= 1, "from 0 to 1", _DROPOUT),
    "init_method_std": Range(
        lambda value: value >= 0,
        "0 or more",
        "megatron/core/tensor_parallel/layers.py",
        lambda settings: not settings.get("init_method_xavier_uniform"),
    ),
    "adam_eps": Range(lambda value: value >= 0, "0 or more", _OPTIMIZER, _with_adam),
    "log_interval": Range(lambda value: value > 0, "1 or more", "megatron/training/training.py training_log"),
    "tensorboard_log_interval": Range(
        lambda value: value != 0,
        "1 or more",
        "megatron/training/training.py training_log",
        lambda settings: bool(settings.get("tensorboard_dir")) and not settings.get("skip_train"),
    ),
    "manual_gc_interval": Range(
        lambda value: value >= 0,
        "0 or more",
        "megatron/training/training.py train",
        lambda settings: bool(settings.get("manual_gc")),
    ),
    "num_workers": Range(
        lambda value: value >= 0, "0 or more", "megatron/training/datasets/data_samplers.py"
    ),
    "make_vocab_size_divisible_by": Range(
        lambda value: value != 0, "1 or more", "megatron/training/tokenizer/tokenizer.py"
    ),
    "embedding_init_method_std": Range(
        lambda value: value >= 0, "0 or more", "megatron/core/tensor_parallel/layers.py"
    ),
    "loss_scale": Range(
        lambda value: value >= 0,
        "more than 0",
        _SCALER,
        lambda settings: (
            any(map(settings.get, ("fp16", "bf16", "use_distributed_optimizer")))
            and not settings.get("skip_train")
        ),
    ),
    "initial_loss_scale": Range(lambda value: value > 0, "more than 0", _SCALER, _scales_loss),
    "min_loss_scale": Range(lambda value: value > 0, "more than 0", _SCALER, _scales_loss),
    "loss_scale_window": Range(lambda value: value > 0, "more than 0", _SCALER, _scales_loss),
    "hysteresis": Range(lambda value: value > 0, "1 or more", _SCALER, _scales_loss),
    "rotary_base": Range(
        lambda value: value > 0,
        "1 or more",
        "megatron/core/models/common/embeddings/rotary_pos_embedding.py RotaryEmbedding",
        _rotates_pairs,
    ),
    "rotary_percent": Range(
        lambda value: value >= 0,
        "0 or more",
        "megatron/core/models/common/embeddings/rotary_pos_embedding.py RotaryEmbedding",
        lambda settings: settings.get("position_embedding_type") == "rope",
    ),
    "layernorm_epsilon": Range(
        lambda value: value > -1,  # the sum with the variance may be positive for less negative values
        "0 or more",
        "megatron/core/transformer/torch_norm.py WrappedTorchNorm",
        _normalizes_small_states,
        "--norm-epsilon",
    ),
    "mtp_num_layers": Range(
        lambda value: value >= 0, "0 or more", "megatron/core/models/gpt/gpt_model.py GPTModel"
    ),
    "check_weight_hash_across_dp_replicas_interval": Range(
        lambda value: value != 0, "1 or more", "megatron/training/training.py train"
    ),
    "lr": Range(math.isfinite, "a number", _OPTIMIZER, lambda settings: not settings.get("skip_train")),
}


_OF_FLAG: Final = {allowed.flag: allowed for allowed in RANGES.values() if allowed.flag}


def range_problems(settings: Settings) -> list[ArgumentProblem]:
    """Return the values of a command line with which its job fails."""
    values = object.__getattribute__(
        settings, "__dict__"
    )  # values that are read here do not count as read by a rule
    if settings.release < SINCE:
        return []
    found = []
    for name, allowed in RANGES.items():
        value = values.get(name)
        if value is None and name == "lr" and allowed.when(values):
            message, hint = (
                "no learning rate is given, and upstream has no default",
                "--lr 1e-4, or another rate",
            )
            found.append(ArgumentProblem("value.lr", message, hint, _OPTIMIZER))
        elif isinstance(value, int | float) and not allowed.holds(value) and allowed.when(values):
            flag = allowed.flag or f"--{name.replace('_', '-')}"
            named = flag.removeprefix("--").replace("-", "_")
            message = f"{flag} {value} ends the job at its start"
            found.append(
                ArgumentProblem(f"value.{named}", message, f"{flag} of {allowed.wanted}", allowed.source)
            )
    return found


def is_in_range(flag: str, word: str) -> bool:
    """Return whether a word of a command line is a valid value, regardless of the other words."""
    allowed = _OF_FLAG.get(flag) or RANGES.get(flag.removeprefix("--").replace("-", "_"))
    if allowed is None:
        return True
    try:
        return allowed.holds(float(word))
    except ValueError:
        return False
