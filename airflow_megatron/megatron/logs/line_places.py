"""Position in a log, in bytes, of the line of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.logs.iteration_lines import NEEDLE

if TYPE_CHECKING:
    from collections.abc import Sequence


class LineStarts:
    """The positions in a log, in bytes, of the lines of a chunk.

    :param first: position of the line that the chunk continues
    :param chunk_at: position of the chunk
    :param chunk: the bytes of the chunk
    """

    def __init__(self, first: int, chunk_at: int, chunk: bytes) -> None:
        self._first, self._chunk_at, self._chunk = first, chunk_at, chunk
        self._line, self._end = 0, 0

    def __getitem__(self, line: int) -> int:
        """Return the offset of a line; line numbers must ascend, and larger ones mean the last line."""
        while self._line < line:
            end = self._chunk.find(b"\n", self._end) + 1
            if not 0 < end < len(self._chunk):
                break
            self._line, self._end = self._line + 1, end
        return self._chunk_at + self._end if self._line else self._first


def line_numbers(
    places: Sequence[int], rest: bytes, block: bytes, runs: Sequence[tuple[int, int, int]]
) -> list[int]:
    """Return the line of each record in a block, from 0.

    :param places: positions of the records in the rest, ascending; for a run, one per line
    :param rest: the block without the runs, each replaced by one byte
    :param block: complete lines
    :param runs: position in the rest, first byte in the block, and the byte after the last
    """
    numbers: list[int] = []
    todo = iter((*runs, (len(rest) + 1, 0, 0)))
    run_at, start, end = next(todo)
    line = at = 0
    for place in places:
        while place > run_at:
            line += rest.count(b"\n", at, run_at) + block.count(b"\n", start, end)
            at = run_at + 1
            run_at, start, end = next(todo)
        line += rest.count(b"\n", at, place)
        at = place
        if place == run_at:  # a line may contain two records
            needle = block.find(NEEDLE, start, end)
            line += block.count(b"\n", start, needle)
            start = needle + len(NEEDLE)
        numbers.append(line)
    return numbers
