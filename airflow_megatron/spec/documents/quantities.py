"""Quantities in readable notation: numbers of things, token counts (``100M``), durations (``6h``, ``06:00:00``), memory
(``16G``).
"""

from __future__ import annotations

import math
import re
from typing import Final

_SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([kKMGBT]?)\s*\Z")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,5}\Z")
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<h>\d{1,4}):(?P<m>\d{1,2})(?::(?P<s>\d{1,2}))?\Z")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|[smhd])")
_MAX_TEXT = 64
"""Maximum number of characters of a quantity, because patterns would take long to reject longer text."""
_MAX_SECONDS = 10**10


def parse_quantity(value: int | float | str) -> int:
    """Return a count written as a number or with a decimal suffix: ``2_000_000_000``, ``2e9``, ``2B``, ``0.5G``.

    :raises ValueError: if it is none of these or not a whole number
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a quantity; write a number such as 100M or 2_000_000_000")
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        number = value
    elif not isinstance(value, str):
        raise ValueError(f"{value!r} is not a quantity; write a number such as 100M or 2_000_000_000")
    else:
        match = _QUANTITY.match(value) if len(value) <= _MAX_TEXT else None
        if not match:
            raise ValueError(
                f"{_shown(value)} is not a quantity; write a number such as 100M or 2_000_000_000"
            )
        digits = match[1].replace("_", "")
        scale = _SCALES[match[2]]
        if digits.isdigit():
            return int(digits) * scale
        number = float(digits) * scale
    if not math.isfinite(number) or number != round(number):
        raise ValueError(f"{value!r} is not a whole number")
    return round(number)


def meant_number(value: object) -> str:
    """Return the digits of a whole number that is written ``10k`` or ``10,000``, empty for another value."""
    if not isinstance(value, str):
        return ""
    try:
        return str(parse_quantity(value.replace(",", "") if _GROUPED.match(value) else value))
    except ValueError:
        return ""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: ``1 point``, ``12 points``, ``0 points``.

    :param one: the words after 1, with a verb if there is one: ``job has``
    :param many: the words after other numbers; default: with an ``s``
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def list_index(word: str, length: int, *, from_end: bool = False) -> int | None:
    """Return the index in a word of a dotted key, None if it is invalid for a list of *length* items.

    :param from_end: whether ``-1`` is the last item
    """
    digits = word.removeprefix("-") if from_end else word
    # int() accepts fewer texts than isdigit(), and at most 4,300 digits
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        return None
    index = int(word)
    return index if -length <= index < length else None


def parse_duration(value: int | float | str) -> int:
    """Return seconds for a duration: a number of seconds, ``90s``, ``1h30m``, ``2d`` or ``[d-]hh:mm[:ss]``.

    :raises ValueError: if it is none of these
    """
    seconds = None
    if isinstance(value, str):
        seconds = _seconds(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_SECONDS:
        seconds = round(value)
    if seconds is None or not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"{_shown(value)} is not a duration; write 30m, 6h or 06:00:00")
    return seconds


def parse_interval(value: int | float | str) -> int:
    """Return the seconds of a duration that cannot be zero.

    :raises ValueError: if it is no duration, or less than half a second
    """
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError(f"{_shown(value)} is not an interval; write 1s or more")
    return seconds


def parse_walltime(value: int | float | str) -> int:
    """Return the seconds of a walltime, written as text that Slurm's ``--time`` does not read otherwise.

    To Slurm a number is minutes and ``1:30`` minutes and seconds (sbatch(1)); as durations they would be seconds, and
    hours and minutes.

    :raises ValueError: if it is no duration, is zero, or has these two meanings
    """
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError(
            f"{_shown(value)} is not a walltime: to Slurm, 0 is no limit; write a time such as 6h, or drop the key for"
            " the partition's own"
        )
    number = str(value).strip()
    if not isinstance(value, str) or number.isdecimal():
        raise ValueError(
            f"{_shown(value)} is not a walltime: Slurm counts a number in minutes, other durations are in seconds;"
            f' write {number}m, {number}s or "{slurm_time(seconds * 60)}"'
        )
    if number.count(":") == 1 and "-" not in number:
        raise ValueError(
            f"{_shown(value)} is not a walltime: to Slurm it is minutes and seconds;"
            f' write "{number}:00" for hours and minutes, or "00:{number}"'
        )
    return seconds


def _seconds(text: str) -> int | None:
    if not text or len(text) > _MAX_TEXT:
        return None
    clock = _CLOCK.match(text)
    if clock:
        hours, minutes, seconds = int(clock["h"]), int(clock["m"]), int(clock["s"] or 0)
        return ((int(clock["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if text.isdecimal():
        return int(text)
    total, position = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != position:
            break
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    return round(total) if position == len(text) else None


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > _MAX_SECONDS:
        return "a number of more than 10 digits"
    text = repr(value)
    return text if len(text) <= _MAX_TEXT + 2 else f"{text[:_MAX_TEXT]}…"


MEMORY_SIZE: Final = r"[0-9]+([kKmMgGtT][bB]?)?"
"""Expression for a memory size as sbatch takes it."""
MEMORY_SIZE_TEXT: Final = "a whole number with K, M, G or T: 64G"


def parse_memory(value: object) -> str:
    """Return a memory size as ``sbatch --mem`` takes it: a whole number, which may have a unit (``64G``).

    :raises ValueError: for anything else, also for a number that is not text, because it has no unit
    """
    if isinstance(value, str) and re.fullmatch(MEMORY_SIZE, value):
        return value
    raise ValueError(f"{_shown(value)} is not a memory size of Slurm; write {MEMORY_SIZE_TEXT}")


def slurm_time(seconds: int) -> str:
    """Return seconds in the notation of Slurm's ``--time``: ``[d-]hh:mm:ss`` (Slurm rounds up to whole minutes)."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
