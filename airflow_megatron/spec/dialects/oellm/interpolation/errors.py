"""What is wrong with a point of an oellm-autoexp sweep."""

from __future__ import annotations


class JobError(ValueError):
    """A point that no job can be made of.

    :param message: what is wrong
    :param key: dotted configuration key at fault
    :param mend: what to write instead
    """

    def __init__(self, message: str, key: str, mend: str = "") -> None:
        self.key, self.mend = key, mend
        super().__init__(message)
