"""The positions of a text in a block of lines: all of them, up to eight in a line."""

from __future__ import annotations

import random

from airflow_megatron.megatron.logs.line_hits import MOST_HITS, LineHits


def places(block: bytes, needle: bytes) -> list[tuple[int, int]]:
    """Return each place with the end of its line."""
    hits, found = LineHits(block, needle), []
    at = hits.find(0)
    while at >= 0:
        found.append((at, hits.end))
        at = hits.find(at + len(needle))
    return found


def expected(block: bytes, needle: bytes) -> list[tuple[int, int]]:
    """Return the same by going over the lines one by one."""
    found, begin = [], 0
    for line in block.split(b"\n"):
        at, of_line = line.find(needle), []
        while at >= 0:
            of_line.append((begin + at, begin + len(line)))
            at = line.find(needle, at + len(needle))
        found += of_line[:MOST_HITS]
        begin += len(line) + 1
    return found


def test_each_place_up_to_eight_in_a_line() -> None:
    line = b"x| y" * (MOST_HITS + 3)
    for block in (b"", b"|", b"| a\n| b", line, line + b"\n" + line, b"\n" + line + b"\n\n|", line + b"\n"):
        assert places(block, b"|") == expected(block, b"|")


def test_any_text() -> None:
    chance = random.Random(9)
    for _ in range(2000):
        block = bytes(chance.choices(b"ab\n", weights=(5, 2, chance.choice((0, 1, 3))), k=60))
        assert places(block, b"ab") == expected(block, b"ab")


def test_a_reader_may_jump_over_lines() -> None:
    hits = LineHits(b"|1\n|2\n|||||||||||\n|4", b"|")
    assert [hits.find(0), hits.find(6), hits.find(12), hits.find(18)] == [0, 6, 12, 18]
    assert hits.end == 20
    assert hits.find(19) == -1
