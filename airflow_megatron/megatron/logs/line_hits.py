"""Find a text in a block of lines, a limited number of times in each line.

Otherwise a line that repeats the text a thousand times would be parsed a thousand times.
"""

from __future__ import annotations

from typing import Final

MOST_HITS: Final = 8
"""Maximum number of records that processes have written into one line."""


class LineHits:
    """The positions of a text in a block, found in ascending order.

    :param block: the lines
    :param needle: the text
    """

    __slots__ = ("_block", "_hits", "_needle", "end")

    def __init__(self, block: bytes, needle: bytes) -> None:
        self._block, self._needle, self._hits = block, needle, 0
        self.end = -1
        """End of the line of the last position."""

    def find(self, begin: int) -> int:
        """Return the next position from *begin* on, -1 without one; *begin* must not decrease between calls."""
        block = self._block
        at = block.find(self._needle, begin)
        if 0 <= at < self.end:
            self._hits += 1
            if self._hits <= MOST_HITS:
                return at
            at = block.find(self._needle, self.end)
        if at >= 0:
            self._hits = 1
            end = block.find(b"\n", at)
            self.end = end if end >= 0 else len(block)
        return at
