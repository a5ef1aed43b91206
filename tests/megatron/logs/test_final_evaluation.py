"""A training that exits with 0 without the evaluation of its test set."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.megatron.arguments.values import ArgumentValues
from airflow_megatron.megatron.logs.final_evaluation import evaluates_at_end, missing_evaluation
from airflow_megatron.megatron.trainers.trainer_table import trainer_table
from airflow_megatron.spec.model.cluster_profile import load_cluster

ITERATION = b" iteration       20/      20 | consumed samples: 320 | lm loss: 5.1E+00 |\n"
STOPPED = b"[exiting program at iteration 20] datetime: 2026-11-22 10:00:00 \n"
SIGNAL = b"[exiting program after receiving SIGTERM.] datetime: 2026-11-22 10:00:00 \n"
DURATION = b"[exiting program after 59.9 minutes] datetime: 2026-11-22 10:00:00 \n"
DONE = b"[after training is done] datetime: 2026-11-22 10:00:00 \n"
DURING = b" validation loss at iteration 20 | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 | \n"
VALID = (
    b" validation loss at iteration 20 on validation set | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 | \n"
)
TEST = b" validation loss at iteration 20 on test set | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 | \n"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (STOPPED, "exiting program at iteration 20"),
        (SIGNAL, "exiting program after receiving SIGTERM."),
        (DURATION, "exiting program after 59.9 minutes"),
        (DONE + VALID, "after training is done"),
        (DONE + VALID + b"Exiting during evaluation, timelimit reached\n", "after training is done"),
    ],
)
def test_an_end_without_a_test_loss_is_reported(end: bytes, says: str) -> None:
    told = missing_evaluation(ITERATION + DURING + end)
    assert told == f"it has not evaluated the test set; its log says: {says}"


@pytest.mark.parametrize(
    "log",
    [
        ITERATION + DONE + VALID + TEST,
        ITERATION + DONE + b" validation-0 loss at iteration 20 on test set | lm loss value: 5.1E+00 |\n",
        ITERATION + DONE + b"rank 1 says:" + TEST[:50],
        TEST + b"warning of a rank\n" * 5000,
        ITERATION + DURING,
        b"",
    ],
    ids=["evaluated", "sets", "torn", "noise", "unknown", "empty"],
)
def test_what_is_evaluated_or_not_certain_is_not(log: bytes) -> None:
    assert missing_evaluation(log[-64 * 1024 :]) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"data_path": ["/d"]}, True),
        ({"data_path": ["/d"], "split": "99,1,0"}, False),
        ({"data_path": ["/d"], "split": "98,1,1"}, True),
        ({"data_path": ["/d"], "split": "100"}, False),
        ({"data_path": ["/d"], "eval_iters": 0}, False),
        ({"data_path": ["/d"], "skip_train": True}, False),
        ({"mock_data": True}, True),
        ({"train_data_path": ["/d"], "valid_data_path": ["/v"]}, False),
        ({"train_data_path": ["/d"], "test_data_path": ["/t"]}, True),
        ({"per_split_data_args_path": "/d.json"}, False),
    ],
)
@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
def test_a_test_set_is_certain_where_the_data_name_one(
    trainer: Any, given: dict[str, Any], expected: bool
) -> None:
    table = trainer_table(trainer, "core_v0.16.1", load_cluster("local"), {}, None)
    known = {name: value for name, value in given.items() if table.get(name)}
    if known == given:
        assert evaluates_at_end(ArgumentValues(table, {"eval_iters": 10, **given})) is expected
