"""Completeness of checkpoints that DeepSpeed wrote.

The rules follow ``deepspeed/runtime/engine.py`` (``save_checkpoint``) and ``runtime/pipe/module.py`` of 0.17: below
``global_stepN`` every model-parallel rank MM writes ``mp_rank_MM_model_states.pt`` (ZeRO-3: every rank its
``zero_pp_rank_D_mp_rank_MM_model_states.pt``; pipelines also ``layer_LL-model_TT-model_states.pt``), then with ZeRO
every rank its part of the optimizer, ``[bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt``. Then rank 0 writes
``latest`` beside the directories, and Megatron-DeepSpeed its ``latest_checkpointed_iteration.txt``. The directory
itself has no file that is written last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from airflow_megatron.megatron.checkpoints.completeness import Evidence
    from airflow_megatron.spec.model.trainers import Completeness

FORMAT: Final = "deepspeed"
_RANK_FILE = re.compile(
    r"(?:(?:bf16_)?zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<model>\d{2,})_(?P<kind>model|optim)_states\.pt",
    re.ASCII,
)
_LAYER_FILE = re.compile(r"layer_(?P<layer>\d+)-model_(?P<tensor>\d+)-model_states\.pt", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeepSpeedLayout:
    """Number of ranks that wrote a checkpoint, according to its state.

    :param model: model-parallel ranks (tensor × pipeline)
    :param data: data-parallel ranks
    :param zero_stage: 0 without ZeRO
    """

    model: int
    data: int
    zero_stage: int


def is_deepspeed(files: Iterable[str]) -> bool:
    """Return whether a checkpoint directory has DeepSpeed's layout."""
    return any(_RANK_FILE.fullmatch(name) or _LAYER_FILE.fullmatch(name) for name in files)


def model_states(files: Iterable[str]) -> str | None:
    """Return the first file that contains the number of ranks that wrote the checkpoint, None if there is none."""
    found = [name for name in files if (match := _RANK_FILE.fullmatch(name)) and match["kind"] == "model"]
    return min(found, default=None)


def deepspeed_verdict(files: Mapping[str, int], passed: bool, evidence: Evidence) -> tuple[Completeness, str]:
    """Judge a checkpoint directory of DeepSpeed by its listing and the evidence from its content.

    :param files: name → size in bytes.
    :param passed: whether the tracker has this iteration or a later one.
    :param evidence: evidence from the files' content.
    :returns: the verdict, and one sentence with the decisive fact.
    """
    empty = sorted(name for name, size in files.items() if size == 0)
    if empty:
        return "incomplete", f"{empty[0]} is empty"
    if evidence.damaged:
        name, what = next(iter(evidence.damaged.items()))
        return "incomplete", f"{name} is damaged: {what}"
    missing = _missing(files, evidence.deepspeed)
    if missing is not None:
        return "incomplete", missing
    if passed:
        return "complete", "every rank's files are there and the tracker has passed it"
    if evidence.whole and evidence.deepspeed is not None:
        return "complete", "the files of all ranks that its state names are there, each to its end"
    return "unverifiable", "DeepSpeed writes no file last, and the tracker has not passed it"


def _missing(files: Mapping[str, int], layout: DeepSpeedLayout | None) -> str | None:
    """Return the missing parts of the grid of ranks that file names and state define."""
    held: dict[str, set[tuple[int, int | None]]] = {"model": set(), "optim": set()}
    for name in files:
        if match := _RANK_FILE.fullmatch(name):
            data = int(match["data"]) if match["data"] else None
            held[match["kind"]].add((int(match["model"]), data))
    ranks = held["model"] | held["optim"]
    model = max([model for model, _ in ranks] + [layout.model - 1 if layout else 0]) + 1
    data = max([data or 0 for _, data in ranks] + [layout.data - 1 if layout else 0]) + 1
    zero_3 = any(data is not None for _, data in held["model"])
    # names are untrusted and may span a huge grid: stop at the first missing rank
    parts: Iterable[int | None] = range(data) if zero_3 else (None,)
    if (lacking := _first_missing(model, parts, held["model"])) is not None:
        return f"no model states of rank ({_rank(lacking)})"
    if (held["optim"] or (layout and layout.zero_stage)) and (
        lacking := _first_missing(model, range(data), held["optim"])
    ) is not None:
        return f"no optimizer states of rank ({_rank(lacking)})"
    return _missing_layer(files)


def _missing_layer(files: Mapping[str, int]) -> str | None:
    layers: dict[int, set[int]] = {}
    for name in files:
        if match := _LAYER_FILE.fullmatch(name):
            layers.setdefault(int(match["layer"]), set()).add(int(match["tensor"]))
    every: set[int] = set().union(*layers.values())
    for layer, tensors in sorted(layers.items()):
        if tensors != every:
            return f"no states of layer {layer} of tensor-parallel rank {min(every - tensors)}"
    return None


def _first_missing(
    model: int, data: Iterable[int | None], held: Set[tuple[int, int | None]]
) -> tuple[int, int | None] | None:
    return next(((m, d) for m in range(model) for d in data if (m, d) not in held), None)


def _rank(rank: tuple[int, int | None]) -> str:
    model, data = rank
    return f"model {model}" if data is None else f"model {model}, data {data}"
