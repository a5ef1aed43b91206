"""Scores of random guessing in the multiple-choice tasks of lm-evaluation-harness.

The number of answers to a question is taken from the paper of the task's data set.
"""

from __future__ import annotations

from typing import Final

_ANSWERS: Final = {
    "anli": 3,
    "arc_challenge": 4,
    "arc_easy": 4,
    "boolq": 2,
    "cb": 3,
    "commonsense_qa": 5,
    "copa": 2,
    "hellaswag": 4,
    "logiqa": 4,
    "mathqa": 5,
    "mmlu": 4,
    "multirc": 2,
    "openbookqa": 4,
    "piqa": 2,
    "race": 4,
    "rte": 2,
    "sciq": 4,
    "social_iqa": 3,
    "wic": 2,
    "winogrande": 2,
    "wsc": 2,
    "xcopa": 2,
    "xnli": 3,
    "xstorycloze": 2,
    "xwinograd": 2,
}
_ACCURACIES: Final = frozenset(("acc", "acc_norm"))


def chance_level(task: str, metric: str) -> float | None:
    """Return the score of random guessing; None where it is not known.

    :param task: name of the task, or of one of its parts, for example ``mmlu_anatomy``
    """
    if metric not in _ACCURACIES:
        return None
    words = task.split("_")
    for count in range(len(words), 0, -1):
        answers = _ANSWERS.get("_".join(words[:count]))
        if answers is not None:
            return 1 / answers
    return None
