"""Checkpoints from outside the sweep: ``start: {from: PATH, iteration: N, mode: …}``.

A training starts from one, a conversion converts it; an evaluation is given a Hugging Face model instead. A path with
``*``, ``?`` or ``[…]`` names several directories, which are searched on the cluster when the job runs.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow_megatron.spec.documents.checkpoint_directories import iteration_of
from airflow_megatron.spec.expressions.resolution import ExpressionError, evaluate_tree
from airflow_megatron.spec.layout.run_layout import TRACKER_FILE
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.schema import StageKindName, StartSection

StartMode = Literal["continue", "finetune"]

_MODEL = re.compile(r"iter_(\d+)", re.ASCII)
_WILDCARD = re.compile(r"[*?]|\[[^\]/]+\]")
_LITERAL = re.compile(r"\[[*?[]\]")
_RANK = "mp_rank_"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint or model from outside the sweep that a job starts from or processes.

    :param path: absolute directory on the cluster: Megatron's (or DeepSpeed's) checkpoint directory, which contains
        ``latest_checkpointed_iteration.txt``; for an evaluation, a Hugging Face model
    :param iteration: iteration of the checkpoint; None for the newest one that a training finds, and for each that an
        ``each_checkpoint`` stage finds
    :param mode: for a training: ``continue`` its iterations, optimizer and data, or ``finetune``: load only the
        weights
    :param is_pattern: whether the path is a pattern for several directories
    :param from_iteration: for a pattern of which each checkpoint is processed: the first iteration; None for one
        checkpoint of each directory
    :param spacing: minimum number of iterations between two of those
    """

    path: str
    iteration: int | None = None
    mode: StartMode = "continue"
    is_pattern: bool = False
    from_iteration: int | None = None
    spacing: int = 1

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Its part of a job's digest."""
        of_pattern = (self.from_iteration, self.spacing) if self.is_pattern else ()
        return (self.path, self.iteration, self.mode, *of_pattern)

    def __str__(self) -> str:
        of = "" if self.iteration is None else f", iteration {self.iteration}"
        return f"{self.path}{of}{' (finetune)' if self.mode == 'finetune' else ''}"


def is_pattern(path: str) -> bool:
    """Return whether a path contains wildcards; ``[*]``, ``[?]`` and ``[[]`` are literal characters."""
    return _WILDCARD.search(_LITERAL.sub("", path)) is not None


def escaped(path: str) -> str:
    """Return a pattern that matches only one path."""
    return re.sub(r"[*?[]", lambda character: f"[{character[0]}]", path)


def resolved_source(start: StartSection, kind: StageKindName, names: Mapping[str, Any]) -> CheckpointSource:
    """Return the source in ``start.from``, with every expression evaluated.

    A path that ends in the directory of an iteration names that iteration.

    :raises ExpressionError: if it is not an absolute path, or the values contradict each other
    """
    path = _path(evaluate_tree(start.from_, names))
    iteration = None if start.iteration is None else evaluate_tree(start.iteration, names)
    if iteration is not None and (isinstance(iteration, bool) or not isinstance(iteration, int)):
        raise ExpressionError(f"start.iteration is {iteration!r}, not a whole number")
    folder, name = posixpath.split(path)
    pattern = is_pattern(path)
    if pattern:
        _check_pattern(path, kind)
    else:
        path = _LITERAL.sub(lambda character: character[0][1], path)
        folder, name = posixpath.split(path)
    of_models = STAGE_KINDS[kind].works_on == "models"
    if not of_models and (name == TRACKER_FILE or name.startswith(_RANK)):
        raise ExpressionError(
            f"start.from {path!r} is a part of a checkpoint directory; write from: {folder}"
        )
    if of_models:
        match = _MODEL.fullmatch(name)
        named = int(match[1]) if match else None
    elif (named := iteration_of(name)) is not None:
        path = folder
    if named is not None and iteration is not None and named != iteration:
        raise ExpressionError(
            f"start.from names iteration {named} ({name}), start.iteration says {iteration}; drop one of them"
        )
    iteration = named if iteration is None else iteration
    if not of_models and iteration is not None and iteration < 1:
        raise ExpressionError(f"start.iteration is {iteration}; checkpoints are saved from iteration 1 on")
    mode: Any = evaluate_tree(start.mode, names) or "continue"
    if mode not in get_args(StartMode):
        raise ExpressionError(f"start.mode is {mode!r}; it can be {' or '.join(get_args(StartMode))}")
    return CheckpointSource(path, iteration, mode, pattern)


def _check_pattern(path: str, kind: StageKindName) -> None:
    if STAGE_KINDS[kind].trains:
        raise ExpressionError(
            f"start.from {path!r} matches any number of directories; a training starts from one: sweep over a list"
        )
    if "**" in path:
        raise ExpressionError(
            f"start.from {path!r}: write one * for each folder; ** stands for no more than *"
        )
    folder, name = posixpath.split(path)
    if STAGE_KINDS[kind].works_on == "checkpoints" and name.startswith("iter_") and is_pattern(name):
        raise ExpressionError(
            f"start.from {path!r} matches checkpoints; write from: {folder} with each_checkpoint: true, or iteration: N"
        )


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ExpressionError(
            f"start.from is {shown_value(value)}; write the absolute path of a directory on the cluster"
        )
    if _CONTROL.search(value):
        raise ExpressionError(f"start.from {value!r} holds a control character")
    if not value.startswith("/"):
        raise ExpressionError(
            f"start.from {value!r} is not absolute; write its whole path on the cluster, from '/'"
        )
    return value.rstrip("/") or "/"
