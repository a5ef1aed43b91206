"""Names and requirements of the optimizers; importing this module does not need torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

# Megatron-DeepSpeed's adamw is megatron-core's adam: Adam with decoupled weight decay.
MEGATRON_CORE = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class LibraryOptimizer:
    """An optimizer of the ``pytorch_optimizer`` library.

    :param class_name: its class in the library.
    :param whole_tensors: whether its update needs whole weight tensors, which tensor parallelism would divide.
    :param entrywise: whether each step changes an entry of a weight by about the learning rate, as with Adam; muP's
        rules for Adam require this.
    :param schedule_free: whether averaging of the weights replaces the decay of the learning rate.
    :param settings: settings that differ from the library's defaults.
    """

    class_name: str
    whole_tensors: bool = False
    entrywise: bool = False
    schedule_free: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


LIBRARY: dict[str, LibraryOptimizer] = {
    "ademamix": LibraryOptimizer("AdEMAMix", entrywise=True),
    "adopt": LibraryOptimizer("ADOPT", entrywise=True),
    "adamwschedulefree": LibraryOptimizer("ScheduleFreeAdamW", entrywise=True, schedule_free=True),
    "sgdschedulefree": LibraryOptimizer("ScheduleFreeSGD", schedule_free=True),
    "lamb": LibraryOptimizer("Lamb", whole_tensors=True),
    "lars": LibraryOptimizer("LARS", whole_tensors=True),
    "lion": LibraryOptimizer("Lion", entrywise=True),
    # With Moonlight's scaling (arXiv:2502.16982) the matrices and the parameters of AdamW use one learning rate.
    "muon": LibraryOptimizer("Muon", whole_tensors=True, settings={"use_adjusted_lr": True}),
    "shampoo": LibraryOptimizer("ScalableShampoo", whole_tensors=True),
    "soap": LibraryOptimizer("SOAP", whole_tensors=True),
    "sophia": LibraryOptimizer("SophiaH", entrywise=True),
}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` pairs; a value that is not a Python literal is text.

    :param pairs: arguments of the command line.
    :raises ValueError: if a pair has no name.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise ValueError(f"--optimizer-settings takes NAME=VALUE, not {pair!r}")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings
