"""Each record has the offset of its line, for any division of the log into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.megatron.logs.iteration_lines import IterationRecord
from airflow_megatron.megatron.logs.log_lines import LogParser

PLAIN = (
    " [2025-10-11 19:28:5%d] iteration %8d/     100 | consumed samples: %12d | elapsed time per iteration (ms): 10.0 |"
    " learning rate: 1.0E-03 | global batch size:     4 | lm loss: 1.0E+01 | loss scale: 1.0 | grad norm: 1.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
DEEPSPEED = (
    " iteration %8d/     100 | consumed samples: %12d | consumed tokens: %8d | elapsed time per iteration (s): 0.5 |"
    " learning rate: 1.0E-03 | global batch size: 4 | lm loss: 1.0E+01 | loss scale: 1.0 | grad norm: 1.0 |"
    " number of skipped iterations: 0 | number of nan iterations: 0 |"
)


def lines(kinds: list[int]) -> list[bytes]:
    found = []
    for number, kind in enumerate(kinds, 1):
        text = {
            0: PLAIN % (number % 10, number, 4 * number),
            1: "noise \r | of: others",
            2: f" validation loss at iteration {number} | lm loss value: 1.5E+00 | lm loss PPL: 2.0E+00 |",
            3: PLAIN % (number % 10, number, 4 * number) + PLAIN % (number % 10, number + 50, 4 * number),
            4: DEEPSPEED % (number, 4 * number, 4 * number),
            5: f"  successfully loaded checkpoint from /a [ t 0, p 0 ] at iteration {number}",
            6: "RuntimeError: it broke",
            7: "",
        }[kind]
        found.append(text.encode() + b"\n")
    return found


@pytest.mark.slow
@given(
    st.sampled_from((0, 4)).flatmap(  # a log is of one trainer
        lambda trainer: st.lists(
            st.sampled_from((trainer, trainer, 1, 2, 5, 6, 7, *((3,) if trainer == 0 else ()))), max_size=25
        )
    ),
    st.lists(st.integers(1, 700)),
    st.integers(0, 10_000),
)
def test_each_record_has_the_place_of_its_line(kinds: list[int], cuts: list[int], begin: int) -> None:
    log = lines(kinds)
    data, starts, at = b"".join(log), {}, begin
    for number, line in enumerate(log, 1):
        starts[number], at = at, at + len(line)
    parser, placed, rest = LogParser(begin), [], data
    for cut in (*cuts, len(data)):
        placed += parser.feed_placed(rest[:cut])
        rest = rest[cut:]
    placed += parser.finish_placed()
    assert [record for _, record in placed] == LogParser().feed(data)
    for place, record in placed:
        if isinstance(record, IterationRecord):
            assert place == starts[record.consumed_samples // 4], record
        else:
            assert place in starts.values()
