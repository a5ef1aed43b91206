"""The part of a job's log that the task's log shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.supervision.live_log import (
    BYTES_PER_ATTEMPT,
    BYTES_PER_LOOK,
    LINES_PER_LOOK,
    LONGEST_LINE,
    LiveLog,
    harmless,
)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain \xc3\xa9 text", "plain é text"),
        (b"\x1b[31;1mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07shown", "shown"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"10%\r20%\r30%\r", "30%"),
        (b"a\tb", "a    b"),
        (b"bell\x07 back\x08 nul\x00", "bell\\x07 back\\x08 nul\\x00"),
        ("left\u202eright".encode(), "left\\u202eright"),
        (b"bad \xff byte", "bad \ufffd byte"),
        ("wide\u00a0space".encode(), "wide\u00a0space"),
        (b"\x1b", "\\x1b"),
    ],
)
def test_log_lines_cannot_control_a_terminal(raw: bytes, text: str) -> None:
    assert harmless(raw) == text


@given(st.binary(max_size=3000))
def test_any_bytes_become_one_printable_line(raw: bytes) -> None:
    text = harmless(raw)
    assert not [character for character in text if ord(character) < 32 or 127 <= ord(character) < 160]
    assert len(text) < 11 * LONGEST_LINE


def test_a_line_is_shown_once_it_is_complete_however_it_comes() -> None:
    live = LiveLog()
    assert live.take(b"iteration 1\nitera").lines == ("iteration 1",)
    assert live.pending_bytes == 5
    assert live.take(b"tion 2\n").lines == ("iteration 2",)
    assert live.take(b"last").lines == ()
    assert live.finish().lines == ("last",)
    assert live.finish().lines == ()


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_no_line_is_lost_or_doubled_below_the_caps(chunks: list[bytes]) -> None:
    live = LiveLog()
    shown = [line for chunk in chunks for line in live.take(chunk).lines] + list(live.finish().lines)
    whole = b"".join(chunks).split(b"\n")
    expected = [harmless(line) for line in (whole if whole[-1] else whole[:-1])]
    assert shown == expected
    assert live.left_out == 0


def test_of_many_lines_the_last_are_shown_and_the_others_counted() -> None:
    excerpt = LiveLog().take(b"".join(b"%d\n" % number for number in range(250)))
    assert excerpt.left_out == 250 - LINES_PER_LOOK
    assert excerpt.lines[0] == str(250 - LINES_PER_LOOK)
    assert excerpt.lines[-1] == "249"


def test_of_long_lines_fewer_are_shown() -> None:
    live = LiveLog()
    excerpt = live.take((b"x" * 999 + b"\n") * 60)
    assert len(excerpt.lines) == -(-BYTES_PER_LOOK // 1000)
    assert excerpt.left_out == 60 - len(excerpt.lines) == live.left_out
    assert live.take(b"y" * 10_000 + b"\n").lines[0].endswith("(8000 more characters)")


def test_an_attempt_has_a_share_after_which_lines_are_only_counted() -> None:
    live = LiveLog(shown_bytes=BYTES_PER_ATTEMPT - 10)
    excerpt = live.take(b"123456789\n")
    assert excerpt.lines == ("123456789",)
    assert excerpt.is_last
    later = live.take(b"more\nand more\n")
    assert (later.lines, later.left_out, later.is_last) == ((), 0, False)
    assert live.left_out == 2


def test_a_progress_bar_without_an_end_takes_no_memory() -> None:
    live = LiveLog()
    for _ in range(100):
        live.take(b"\r50%" * 10_000)
    assert live.pending_bytes <= 64 * 1024
    assert live.finish().lines == ("50%",)
