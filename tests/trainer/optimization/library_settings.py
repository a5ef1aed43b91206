"""Inside the trainer's environment: print the settings of the library's optimizers with their kinds."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))

import pytorch_optimizer
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY


def kind(name: str, default: Any) -> str | int:
    """Return ``flag``, ``number`` or ``other``; the number of values of a setting with one for each average."""
    if isinstance(default, bool):
        return "flag"
    if type(default) in (int, float):
        return "number"
    return len(default) if name.endswith("betas") else "other"


for optimizer, choice in LIBRARY.items():
    settings = inspect.signature(getattr(pytorch_optimizer, choice.class_name)).parameters.values()
    kinds = {
        setting.name: kind(setting.name, setting.default)
        for setting in settings
        if setting.kind is not setting.VAR_KEYWORD and setting.name not in ("params", "lr", "weight_decay")
    }
    print(json.dumps([optimizer, kinds]))
