"""An argument that an earlier job writes is refused by no check, because its value is not known yet."""

from __future__ import annotations

import pytest
from checked_chain import TRUNK, alps, changed, errors_of

from airflow_megatron.spec.model.schema import TrainerSection

UNKNOWN = "\"{{ file_value('/data/value') }}\""
BOTH = TRUNK.replace("  vocab_size: 100\n", "  vocab_size: 100\n  transformer_impl: local\n")
UPSTREAM = BOTH.replace('point: "lr{{ lr }}"', 'point: "lr{{ lr }}"\ntrainer: megatron_lm')
LOCAL = alps().model_copy(update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/Megatron-LM")}})


@pytest.mark.slow
@pytest.mark.parametrize("text", [BOTH, UPSTREAM], ids=["megatron_core", "megatron_lm"])
@pytest.mark.parametrize(
    "setting",
    [
        *("global_batch_size: 64", "lr_warmup_iters: 10", "save_interval: 60", "train_iters: 300"),
        *("lr_wsd_decay_iters: 60", "lr_decay_iters: 360", "lr_decay_iters: 300"),
    ],
)
def test_an_argument_from_a_file(setting: str, text: str) -> None:
    name = setting.partition(":")[0]
    text = text[: text.index("  convert:")]
    assert errors_of(changed((setting, f"{name}: {UNKNOWN}"), text=text), LOCAL) == []


def test_a_length_that_a_later_stage_needs() -> None:
    text = changed(("train_iters: 300", f"train_iters: {UNKNOWN}"))
    (problem,) = errors_of(text)
    assert problem.message == (
        "stage pretrain at point lr0.001: train_iters is known only when pretrain starts, but the stage after it"
        " processes the last checkpoint; write train_iters as a number, or start: {checkpoint: …} in that stage"
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", [BOTH, UPSTREAM], ids=["megatron_core", "megatron_lm"])
def test_what_else_is_wrong_is_still_refused(text: str) -> None:
    unknown = ("lr_warmup_iters: 10", f"lr_warmup_iters: 10\n  min_lr: {UNKNOWN}")
    assert errors_of(changed(unknown, text=text), LOCAL) == []
    (problem, *_) = errors_of(
        changed(unknown, ("micro_batch_size: 8", "micro_batch_size: 7"), text=text), LOCAL
    )
    assert "micro-batch-size" in str(problem)


@pytest.mark.parametrize("text", [BOTH, UPSTREAM], ids=["megatron_core", "megatron_lm"])
@pytest.mark.parametrize("first", ["file", "number"])
def test_the_same_number_in_the_spec_is_judged_by_itself(text: str, first: str) -> None:
    """A batch of 1, which stands for the value of a file, is refused where the spec gives it."""
    batch = "global_batch_size: \"{{ file_value('/data/value') if source == 'file' else 1 }}\""
    sources = "file, number" if first == "file" else "number, file"
    text = changed(
        ("global_batch_size: 64", batch),
        ('point: "lr{{ lr }}"', 'point: "{{ source }}"'),
        ("  lr: [1e-3, 4e-3]", f"  params: {{source: [{sources}]}}"),
        ("seq_length: 128", "seq_length: 128\n  lr: 1e-3"),
        text=text[: text.index("  cooldown:")],
    )
    problems = errors_of(text, LOCAL)
    assert problems
    assert not [problem for problem in problems if "point file" in problem.message]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("checkpoint: 240", "checkpoint: 360"), "which ends at iteration 300"),
        (("checkpoint: 240", "checkpoint: 250"), None),
    ],
)
def test_checkpoints_at_an_interval_from_a_file(change: tuple[str, str], told: str | None) -> None:
    text = changed(change, ("save_interval: 60", f"save_interval: {UNKNOWN}"))
    messages = [problem.message for problem in errors_of(text) if "needs checkpoint" in problem.message]
    assert [told in message for message in messages if told] == [True] * len(messages)
    assert bool(messages) == bool(told)
