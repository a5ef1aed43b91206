"""Read the lines about checkpoints that are written, read or deleted (``megatron/training/checkpointing.py``).

The parser searches the first words of such a line near the found position, and extracts the following text. The time
therefore does not grow with the number of occurrences in a line.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple


class CheckpointEvent(StrEnum):
    """The event of a checkpoint line."""

    SAVING = "saving"
    SCHEDULED = "scheduled"
    SAVED = "saved"
    LOADING = "loading"
    LOADED = "loaded"
    DELETED = "deleted"
    RANDOM_START = "random_start"


class CheckpointRecord(NamedTuple):
    """One line about a checkpoint being written, read or deleted."""

    event: CheckpointEvent
    iteration: int | None
    """The iteration; None for a random start, and for a ``release`` checkpoint."""
    path: str | None


_NUMBER: Final = rb"\s{1,16}(\d{1,18})(?!\d)"
_HEADS: Final = (
    (CheckpointEvent.SAVED, rb"successfully saved (?:local )?checkpoint (?:from|at) iteration" + _NUMBER),
    (CheckpointEvent.SCHEDULED, rb"scheduled an async checkpoint save at iteration" + _NUMBER + rb" to "),
    (CheckpointEvent.SAVING, rb"saving (?:local )?checkpoint at iteration" + _NUMBER + rb" to "),
    (CheckpointEvent.LOADED, rb"successfully loaded checkpoint from "),
    (CheckpointEvent.LOADING, rb"loading (?:distributed )?checkpoint from "),
    (CheckpointEvent.LOADING, rb"loading release (?:distributed )?checkpoint from "),
    (CheckpointEvent.DELETED, rb"successfully deleted checkpoint from iteration" + _NUMBER),
)
_EVENTS: Final = tuple(event for event, _ in _HEADS)
_HEAD: Final = re.compile(
    rb"|".join(b"(?P<h%d>%s)" % (place, head) for place, (_, head) in enumerate(_HEADS))
)
_RELEASE: Final = b"loading release "
_BEFORE: Final = 60
_AFTER: Final = 96
"""Number of bytes around `` checkpoint `` that contain a line's first words."""
_AT_ITERATION: Final = re.compile(rb" at iteration (\d{1,18})(?!\d)")
_LONGEST_PATH: Final = 2000


def read_checkpoint(block: bytes, at: int, end: int) -> CheckpointRecord | None:
    """Parse the checkpoint line whose word `` checkpoint `` is at *at*; None if it is not one.

    :param end: end of the line
    """
    start = max(block.rfind(b"\n", max(0, at - _BEFORE), at) + 1, at - _BEFORE, 0)
    for head in _HEAD.finditer(block, start, min(end, at + _AFTER)):
        if head.start() <= at < head.end():
            return _record(head, block[head.end() : end])
    return None


def _record(head: re.Match[bytes], rest: bytes) -> CheckpointRecord | None:
    event = _EVENTS[int((head.lastgroup or "h0")[1:])]
    number = next((text for text in head.groups() if text and text.isdigit()), None)
    if event in {CheckpointEvent.LOADED, CheckpointEvent.LOADING}:
        if head.group().startswith(_RELEASE):
            return CheckpointRecord(event, None, _path(rest))
        stands = _AT_ITERATION.search(rest)
        if stands is None:
            return None
        path = rest[: stands.start()]
        if event is CheckpointEvent.LOADED:
            path = _without_ranks(path)
        return CheckpointRecord(event, int(stands[1]), _path(path))
    rest = rest.rstrip()
    if event is CheckpointEvent.SAVING:
        rest = _without_format(rest)
    elif event is not CheckpointEvent.SCHEDULED:
        word = b" to " if event is CheckpointEvent.SAVED else b" at "
        rest = _without_ranks(rest) if event is CheckpointEvent.SAVED else rest
        if rest and not rest.startswith(word):
            return None
        rest = rest[len(word) :]
    return CheckpointRecord(event, int(number) if number else None, _path(rest))


def _without_ranks(text: bytes) -> bytes:
    """Remove a final `` [ t 1/2, p 1/1 ]``."""
    cut = text.rfind(b" [ t ")
    return text[:cut] if cut >= 0 and text.find(b"]", cut) == len(text) - 1 else text


def _without_format(text: bytes) -> bytes:
    """Remove a final `` in torch_dist format``."""
    if not text.endswith(b" format"):
        return text
    before, word, named = text[: -len(b" format")].rpartition(b" in ")
    return before if word and len(named.split()) == 1 and named.strip() == named else text


def _path(raw: bytes) -> str | None:
    return raw[:_LONGEST_PATH].decode("utf-8", "replace").strip() or None
