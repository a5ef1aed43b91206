"""The format of a checkpoint directory, and whether it is complete, by its files.

The functions are pure and work on listings. A listing maps the path of each file, relative to the checkpoint's
directory (``iter_0002000``), to its size in bytes. No file is opened; a reader with access to the files can pass its
findings as :class:`Evidence` (:mod:`airflow_megatron.megatron.checkpoints.folder`).

The rules follow ``megatron/training/checkpointing.py`` and ``megatron/core/dist_checkpointing`` of
``core_v0.5.0`` to ``core_v0.19.0``:

* ``torch_dist`` writes every rank's ``__<rank>_<n>.distcp`` and ``.metadata``, then ``metadata.json``:
  Megatron itself takes that file as the sign of a distributed checkpoint. ``common.pt`` exists up to 0.18
  only; ``metadata.json`` names it (``common_backend``).
* ``torch_dcp`` and ``fsdp_dtensor`` are written by ``torch.distributed.checkpoint``: ``.metadata`` comes
  last, renamed from ``.metadata.tmp``. They look the same by name; the state's names in ``.metadata`` differ.
* with ``--async-save`` the data files grow before any of these exists.
* with ``--verify-integrity`` (0.19) ``integrity.json`` comes after ``metadata.json``.
* in all of them the tracker file beside the directories is written after the checkpoint.

A trainer's own layout is judged by :meth:`airflow_megatron.spec.model.trainers.Trainer.judge_checkpoint`,
the legacy ``torch`` format by :mod:`airflow_megatron.megatron.checkpoints.legacy`, DeepSpeed's layout by
:mod:`airflow_megatron.megatron.checkpoints.deepspeed`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.checkpoints.deepspeed import FORMAT as DEEPSPEED
from airflow_megatron.megatron.checkpoints.deepspeed import deepspeed_verdict, is_deepspeed
from airflow_megatron.megatron.checkpoints.legacy import FORMAT as LEGACY
from airflow_megatron.megatron.checkpoints.legacy import is_legacy, legacy_verdict
from airflow_megatron.spec.documents.checkpoint_directories import iteration_of
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.spec.model.trainers import TRAINERS, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.checkpoints.deepspeed import DeepSpeedLayout
    from airflow_megatron.megatron.checkpoints.legacy import LegacyLayout
    from airflow_megatron.spec.model.trainers import Completeness

RELEASE: Final = "release"
"""Directory of a checkpoint without an iteration, written by converters; the tracker then contains this word."""

_RANK_FILE = re.compile(r"__(\d+)_(\d+)\.distcp", re.ASCII)
_UNFINISHED_FILE = re.compile(r"(?:.*/)?[^/]*(?:\.tmp|\.distcp\.[^/]+|\.partial)")


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """Whether a checkpoint directory can be loaded, by names and sizes.

    :param verdict: ``complete``; ``incomplete``: it must not be loaded; ``unverifiable``: the listing alone
        cannot decide
    :param format: Megatron's ``--ckpt-format`` (``torch``, ``torch_dist``, ``torch_dcp``, ``fsdp_dtensor``; by names
        alone the last looks like ``torch_dcp``), ``deepspeed``, the name of a trainer with its own layout, or
        ``unknown``
    :param reason: one sentence with the decisive fact
    """

    verdict: Completeness
    format: str
    reason: str

    @property
    def is_complete(self) -> bool:
        """Whether the verdict is ``complete``."""
        return self.verdict == "complete"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from the content of a checkpoint's files, in addition to names and sizes.

    :param format: the format by content, None if unknown
    :param needed: file → minimum size in bytes by ``.metadata``; None if that was not read
    :param damaged: file → its problem
    :param legacy: layout of a legacy checkpoint
    :param deepspeed: layout of a DeepSpeed checkpoint
    :param whole: whether every file of a format with an end mark has this mark
    :param required: files that must exist by ``metadata.json``
    :param unreadable: what could not be read, and why; the listing is then unknown
    """

    format: str | None = None
    needed: Mapping[str, int] | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    legacy: LegacyLayout | None = None
    deepspeed: DeepSpeedLayout | None = None
    whole: bool = False
    required: tuple[str, ...] = ()
    unreadable: str | None = None


_NOTHING_READ: Final = Evidence()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One ``iter_*``, ``global_step*`` or ``release`` directory of a checkpoints folder.

    :param iteration: 0 for ``release``, because a training that loads it begins there
    """

    iteration: int
    name: str
    verdict: CheckpointVerdict


def is_checkpoint(name: str) -> bool:
    """Return whether a directory has the name of a checkpoint of a trainer or converter."""
    return name == RELEASE or iteration_of(name) is not None


def checkpoint_verdict(
    files: Mapping[str, int],
    *,
    iteration: int | None = None,
    tracked: int | None = None,
    evidence: Evidence | None = None,
    marked: bool = False,
) -> CheckpointVerdict:
    """Judge one checkpoint directory by its listing and the evidence from its content.

    :param files: path below the directory → size in bytes. For the legacy format the paths are two levels
        deep (``mp_rank_00/model_optim_rng.pt``); directories themselves are not listed.
    :param iteration: the directory's iteration; compared with ``tracked`` if the files are not decisive.
    :param tracked: the iteration in the tracker file (:func:`tracked_iteration`).
    :param evidence: evidence from the files' content, if it was read.
    :param marked: whether other checkpoints of the folder have a ``metadata.json`` (:func:`has_marks`). A checkpoint
        without one that is not in the tracker is then partially written, or partially deleted
        (``--save-retain-interval``).
    :returns: the verdict with its reason.
    """
    evidence = evidence or _NOTHING_READ
    if evidence.unreadable is not None:
        return CheckpointVerdict("unverifiable", "unknown", f"it cannot be read: {evidence.unreadable}")
    if not files:
        return CheckpointVerdict("incomplete", "unknown", "the directory holds no file")
    passed = iteration is not None and tracked is not None and tracked >= iteration
    for name, trainer in _trainers_with_layouts().items():
        if (judged := trainer.judge_checkpoint(files, passed=passed)) is not None:
            return CheckpointVerdict(judged[0], name, judged[1])
    if is_deepspeed(files):
        verdict, reason = deepspeed_verdict(files, passed, evidence)
        return CheckpointVerdict(verdict, DEEPSPEED, reason)
    if is_legacy(files):
        verdict, reason = legacy_verdict(files, passed, evidence, _unfinished(files))
        return CheckpointVerdict(verdict, LEGACY, reason)
    return _distributed_verdict(
        files, tracked if passed else None, evidence, marked=marked and iteration != tracked
    )


@functools.cache
def _trainers_with_layouts() -> dict[str, Trainer]:
    """Return the trainers with a separate checkpoint layout, by name."""
    return {
        name: trainer
        for name, trainer in TRAINERS.usable().items()
        if type(trainer).judge_checkpoint is not Trainer.judge_checkpoint
    }


def has_marks(directories: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether checkpoints of a folder have ``metadata.json``, so that all of them are ``torch_dist``.

    :param directories: name of each directory → its listing.
    """
    return any("metadata.json" in files for files in directories.values())


def verdicts_by_iteration(
    directories: Mapping[str, Mapping[str, int]], tracked: int | None
) -> dict[int, CheckpointVerdict]:
    """Judge every checkpoint of a training by its listing only; ``release`` is left out.

    :param directories: name of each directory → its listing (see :func:`checkpoint_verdict`).
    :param tracked: the iteration in the tracker, or one that counts as such.
    """
    marked = has_marks(directories)
    return {
        iteration: checkpoint_verdict(files, iteration=iteration, tracked=tracked, marked=marked)
        for name, files in directories.items()
        if (iteration := iteration_of(name)) is not None
    }


def _distributed_verdict(
    files: Mapping[str, int], passed: int | None, evidence: Evidence, *, marked: bool
) -> CheckpointVerdict:
    ranks = sorted(name for name in files if _RANK_FILE.fullmatch(name))
    described = ".metadata" in files
    if "common.pt" in files or "metadata.json" in files or not described or marked:
        listed = evidence.format or "torch_dist"
    else:
        listed = evidence.format or "torch_dcp"

    def incomplete(reason: str) -> CheckpointVerdict:
        return CheckpointVerdict("incomplete", listed, reason)

    unfinished = _unfinished(files)
    marks = [name for name in (".metadata", "metadata.json", "common.pt") if name in files]
    if not ranks and not marks:
        if unfinished is not None:
            return incomplete(unfinished)
        shown = ", ".join(sorted(files)[:3])
        return CheckpointVerdict("unverifiable", "unknown", f"no known checkpoint file among: {shown}")
    empty = [name for name in (*ranks, *marks) if files[name] == 0]
    if empty:
        return incomplete(f"{_some(empty)} is empty")
    if evidence.damaged:
        name, what = next(iter(evidence.damaged.items()))
        return incomplete(f"{name} is damaged: {what}")
    if any(name.endswith(".zarray") for name in files):
        return CheckpointVerdict(
            "unverifiable", "zarr", "chunks of zarr arrays may be absent: they are then all zeros"
        )
    absent = [name for name in evidence.required if name not in files]
    if absent:
        return incomplete(f"{_some(absent)} is missing, and metadata.json says that there is one")
    if not ranks and evidence.needed != {}:
        return incomplete("there is no __<rank>_<n>.distcp file")
    if not described:
        return incomplete(
            "there is no .metadata, which is written after the data: an interrupted or running save"
        )
    if unfinished is not None:
        return incomplete(unfinished)
    short = _shortfall(files, evidence.needed or {})
    if short:
        return incomplete(short)
    checked = "" if evidence.needed is None else ", all files as long as .metadata says"
    if "metadata.json" in files:
        return CheckpointVerdict(
            "complete",
            listed,
            f"metadata.json, .metadata and {len(ranks)} .distcp files are there, none empty{checked}",
        )
    if listed == "torch_dist":
        return incomplete("there is no metadata.json, which is written last")
    if evidence.needed is not None:
        return CheckpointVerdict(
            "complete",
            listed,
            f".metadata, which is written last, and {len(ranks)} .distcp files are there{checked}",
        )
    if passed is not None:
        return CheckpointVerdict("complete", listed, f"the tracker holds iteration {passed}")
    # torch_dcp has no metadata.json; torch_dist from 0.19 on looks the same until that file is written.
    return CheckpointVerdict(
        "unverifiable",
        listed,
        "there is no metadata.json: a complete torch_dcp checkpoint, or a torch_dist one cut short",
    )


def _shortfall(files: Mapping[str, int], needed: Mapping[str, int]) -> str | None:
    """Return which file that ``.metadata`` names is missing or too short."""
    missing = sorted(name for name in needed if name not in files)
    if missing:
        return f"{_some(missing)} is missing, and .metadata says that it holds part of the state"
    for name, size in needed.items():
        if files[name] < size:
            return f"{name} has {files[name]} bytes; .metadata says at least {size}"
    return None


def list_checkpoints(
    directories: Mapping[str, Mapping[str, int]],
    *,
    tracker: str | None = None,
    evidence: Mapping[str, Evidence] | None = None,
) -> list[Checkpoint]:
    """Judge every checkpoint of a checkpoints folder.

    :param directories: name of each directory → its listing (see :func:`checkpoint_verdict`). Other names are ignored.
    :param tracker: text of the tracker file, if it exists.
    :param evidence: name of a directory → evidence from its files.
    :returns: the checkpoints in ascending order of iteration.
    """
    tracked = tracked_iteration(tracker)
    released = 0 if (tracker or "").strip() == RELEASE else None
    marked = has_marks(directories)
    found = []
    for name, files in directories.items():
        if is_checkpoint(name):
            iteration = iteration_of(name) or 0
            read = evidence.get(name) if evidence else None
            at = released if name == RELEASE else tracked
            verdict = checkpoint_verdict(files, iteration=iteration, tracked=at, evidence=read, marked=marked)
            found.append(Checkpoint(iteration, name, verdict))
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def _unfinished(files: Mapping[str, int]) -> str | None:
    """Return a text about a file that is incomplete by its name, None if there is none."""
    found = sorted(name for name in files if _UNFINISHED_FILE.fullmatch(name))
    return f"{_some(found)} is still being written, or its writer was killed" if found else None


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
