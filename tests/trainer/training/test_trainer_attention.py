"""Attention on a CPU, and masks of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trainer_harness import Data, Trainer, pretrain_args

if TYPE_CHECKING:
    from collections.abc import Sequence

FUSED = ("plain", "query groups", "documents", "bf16", "layer scaling", "dropout, validation")
NOT_FUSED = ("dropout, training", "window", "softmax with an offset", "all positions")


@pytest.fixture(scope="module")
def compared(trainer: Trainer) -> dict[str, dict[str, object]]:
    outcome = trainer.wait(trainer.start(Path(__file__).with_name("attention_outputs.py")))
    assert outcome.status == 0, outcome.stderr
    rows = [json.loads(line) for line in outcome.stdout.splitlines()]
    return {row["case"]: row for row in rows}


def largest_difference(row: dict[str, object]) -> float:
    differences: Sequence[float] = row["differences"]  # type: ignore[assignment]
    assert row["alike"]
    return max(differences)


def test_the_fused_kernel_computes_what_megatron_core_computes(
    compared: dict[str, dict[str, object]],
) -> None:
    for case in FUSED:
        assert compared[case]["fused"], case
        # contexts and gradients are of the order of 1; bfloat16 has eight bits
        assert largest_difference(compared[case]) < (0.1 if case == "bf16" else 1e-5), case


def test_what_the_kernel_cannot_compute_is_left_to_megatron_core(
    compared: dict[str, dict[str, object]],
) -> None:
    for case in NOT_FUSED:
        assert not compared[case]["fused"], case
        assert largest_difference(compared[case]) == 0, case
    assert set(compared) == {*FUSED, *NOT_FUSED}


@pytest.fixture(scope="module")
def short_documents(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Documents of which each sequence of the training contains several; each repeats one letter."""
    directory = tmp_path_factory.mktemp("short")
    texts = directory / "texts.jsonl"
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [json.dumps({"text": letters[number % 26] * (5 + number % 13)}) for number in range(2000)]
    texts.write_text("\n".join(rows), encoding="utf-8")
    output = directory / "data"
    outcome = trainer.run("prepare_data.py", "--input", texts, "--output", output, "--heldout-pieces", 0)
    assert outcome.status == 0, outcome.stderr
    return Data(output)


def test_tensor_parallel_ranks_separate_documents(
    trainer: Trainer, short_documents: Data, tmp_path: Path
) -> None:
    vocabulary, halves = "--make-vocab-size-divisible-by", "--tensor-model-parallel-size"
    losses: dict[str, list[float]] = {}
    for name, size, separate in (
        ("joined", 1, []),
        ("separate", 1, ["--reset-attention-mask"]),
        ("two ranks", 2, ["--reset-attention-mask"]),
    ):
        extra = [vocabulary, 128 // size, halves, size, *separate]
        args = pretrain_args(short_documents, tmp_path / name, extra)
        outcomes = trainer.run_ranks(size, *args)
        assert [outcome.status for outcome in outcomes] == [0] * size, outcomes[0].stderr
        losses[name] = [float(line.loss) for line in outcomes[-1].lines.values()]
    assert losses["two ranks"] == pytest.approx(losses["separate"], abs=2e-3)
    assert losses["joined"] != pytest.approx(losses["separate"], abs=1e-2)
