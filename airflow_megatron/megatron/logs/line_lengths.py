"""Truncate the lines of a log before they are parsed, because a job can write lines of any length."""

from __future__ import annotations

from typing import Final

LONGEST_LINE: Final = 4096
"""Maximum number of bytes of a line that are parsed. A record of Megatron's has some hundreds."""


def cut_lines(block: bytes, longest: int = LONGEST_LINE) -> bytes:
    """Truncate every line of a text after *longest* bytes.

    A line that is longer and rewrites itself (a progress bar) becomes one line for each of its states.

    :param block: lines with their ends; most texts have no long line and are returned as they are.
    """
    view = memoryview(block)
    kept: list[bytes | memoryview] = []
    begin = at = 0
    while at + longest < len(block):
        end = block.rfind(b"\n", at, at + longest + 1)
        if end >= 0:
            at = end + 1
            continue
        end = block.find(b"\n", at)
        end = end if end >= 0 else len(block)
        kept += (view[begin:at], b"\n".join(state[:longest] for state in block[at:end].split(b"\r")))
        begin = at = end
    return b"".join((*kept, view[begin:])) if kept else block


def cut_line(line: bytes, longest: int = LONGEST_LINE) -> bytes:
    """Shorten one line that may be incomplete: keep the last state of a progress bar, otherwise the beginning."""
    if len(line) <= longest:
        return line
    return line[line.rfind(b"\r", 0, len(line) - 1) + 1 :][:longest]
