"""Names of the optimizers and what each of them needs; importing it needs no torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

# Megatron-DeepSpeed's adamw is what megatron-core calls adam: Adam with decoupled weight decay.
MEGATRON_CORE = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class LibraryOptimizer:
    """An optimizer of the ``pytorch_optimizer`` library.

    :param class_name: its class there.
    :param whole_tensors: whether its update needs whole weight tensors, which tensor parallelism divides.
    :param entrywise: whether each entry of a weight moves by about the learning rate, as with Adam: what muP's rules
        for Adam need.
    :param schedule_free: whether averaging of the weights takes the place of a falling learning rate.
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
    # With Moonlight's scaling (arXiv:2502.16982) one learning rate serves the matrices and what AdamW updates.
    "muon": LibraryOptimizer("Muon", whole_tensors=True, settings={"use_adjusted_lr": True}),
    "shampoo": LibraryOptimizer("ScalableShampoo", whole_tensors=True),
    "soap": LibraryOptimizer("SOAP", whole_tensors=True),
    "sophia": LibraryOptimizer("SophiaH", entrywise=True),
}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` pairs; a value is a Python literal, or else text.

    :param pairs: as given on the command line.
    :raises ValueError: if one has no name.
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
