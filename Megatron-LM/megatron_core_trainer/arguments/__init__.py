"""The trainer's command line: the flags of upstream Megatron-LM that this trainer supports.

Names, types and defaults are those of core_v0.16.1 (``megatron/training/arguments.py``), with these differences:
``--exit-duration-in-mins`` accepts fractions, ``--data-cache-path`` defaults to memory, ``--rope-scaling-factor`` has
an effect, and there are more optimizers, schedules and flags (:data:`EXTENSIONS`). A flag of upstream that this trainer
does not support is an error. The namespace is saved in every checkpoint.
"""

from __future__ import annotations

from megatron_core_trainer.arguments.completion import argument_problems, check_machine, complete_args
from megatron_core_trainer.arguments.errors import ArgumentError
from megatron_core_trainer.arguments.missing_kernels import switch_off_missing_kernels
from megatron_core_trainer.arguments.model_settings import (
    MODEL_SETTINGS,
    Tokenizer,
    pad_vocab,
    take_model_settings,
)
from megatron_core_trainer.arguments.optimization_checks import unused_settings
from megatron_core_trainer.arguments.parser import EXTENSIONS, build_parser, parse_args, run_on_cpu
from megatron_core_trainer.arguments.printing import print_args

__all__ = [
    "EXTENSIONS",
    "MODEL_SETTINGS",
    "ArgumentError",
    "Tokenizer",
    "argument_problems",
    "build_parser",
    "check_machine",
    "complete_args",
    "pad_vocab",
    "parse_args",
    "print_args",
    "run_on_cpu",
    "switch_off_missing_kernels",
    "take_model_settings",
    "unused_settings",
]
