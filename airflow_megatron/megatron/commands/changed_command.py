"""Decide whether a training with a changed command may continue from the checkpoints of the old one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.commands.commands import trainer_words
from airflow_megatron.megatron.rules.command_line import reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.arguments.tables import ArgumentTable

_HARMLESS: Final = re.compile(
    r"train_iters|train_samples|exit_.*|save_.*|eval_.*|full_validation|multiple_validation_sets|validation_set_names"
    r"|log_.*|tensorboard_.*|wandb_.*|num_workers|data_cache_path|distributed_timeout_.*"
)
"""Arguments for the length, the stops, the saves and the reports of a training, which do not affect its results."""


def changed_arguments(
    old: Sequence[str], new: Sequence[str], table: ArgumentTable
) -> dict[str, tuple[object, object]]:
    """Return the Megatron arguments in which two commands differ: name → values before and now, None if not given.

    :param old: words of the earlier command
    :param new: words of the current one
    :param table: the trainer's arguments
    """
    before, now = (reader(table).read(trainer_words(words))[0] for words in (old, new))
    return {
        name: (before.get(name), now.get(name))
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    }


def is_harmless(name: str) -> bool:
    """Return whether a training with another value of this argument is still the same experiment."""
    return _HARMLESS.fullmatch(name) is not None
