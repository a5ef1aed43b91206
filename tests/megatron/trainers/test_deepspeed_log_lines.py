"""Megatron-DeepSpeed's recorded logs: ten iterations on two ranks, plain and in colour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_megatron.megatron.logs.log_lines import (
    RECORD_LINES_ERE,
    CheckpointEvent,
    CheckpointRecord,
    IterationRecord,
    LogParser,
    MarkerKind,
    MarkerRecord,
    ValidationRecord,
    parse_log,
)
from airflow_megatron.megatron.logs.training_run import TrainingRun
from airflow_megatron.megatron.trainers.megatron_deepspeed.log_lines import in_megatrons_words

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
PLAIN, COLOUR = ((LOGS / f"megatron_deepspeed-{name}.log").read_bytes() for name in ("cpu-dp2", "colour"))


@pytest.mark.parametrize("log", [PLAIN, COLOUR])
def test_a_recorded_run(log: bytes) -> None:
    records = parse_log(log)
    iterations = [record for record in records if isinstance(record, IterationRecord)]
    assert [record.iteration for record in iterations] == list(range(1, 11))
    assert [record.consumed_samples for record in iterations] == list(range(4, 44, 4))
    assert not any(record.is_nan or record.torn for record in iterations)
    saved = [
        record.iteration
        for record in records
        if isinstance(record, CheckpointRecord) and record.event is CheckpointEvent.SAVED
    ]
    assert saved == [4, 8, 10]
    marks = [record.kind for record in records if isinstance(record, MarkerRecord)]
    assert marks[0] is MarkerKind.INITIALIZED
    assert marks[-1] is MarkerKind.TRAINING_DONE
    found = [
        (record.iteration, record.split, record.final)
        for record in records
        if isinstance(record, ValidationRecord)
    ]
    wanted = [
        (5, "validation", False),
        (10, "validation", False),
        (10, "validation", True),
        (10, "test", True),
    ]
    assert found == wanted


def test_values_of_the_recorded_run() -> None:
    run = TrainingRun.of(parse_log(PLAIN))
    first = run.iterations[0]
    assert (first.elapsed_ms, first.learning_rate, first.global_batch_size) == (127.5, 0.0005, 4)
    assert (first.loss, first.grad_norm, first.train_iters) == (4.849089, 0.339, 10)
    assert first.extra["consumed tokens"] == 256
    assert str(first.time) == "2026-11-21 21:20:22.768496"
    assert run.parameters == 6704
    assert (run.evaluation_loss("validation"), run.evaluation_loss("test")) == (4.850578, 4.852493)
    assert [record.perplexities["lm loss"] for record in run.validations[-2:]] == [127.814285, 128.059281]


def test_lines_cut_anywhere() -> None:
    parser = LogParser()
    records = [record for at in range(0, len(COLOUR), 97) for record in parser.feed(COLOUR[at : at + 97])]
    assert records + parser.finish() == parse_log(COLOUR)


def test_a_loss_that_is_not_a_number_is_left_out() -> None:
    line = next(line for line in PLAIN.split(b"\n") if b"consumed_samples" in line)
    (record,) = parse_log(re.sub(rb" lm loss=[\d.]+ \|", b"", line))
    assert isinstance(record, IterationRecord)
    assert record.is_nan


@pytest.mark.parametrize("log", [PLAIN, COLOUR])
def test_grep_finds_every_record(log: bytes) -> None:
    pattern = re.compile(RECORD_LINES_ERE.encode())
    kept = b"\n".join(line for line in log.split(b"\n") if pattern.search(line))
    assert parse_log(kept) == parse_log(log)


def test_other_lines_stay_as_they_are() -> None:
    for name in ("core_v0.16.1-cpu-tp2.log", "core_v0.14-gpt2xl-4gpu.log"):
        log = (LOGS / name).read_bytes()
        assert in_megatrons_words(log) == log
