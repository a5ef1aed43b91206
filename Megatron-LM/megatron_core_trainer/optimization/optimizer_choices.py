"""Names and requirements of the optimizers; importing this module does not need torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

# Megatron-DeepSpeed's adamw is megatron-core's adam: Adam with decoupled weight decay.
MEGATRON_CORE = ("adam", "adamw", "sgd")

_YAML_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class LibraryOptimizer:
    """An optimizer of the ``pytorch_optimizer`` library.

    :param class_name: its class in the library.
    :param whole_tensors: whether its update needs whole weight tensors, which tensor parallelism would divide.
    :param entrywise: whether each step changes an entry of a weight by about the learning rate, as with Adam; muP's
        rules for Adam require this.
    :param schedule_free: whether averaging of the weights replaces the decay of the learning rate.
    :param flags: names of its settings that are true or false.
    :param numbers: names of those that are numbers.
    :param betas: names of those that are a number for each moving average → how many.
    :param others: names of its other settings.
    :param settings: settings that differ from the library's defaults.
    """

    class_name: str
    whole_tensors: bool = False
    entrywise: bool = False
    schedule_free: bool = False
    flags: str = ""
    numbers: str = ""
    betas: dict[str, int] = field(default_factory=dict)
    others: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def problem(self, name: str, value: object) -> str | None:
        """Return what is wrong with a setting, None if it has the right type.

        :param name: the setting.
        :param value: as from :func:`parse_settings`.
        """
        names = sorted({*self.flags.split(), *self.numbers.split(), *self.betas, *self.others.split()})
        if name not in names:
            return f"has no setting {name!r}; it has {', '.join(names)}"
        if name in self.flags.split() and value not in (0, 1):
            return f"takes {name}=True or {name}=False, not {value!r}"
        if name in self.numbers.split() and not isinstance(value, int | float):
            return f"takes a number as {name}, not {value!r}"
        count = self.betas.get(name)
        if count is not None and (not isinstance(value, tuple | list) or len(value) != count):
            example = (0.9, 0.99, 0.999)[:count]
            return f"takes {count} numbers as {name}, such as {name}={example}, not {value!r}"
        return None


LIBRARY: dict[str, LibraryOptimizer] = {
    "ademamix": LibraryOptimizer(
        "AdEMAMix",
        entrywise=True,
        flags="weight_decouple fixed_decay maximize",
        numbers="alpha eps",
        betas={"betas": 3},
        others="foreach t_alpha_beta3",
    ),
    "adopt": LibraryOptimizer(
        "ADOPT",
        entrywise=True,
        flags="weight_decouple fixed_decay maximize",
        numbers="eps",
        betas={"betas": 2},
        others="clip_lambda foreach",
    ),
    "adamwschedulefree": LibraryOptimizer(
        "ScheduleFreeAdamW",
        entrywise=True,
        schedule_free=True,
        flags="ams_bound maximize",
        numbers="r weight_lr_power warmup_steps decoupling_c eps",
        betas={"betas": 2},
        others="foreach",
    ),
    "sgdschedulefree": LibraryOptimizer(
        "ScheduleFreeSGD",
        schedule_free=True,
        flags="maximize",
        numbers="momentum r weight_lr_power warmup_steps eps",
        others="foreach",
    ),
    "lamb": LibraryOptimizer(
        "Lamb",
        whole_tensors=True,
        flags=(
            "weight_decouple fixed_decay rectify degenerated_to_sgd grad_averaging adam pre_norm maximize"
        ),
        numbers="n_sma_threshold max_grad_norm eps",
        betas={"betas": 2},
        others="foreach",
    ),
    "lars": LibraryOptimizer(
        "LARS",
        whole_tensors=True,
        flags="nesterov maximize",
        numbers="momentum dampening trust_coefficient",
        others="foreach",
    ),
    "lion": LibraryOptimizer(
        "Lion",
        entrywise=True,
        flags="weight_decouple fixed_decay maximize",
        betas={"betas": 2},
        others="foreach",
    ),
    # With Moonlight's scaling (arXiv:2502.16982) the matrices and the parameters of AdamW use one learning rate.
    "muon": LibraryOptimizer(
        "Muon",
        whole_tensors=True,
        settings={"use_adjusted_lr": True},
        flags="weight_decouple nesterov use_adjusted_lr maximize",
        numbers="momentum ns_steps adamw_lr adamw_wd adamw_eps",
        betas={"adamw_betas": 2},
        others="foreach ns_coeffs ns_method ns_reset_steps",
    ),
    "shampoo": LibraryOptimizer(
        "ScalableShampoo",
        whole_tensors=True,
        flags=(
            "moving_average_for_momentum decoupled_weight_decay decoupled_learning_rate "
            "shape_interpretation nesterov use_svd maximize"
        ),
        numbers=(
            "inverse_exponent_override start_preconditioning_step "
            "preconditioning_compute_steps statistics_compute_steps block_size "
            "skip_preconditioning_rank_lt no_preconditioning_for_layers_with_dim_gt "
            "diagonal_eps matrix_eps"
        ),
        betas={"betas": 2},
        others="graft_type pre_conditioner_type",
    ),
    "soap": LibraryOptimizer(
        "SOAP",
        whole_tensors=True,
        flags="merge_dims precondition_1d correct_bias normalize_gradient maximize",
        numbers="precondition_frequency max_precondition_dim eps",
        betas={"betas": 2},
        others="data_format shampoo_beta",
    ),
    "sophia": LibraryOptimizer(
        "SophiaH",
        entrywise=True,
        flags="weight_decouple fixed_decay maximize",
        numbers="p update_period num_samples eps",
        betas={"betas": 2},
        others="foreach hessian_distribution",
    ),
}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` pairs; a value that is neither a Python literal nor YAML's ``true`` or ``false`` is text.

    :param pairs: arguments of the command line.
    :raises ValueError: if a pair has no name.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise ValueError(f"--optimizer-settings takes NAME=VALUE, not {pair!r}")
        if text in _YAML_FLAGS:
            settings[name] = _YAML_FLAGS[text]
            continue
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings
