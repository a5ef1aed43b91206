"""A search for a learning rate with upstream's trainer, which has no such feature.

``Megatron-LM/upstream_lr_finder.py`` precedes upstream's script on the command line and reads the options of
``megatron_core``'s search. The rest is upstream's command line of a short training without a schedule, checkpoints and
validation.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import Argument, ArgumentTable, canonical, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

STARTER: Final = "upstream_lr_finder.py"
_PREFIX: Final = "lr_finder_"
SAVE: Final = "lr_finder_save"
"""The folder that a search writes below; upstream's own ``save`` would leave checkpoints."""
LEAST_POINTS: Final = 10
"""Steps from which ``lr_finder.py`` can read a learning rate."""
_GROUP: Final = "learning-rate finder"
_WITHOUT: Final = re.compile(
    r"lr_finder|lr_decay_.*|lr_warmup_.*|lr_wsd_decay_.*|min_lr|decoupled_min_lr|(override|use_checkpoint)_opt_param_scheduler"
    r"|save|save_.*|non_persistent_save_interval|exit_interval|exit_duration_in_mins|exit_signal.*"
    r"|eval_iters|eval_interval|full_validation|multiple_validation_sets|check_for_nan_in_loss_and_grad"
)
"""Arguments that a search ignores, like that of ``megatron_core``: it has its own schedule, ends only at the last
step, does not save or validate, and may end with a NaN loss."""


@functools.cache
def with_search(table: ArgumentTable, own_trainer: Path) -> ArgumentTable:
    """Return upstream's table with the options of a search.

    :param own_trainer: the table of ``megatron_core``, whose search has the same options
    """
    options = [
        argument for argument in read_table(own_trainer) if argument.group == _GROUP and not argument.is_flag
    ]
    folder = Argument((f"--{SAVE.replace('_', '-')}",), SAVE, _GROUP, "Store", None, None, None, None, True)
    return ArgumentTable(table.release, [*table, *options, folder], table.program_defaults, table.optional)


def is_option(name: str) -> bool:
    """Return whether a name is an option of a search, which other stages of the sweep ignore."""
    return canonical(name).startswith(_PREFIX)


def search_arguments(job: Job, arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, Any]:
    """Return the arguments of a search: those of a training without those that a search ignores.

    :param table: made by :func:`with_search`
    :raises CommandError: if the search would not begin at its first step, has no number of steps, or sets another
        output folder
    """
    by_dest = {known.dest: value for name, value in arguments.items() if (known := table.get(name))}
    if by_dest.get(SAVE):
        raise CommandError(SAVE, f"stage {job.stage}: a search writes into its run directory; drop {SAVE}")
    if by_dest.get("load") and not by_dest.get("finetune"):
        raise CommandError(
            "load",
            f"stage {job.stage}: a search starts its own schedule; add megatron: {{finetune: true}}, or drop load",
        )
    if not by_dest.get("train_iters"):
        other = ", in place of train_samples" if by_dest.get("train_samples") else ""
        raise CommandError(
            "train_iters", f"stage {job.stage} needs train_iters, the number of its steps{other}"
        )
    steps = by_dest["train_iters"]
    if isinstance(steps, int) and steps < LEAST_POINTS:
        raise CommandError(
            "train_iters",
            f"stage {job.stage}: a search of {steps} steps is too short to suggest a learning rate; write"
            f" {LEAST_POINTS} or more",
        )
    kept = {
        name: value
        for name, value in arguments.items()
        if not _WITHOUT.fullmatch(known.dest if (known := table.get(name)) else name)
    }
    if by_dest.get("lr") is None:
        # upstream requires one, which affects only parameter groups with a different one
        end = table.get("lr_finder_end_lr")
        kept["lr"] = by_dest.get("lr_finder_end_lr", end.default if end else None)
    return kept | {
        SAVE: job.run_dir,
        "check_for_nan_in_loss_and_grad": False,
        "eval_iters": 0,
        "eval_interval": by_dest["train_iters"],
    }
