"""The alarm for a training that starts from scratch although there was a checkpoint to load."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.megatron.logs.resume_check import ResumeCheck

LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "logs"
LOADED = "  successfully loaded checkpoint from /r/checkpoints [ t 1/1, p 1/1 ] at iteration 100\n"
RANDOM = (
    "WARNING: could not find the metadata file /r/checkpoints/latest_checkpointed_iteration.txt\n"
    "    will not load any checkpoints and will start from random\n"
)


def line(iteration: int) -> str:
    return (
        f" [2026-11-21 10:00:00.123456] iteration {iteration:8d}/     200 | consumed samples:         8 |"
        " elapsed time per iteration (ms): 1.0 | learning rate: 1.0E-03 | global batch size:     8 |"
        " lm loss: 5.5E+00 | loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |\n"
    )


def alarm(text: str, expected: int) -> str | None:
    parser = LogParser()
    return ResumeCheck(expected).read([*parser.feed(text.encode()), *parser.finish()])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RANDOM, "no checkpoint was found"),
        (RANDOM + line(1), "no checkpoint was found"),
        (line(1), "begins with iteration 1 and no checkpoint was loaded"),
        (line(100), "begins with iteration 100 "),
    ],
)
def test_from_scratch(text: str, told: str) -> None:
    said = alarm(text, 100)
    assert said is not None
    assert told in said
    assert "iteration 100 has a complete checkpoint" in said
    assert alarm(text, 0) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        LOADED + line(101),
        line(101),  # the line about loading may be of a form not known here
        line(101) + line(1),
        LOADED.replace("iteration 100", "iteration 0") + line(1),  # --finetune counts from 0
        LOADED + RANDOM,  # of an evaluation or another model in the same job
    ],
)
def test_no_alarm(text: str) -> None:
    assert alarm(text, 100) is None


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_recorded_logs_of_first_starts(name: str) -> None:
    text = (LOGS / name).read_text(errors="replace")
    if "successfully loaded checkpoint" in text:
        assert alarm(text, 1) is None
    elif "iteration        1/" in text:
        assert alarm(text, 1) is not None
