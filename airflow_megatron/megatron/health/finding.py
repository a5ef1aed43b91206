"""Finding of a detector."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthFinding:
    """Something wrong with a training.

    :param text: one sentence with the numbers that decided
    :param before_iteration: the first iteration that may be affected; checkpoints of earlier ones are good. None where
        the numbers of the training are not in doubt
    """

    text: str
    before_iteration: int | None = None
