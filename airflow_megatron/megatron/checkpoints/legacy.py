"""Completeness of checkpoints in Megatron-LM's legacy ``torch`` format.

The rules follow ``get_checkpoint_name`` and ``save_checkpoint`` of ``megatron/training/checkpointing.py``,
``core_v0.5.0`` to ``core_v0.19.0``: every rank with its own part writes ``mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt``.
The pipeline's number exists only with several stages, that of the experts only if they are distributed over ranks. So
``mp_rank_00_003`` is stage 3 or expert part 3, which only the arguments in the file show. The directory itself has no
file that is written last; the tracker beside the directories is written after them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from airflow_megatron.megatron.checkpoints.completeness import Evidence
    from airflow_megatron.spec.model.trainers import Completeness

FORMAT: Final = "torch"
MODEL_FILES: Final = ("model_optim_rng.pt", "model_rng.pt")
# "_dp_000": Megatron-LM of 2022, before the releases of core
_RANK_FILE = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?(?:_dp_\d{3,})?/([^/]+)", re.ASCII)

_MOST_TRIED: Final = 64
"""Number of tensor-parallel ranks up to which every split of the experts is tried; above it, only even ones."""

Rank = tuple[int, int, int]
"""Tensor-, pipeline- and expert-parallel rank."""


@dataclass(frozen=True, slots=True)
class LegacyLayout:
    """Number of ranks that wrote a legacy checkpoint, according to its stored arguments.

    :param expert_tensor: ``--expert-tensor-parallel-size``, None if it is that of *tensor*
    :param distributed_optimizer: whether the optimizer's state is in separate files, ``distrib_optim.pt``
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    distributed_optimizer: bool = False


def is_legacy(files: Iterable[str]) -> bool:
    """Return whether a checkpoint directory has the legacy layout."""
    return "metadata.json" not in files and any(_RANK_FILE.fullmatch(name) for name in files)


def legacy_verdict(
    files: Mapping[str, int], passed: bool, evidence: Evidence, unfinished: str | None
) -> tuple[Completeness, str]:
    """Judge a checkpoint directory of the legacy format by its listing and the evidence from its content.

    :param files: path below the directory → size in bytes.
    :param passed: whether the tracker has this iteration or a later one.
    :param evidence: evidence from the files' content.
    :param unfinished: the problem of a file that is still being written by its name.
    :returns: the verdict, and one sentence with the decisive fact.
    """
    held: dict[tuple[int, ...], set[str]] = {}
    empty = []
    for path, size in files.items():
        if match := _RANK_FILE.fullmatch(path):
            *numbers, name = match.groups()
            held.setdefault(tuple(int(number) for number in numbers if number), set()).add(name)
            if size == 0:
                empty.append(path)
    if empty:
        others = f" (and {len(empty) - 1} more)" if empty[1:] else ""
        return "incomplete", f"{min(empty)}{others} is empty"
    if evidence.damaged:
        name, what = next(iter(evidence.damaged.items()))
        return "incomplete", f"{name} is damaged: {what}"
    named = set(held)
    with_model = {rank for rank, names in held.items() if not names.isdisjoint(MODEL_FILES)}
    missing = _missing_rank(named, with_model, evidence.legacy)
    if missing is not None:
        tensor, pipeline, expert = missing
        return "incomplete", f"no model file of rank (tensor {tensor}, pipeline {pipeline}, expert {expert})"
    with_optimizer = [rank for rank, names in held.items() if "distrib_optim.pt" in names]
    if with_optimizer and len(with_optimizer) < len(held):
        return "incomplete", "distrib_optim.pt is missing for some ranks"
    if evidence.legacy is not None and evidence.legacy.distributed_optimizer and not with_optimizer:
        return "incomplete", "distrib_optim.pt is missing, and the stored arguments say that there is one"
    if unfinished is not None:
        return "incomplete", unfinished
    if passed:
        return "complete", "every rank's file is there and the tracker has passed it"
    if evidence.whole and evidence.legacy is not None:
        return "complete", "the files of all ranks that its arguments name are there, each to its end"
    return (
        "unverifiable",
        "the legacy format has no file that is written last, and the tracker has not passed it",
    )


def _missing_rank(
    named: Set[tuple[int, ...]], with_model: Set[tuple[int, ...]], declared: LegacyLayout | None
) -> Rank | None:
    """Return the first rank with a missing model file, None if all files exist.

    :param named: numbers in the names of the directories.
    :param with_model: numbers of the directories with a model file.
    :param declared: the layout by the arguments; None if they were not read, so that any possible layout is accepted.
    """
    if declared is not None:
        second_is_expert = declared.pipeline == 1 and declared.expert > 1
        seen = _sizes(_ranks(named, second_is_expert=second_is_expert))
        tensor, pipeline, expert = map(max, seen, (declared.tensor, declared.pipeline, declared.expert))
        there = _ranks(with_model, second_is_expert=second_is_expert)
        return _first_missing(_needed(tensor, pipeline, expert, declared.expert_tensor or tensor), there)
    for second_is_expert in (False, True):
        tensor, pipeline, expert = _sizes(_ranks(named, second_is_expert=second_is_expert))
        there = _ranks(with_model, second_is_expert=second_is_expert)
        # names are untrusted and may span a huge grid: skip a grid that they cannot fill
        if max(tensor, pipeline, expert) <= len(there) and any(
            _fills(there, _needed(tensor, pipeline, expert, size)) for size in _expert_tensor_sizes(tensor)
        ):
            return None
    tensor, pipeline, expert = _sizes(_ranks(named, second_is_expert=False))
    every = ((t, p, e) for t in range(tensor) for p in range(pipeline) for e in range(expert))
    return _first_missing(every, _ranks(with_model, second_is_expert=False))


def _expert_tensor_sizes(tensor: int) -> list[int]:
    return [size for size in range(1, tensor + 1) if tensor <= _MOST_TRIED or tensor % size == 0]


def _fills(there: Set[Rank], needed: Iterable[Rank]) -> bool:
    """Return whether the ranks are exactly the required ones; stop at the first missing one."""
    found: set[Rank] = set()
    for rank in needed:
        if rank not in there:
            return False
        found.add(rank)
    return len(found) == len(there)


def _first_missing(needed: Iterable[Rank], there: Set[Rank]) -> Rank | None:
    return next((rank for rank in needed if rank not in there), None)


def _ranks(numbers: Set[tuple[int, ...]], *, second_is_expert: bool) -> set[Rank]:
    """Return the ranks for the numbers in the directories' names."""
    ranks = set()
    for tensor, *others in numbers:
        if second_is_expert and len(others) == 1:
            others = [0, *others]
        pipeline, expert = (*others, 0, 0)[:2]
        ranks.add((tensor, pipeline, expert))
    return ranks


def _sizes(ranks: Set[Rank]) -> tuple[int, int, int]:
    tensor, pipeline, expert = (max(axis) + 1 for axis in zip(*ranks, strict=True))
    return tensor, pipeline, expert


def _needed(tensor: int, pipeline: int, expert: int, expert_tensor: int) -> Iterator[Rank]:
    """Yield the ranks whose files a run of this layout loads.

    Ranks are assigned in the order tensor, expert, data, pipeline (``megatron/core/parallel_state.py``). If experts
    are split differently from the rest, not every pair of tensor and expert rank exists.
    """
    if expert == 1:
        expert_tensor = tensor
    for rank in range(math.lcm(tensor, expert_tensor * expert)):
        for stage in range(pipeline):
            yield rank % tensor, stage, rank // expert_tensor % expert
