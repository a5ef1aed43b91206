"""Blends of data sets: prefixes alone, or a weight before each of them.

Upstream (``megatron/core/datasets/utils.py``, ``get_blend_from_list``) takes a list that is neither for prefixes alone,
weights included, and a job ends where there is no data set called ``0.6``. It cannot unpack an empty list, and
``BlendedDataset`` (``megatron/core/datasets/blended_dataset.py``) asserts that every share is above zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Arguments that name blends, by ``dest``.
BLENDS: Final = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
DEFAULT_SPLIT: Final = "969, 30, 1"
"""Upstream's ``--split`` of ``--data-path`` (``arguments.py``, all releases from 0.12 on)."""
HINT: Final = "a weight before each data set, [0.6, A, 0.4, B], or none at all, [A, B]"
SHARES_HINT: Final = "weights above 0, [0.6, A, 0.4, B]; leave out data sets that shall not be read"


def blend_problem(blend: object) -> str | None:
    """Return the problem of a blend; None for a valid one, and for a value that is not a list.

    :param blend: weights and prefixes, as text or as numbers
    """
    if isinstance(blend, str):
        words = blend.split()
        if len(words) > 1 and _is_weight(words[0]):
            return f"{blend!r} is one text, so the name of one data set; write a list"
        return None
    if not isinstance(blend, (list, tuple)) or len(blend) < 2:
        return None
    # a 1 in place of a prefix may be the placeholder for a prefix from an earlier job (commands.comparable_words)
    weights = [_is_weight(word) and (place % 2 == 0 or word != "1") for place, word in enumerate(blend)]
    if not any(weights) or (
        weights == [place % 2 == 0 for place in range(len(blend))] and len(blend) % 2 == 0
    ):
        return None
    shown = " ".join(map(str, blend))
    return f"{shown}: {_odd_one(blend, weights)}"


def share_problem(blend: object) -> str | None:
    """Return why upstream cannot build a blend although weights and prefixes alternate; None if it can.

    :param blend: weights and prefixes, as text or as numbers; None for no blend
    """
    if not isinstance(blend, (list, tuple)):
        return None
    if not blend:
        return "names no data set"
    if len(blend) % 2 or not all(_is_weight(word) for word in blend[::2]):
        return None
    weights = [float(str(word)) for word in blend[::2]]
    total = sum(weights)
    for word, weight in zip(blend[::2], weights, strict=True):
        if not (total and weight / total > 0):  # NaN is not above zero
            return f"{' '.join(map(str, blend))}: the weight {word} is no share above zero"
    return None


def _odd_one(blend: Sequence[object], weights: Sequence[bool]) -> str:
    for place, (word, weight) in enumerate(zip(blend, weights, strict=True)):
        if weight and (place + 1 == len(blend) or weights[place + 1]):
            return f"no data set follows the weight {word}"
        if not weight and (place == 0 or not weights[place - 1]):
            return f"{word} has no weight, others have one"
    return "weights and data sets do not alternate"


def _is_weight(word: object) -> bool:
    try:
        float(str(word))
    except ValueError:
        return False
    return not isinstance(word, bool)
