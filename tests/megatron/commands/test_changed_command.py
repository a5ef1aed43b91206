from __future__ import annotations

import pytest

from airflow_megatron.megatron.arguments.tables import argument_table
from airflow_megatron.megatron.commands.changed_command import changed_arguments, is_harmless

OLD = ["python", "pretrain_gpt.py", "--lr", "0.001", "--train-iters", "100", "--swiglu", "--save", "/r"]


def test_changed_arguments() -> None:
    new = [
        "python3",
        "pretrain_gpt.py",
        "--train-iters",
        "200",
        "--lr",
        "4e-3",
        "--save",
        "/r",
        "--seed",
        "2",
    ]
    assert changed_arguments(OLD, new, argument_table("core_v0.16.1")) == {
        "lr": (0.001, 0.004),
        "train_iters": (100, 200),
        "swiglu": (True, None),
        "seed": (None, 2),
    }
    assert changed_arguments(OLD, [*OLD[:2], "--lr", "1e-3", *OLD[4:]], argument_table("core_v0.16.1")) == {}
    assert changed_arguments([], ["bash", "-c", "x"], argument_table("core_v0.16.1")) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("train_iters", "save_interval", "log_interval", "exit_duration_in_mins", "eval_iters"),
        *("full_validation", "multiple_validation_sets", "validation_set_names"),
    ],
)
def test_harmless(name: str) -> None:
    assert is_harmless(name)


@pytest.mark.parametrize("name", ["lr", "seed", "global_batch_size", "train_data_path", "lr_decay_iters"])
def test_another_experiment(name: str) -> None:
    assert not is_harmless(name)
