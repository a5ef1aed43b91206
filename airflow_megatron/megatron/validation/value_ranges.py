"""Values that the parser takes and that end a job before its second iteration, each by itself.

Seen in ``pretrain_gpt.py`` of core_v0.16.1; ``tests/studies/iterations/first_iterations.py`` asks a checkout. They are
no rules, which :mod:`.repeated_checks` asks once for all values that none of them reads: these are the values that
sweeps vary.
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
"""The first release that was asked."""
_OPTIMIZER: Final = "megatron/core/optimizer/__init__.py _get_megatron_optimizer_based_on_param_groups"
_DROPOUT: Final = "torch.nn.Dropout"


@dataclass(frozen=True)
class Range:
    """What values of an argument a job can begin with.

    :param holds: whether a value is one of them
    :param wanted: which these are
    :param source: upstream file and function
    :param when: whether the argument is used, by the other settings
    """

    holds: Callable[[float], bool]
    wanted: str
    source: str
    when: Callable[[Mapping[str, Any]], bool] = lambda _: True


def _with_adam(settings: Mapping[str, Any]) -> bool:
    return settings.get("optimizer") == "adam"


def _turns_by_angles(settings: Mapping[str, Any]) -> bool:
    """Do positions turn several pairs of channels, and does a loss that is not a number end the job."""
    turned = (settings.get("kv_channels") or 0) * (settings.get("rotary_percent") or 0.0)
    return bool(
        settings.get("position_embedding_type") == "rope"
        and turned > 2
        and not settings.get("multi_latent_attention")
        and settings.get("no_rope_freq") is None
        and settings.get("check_for_nan_in_loss_and_grad")
    )


RANGES: Final[Mapping[str, Range]] = {
    "seed": Range(lambda value: value > 0, "1 or more", "megatron/training/initialize.py _set_random_seed"),
    "weight_decay": Range(lambda value: value >= 0, "0 or more", _OPTIMIZER, _with_adam),
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
    "log_interval": Range(
        lambda value: value != 0, "1 or more", "megatron/training/training.py training_log"
    ),
    "num_workers": Range(
        lambda value: value >= 0, "0 or more", "megatron/training/datasets/data_samplers.py"
    ),
    "make_vocab_size_divisible_by": Range(
        lambda value: value != 0, "1 or more", "megatron/training/tokenizer/tokenizer.py"
    ),
    "initial_loss_scale": Range(
        lambda value: value > 0,
        "more than 0",
        "megatron/core/optimizer/grad_scaler.py",
        lambda settings: bool(settings.get("fp16")) and settings.get("loss_scale") is None,
    ),
    "rotary_base": Range(
        lambda value: value > 0,
        "1 or more",
        "megatron/core/models/common/embeddings/rotary_pos_embedding.py RotaryEmbedding",
        _turns_by_angles,
    ),
    "lr": Range(math.isfinite, "a number", _OPTIMIZER, lambda settings: not settings.get("skip_train")),
}


def range_problems(settings: Settings) -> list[ArgumentProblem]:
    """Return the values of a command line with which its job cannot begin."""
    values = object.__getattribute__(settings, "__dict__")  # what is read here is no rule's
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
            flag = f"--{name.replace('_', '-')}"
            message = f"{flag} {value} ends the job as it begins"
            found.append(
                ArgumentProblem(f"value.{name}", message, f"{flag} of {allowed.wanted}", allowed.source)
            )
    return found


def is_in_range(flag: str, word: str) -> bool:
    """Return whether a word of a command line is a value with which a job can begin, whatever the others are."""
    allowed = RANGES.get(flag.removeprefix("--").replace("-", "_"))
    if allowed is None:
        return True
    try:
        return allowed.holds(float(word))
    except ValueError:
        return False
