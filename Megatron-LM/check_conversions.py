#!/usr/bin/env python3
"""Print the trainings whose checkpoints convert_to_hf.py would refuse, judged by their settings; needs no PyTorch.

    python check_conversions.py <TRAININGS

Reads JSON lines: a command line of pretrain_gpt.py, ``{"argv": […], "world_size": n}``, or the arguments that another
trainer would save, ``{"saved": {name: value}}``. Both may also have ``architecture``, ``converter`` and ``hf_config``,
which are options of convert_to_hf.py. Prints for each ``{"settings": […], "problem": text}`` with the settings that
prevent the conversion. Prints null if an architecture can express the model, if none is needed, and if the model is
unknown because pretrain_gpt.py refuses the command line, arguments are missing or cannot be calculated with.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from check_arguments import complete
from megatron_core_trainer.arguments import ArgumentError
from megatron_core_trainer.conversion.architecture import choose_architecture
from megatron_core_trainer.conversion.errors import ConversionError, InexpressibleError
from megatron_core_trainer.conversion.external_converter import needs_architecture
from megatron_core_trainer.conversion.model_settings import model_settings
from megatron_core_trainer.optimization.parametrization import folded_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_MOST_LAYERS = 100_000  # they are listed


def obstacle(
    saved: Mapping[str, Any] | None = None,
    *,
    argv: Sequence[str] = (),
    world_size: int = 1,
    architecture: str | None = None,
    converter: str | None = None,
    hf_config: str | None = None,
) -> dict[str, Any] | None:
    """Return what prevents the conversion of a training's checkpoints, None if nothing does.

    :param saved: the arguments in its checkpoints; None to derive them from ``argv``.
    :param argv: arguments of pretrain_gpt.py.
    :param world_size: number of its processes.
    :param architecture: ``--architecture`` of the conversion.
    :param converter: its ``--converter``.
    :param hf_config: its ``--hf-config``.
    """
    if not needs_architecture(architecture, converter, hf_config):
        return None
    try:
        arguments = vars(complete(argv, world_size)) if saved is None else saved
        layers = arguments.get("num_layers") or 0
        if layers > _MOST_LAYERS:
            return {"settings": ["num_layers"], "problem": f"it has more than {_MOST_LAYERS} layers"}
        choose_architecture(folded_settings(model_settings(arguments)), architecture)
    except InexpressibleError as error:
        return {"settings": error.settings, "problem": error.problem}
    except (ArgumentError, ArithmeticError, ConversionError):
        return None
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(obstacle(**json.loads(line))))
