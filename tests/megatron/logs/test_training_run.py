from __future__ import annotations

from pathlib import Path

import pytest

from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    IterationRecord,
    ParameterCount,
    Record,
    ValidationRecord,
    parse_log,
)
from airflow_megatron.megatron.logs.training_run import TrainingRun

CPU_LOG = Path(__file__).parents[2] / "fixtures" / "logs" / "core_v0.16.1-cpu-tp2.log"


def test_recorded_run() -> None:
    run = TrainingRun.of(parse_log(CPU_LOG.read_bytes()))
    assert run.last is not None
    assert run.last.iteration == 20
    assert run.train_loss == pytest.approx(4.325816)
    assert run.evaluation_loss("validation") == pytest.approx(4.266902)
    assert run.evaluation_loss("test") == pytest.approx(4.333656)
    assert run.parameters == 2 * 57664
    # Median of the logged times but the first: 87.0 ms for 4 samples of 64 tokens.
    times = sorted(record.elapsed_ms or 0 for record in run.iterations[1:])
    assert run.tokens_per_second(64) == pytest.approx(4 * 64 * 1000 / times[9], rel=1e-9)


def test_nothing_logged() -> None:
    run = TrainingRun.of([])
    assert run.last is run.train_loss is run.parameters is run.evaluation_loss("validation") is None
    assert run.tokens_per_second(64) is None


def test_train_loss_is_a_mean_over_the_end() -> None:
    records = [
        IterationRecord(number, 60, number, losses={"lm loss": float(number)}, nan_iterations=0)
        for number in range(1, 61)
    ]
    assert TrainingRun.of(records).train_loss == pytest.approx((58 + 59 + 60) / 3)
    diverged = IterationRecord(61, 61, 61, nan_iterations=1)
    assert TrainingRun.of([*records, diverged]).train_loss is None


@pytest.mark.parametrize(
    ("loaded", "iterations", "covered"),
    [
        (None, [10, 20, 25], [10, 10, 5]),
        (None, [1, 10, 20], [1, 9, 10]),
        (7, [10, 20], [3, 10]),
        (100, [110, 120], [10, 10]),
        (None, [110, 120], [10, 10]),  # the beginning of the log is lost
        (100, [10, 20], [10, 10]),  # a finetuning counts from 0
        (None, [10], [10]),
        (None, [], []),
    ],
)
def test_seconds_of_lines(loaded: int | None, iterations: list[int], covered: list[int]) -> None:
    lines: list[Record] = [IterationRecord(each, 200, each, elapsed_ms=500.0) for each in iterations]
    if loaded is not None:
        lines.insert(0, CheckpointRecord(CheckpointEvent.LOADED, loaded, None))
    assert TrainingRun.of(lines).line_seconds == [each / 2 for each in covered]


@pytest.mark.parametrize(
    ("lines", "skipped"),
    [
        # upstream from core_v0.16 on: the second line has the first iteration, too
        ([(1, 1, None), (2, 2, None), (3, 1, None)], [1, 1, 1]),
        ([(1, 1, None), (2, 1, 5.0), (3, 0, 5.0)], [1, 0, 0]),
        ([(1, 1, None), (10, 3, 5.0), (20, 0, 4.0)], [1, 2, 0]),
        ([(7, 1, None), (10, 3, 5.0), (20, 1, 4.0)], [1, 2, 1]),
        # earlier releases
        ([(1, 1, None), (2, 1, None), (3, 0, 5.0)], [1, 1, 0]),
        ([(10, 2, 5.0), (20, 1, 5.0), (30, 0, 5.0)], [2, 1, 0]),
        ([], []),
    ],
)
def test_skipped_iterations_count_once(
    lines: list[tuple[int, int, float | None]], skipped: list[int]
) -> None:
    records: list[Record] = [
        IterationRecord(
            number, 40, number, losses={} if loss is None else {"lm loss": loss}, skipped_iterations=count
        )
        for number, count, loss in lines
    ]
    assert TrainingRun.of(records).skipped == skipped


def validation(
    iteration: int, loss: float, *, final: bool = False, dataset: str | None = None
) -> ValidationRecord:
    return ValidationRecord(iteration, "validation", dataset, final, {"lm loss": loss}, {})


def test_final_validation_wins_and_restarts_replace() -> None:
    during = [validation(10, 3.0), validation(20, 2.0), validation(20, 2.5)]
    assert TrainingRun.of(during).evaluation_loss("validation") == 2.5
    assert TrainingRun.of([*during, validation(15, 2.2, final=True)]).evaluation_loss("validation") == 2.2


def test_a_rollback_removes_the_validations_after_its_checkpoint() -> None:
    def step(number: int) -> IterationRecord:
        return IterationRecord(number, 60, number, losses={"lm loss": 3.0}, nan_iterations=0)

    def check(number: int, loss: float) -> ValidationRecord:
        return ValidationRecord(number, "validation", None, False, {"lm loss": loss}, {})

    diverged = [step(10), check(10, 4.0), step(20), check(20, 3.0), step(30), check(30, float("nan"))]
    loaded = CheckpointRecord(CheckpointEvent.LOADED, 20, "c")
    assert (
        TrainingRun.of([*diverged, loaded]).evaluation_loss("validation") != 3.0
    )  # it has not trained again yet
    rolled_back = TrainingRun.of([*diverged, loaded, step(25)])
    assert rolled_back.evaluation_loss("validation") == 3.0
    assert rolled_back.validation_losses == {10: 4.0, 20: 3.0}
    again = TrainingRun.of([*diverged, loaded, step(25), step(30), check(30, 2.5)])
    assert again.evaluation_loss("validation") == 2.5


def test_first_of_several_validation_sets() -> None:
    sets = [validation(20, 2.0, dataset="wiki"), validation(20, 4.0, dataset="code")]
    assert TrainingRun.of(sets).evaluation_loss("validation") == 2.0
    assert TrainingRun.of([validation(10, 3.0, dataset="wiki"), *sets]).validation_losses == {
        10: 3.0,
        20: 2.0,
    }
    assert TrainingRun.of([*sets, validation(20, 2.5, dataset="wiki")]).evaluation_loss("validation") == 2.5


def test_parameters_of_a_large_parallel_model_come_from_the_total() -> None:
    ranks = [ParameterCount("rank", 900_000_000, (rank, 0)) for rank in range(2)]
    assert TrainingRun.of([*ranks, ParameterCount("total", 1_700_000_000)]).parameters == 1_700_000_000
    assert TrainingRun.of(ranks).parameters == 1_800_000_000
