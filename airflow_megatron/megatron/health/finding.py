"""Finding of a detector."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthFinding:
    """A problem of a training.

    :param text: one sentence with the decisive numbers
    :param before_iteration: the first iteration that may be affected; earlier checkpoints are good.
        None if the results of the training are not affected
    """

    text: str
    before_iteration: int | None = None
