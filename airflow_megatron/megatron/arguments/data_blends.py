"""Blends of data sets: prefixes alone, or a weight before each of them.

Upstream (``megatron/core/datasets/utils.py``, ``get_blend_from_list``) takes a list that is neither for prefixes alone,
weights included, and a job ends where there is no data set called ``0.6``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Arguments that name blends, by ``dest``.
BLENDS: Final = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
HINT: Final = "a weight before each data set, [0.6, A, 0.4, B], or none at all, [A, B]"


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
    # a 1 in the place of a prefix may stand for one that an earlier job writes (commands.comparable_words)
    weights = [_is_weight(word) and (place % 2 == 0 or word != "1") for place, word in enumerate(blend)]
    if not any(weights) or (
        weights == [place % 2 == 0 for place in range(len(blend))] and len(blend) % 2 == 0
    ):
        return None
    shown = " ".join(map(str, blend))
    return f"{shown}: {_odd_one(blend, weights)}"


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
