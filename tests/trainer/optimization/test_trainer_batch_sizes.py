"""Trainings whose length is given in samples, and whose batches grow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainer_harness import LOOP, MODEL, Data, Trainer

if TYPE_CHECKING:
    from pathlib import Path

BATCH = re.compile(r"global batch size: +(\d+) ")
SCHEDULE = (
    *("--micro-batch-size", "2", "--global-batch-size", "8", "--train-samples", "60"),
    *("--rampup-batch-size", "2", "2", "24", "--lr", "1e-2", "--lr-warmup-samples", "10"),
    *("--lr-decay-style", "WSD", "--lr-wsd-decay-style", "linear", "--lr-wsd-decay-samples", "20"),
)
SIZES = [2, 2, 2, 2, 4, 4, 6, 6, 8, 8, 8, 8]


def args(data: Data, save: Path, *extra: object) -> list[object]:
    return [*MODEL, *SCHEDULE, *LOOP, *data.args(), "--save", save, *extra]


def test_batches_grow_and_the_run_resumes_among_them(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    """Sizes and length are upstream's for these arguments (``update_train_iters``, 24 samples in three steps)."""
    whole = trainer.run("pretrain_gpt.py", *args(data, tmp_path / "a"))
    assert whole.status == 0, whole.stderr
    assert [int(size) for size in BATCH.findall(whole.stdout)] == SIZES
    assert [line.consumed for line in whole.lines.values()] == [sum(SIZES[: i + 1]) for i in range(12)]
    rates = [float(line.lr) for line in whole.lines.values()]
    assert rates[:5] == [2e-3, 4e-3, 6e-3, 8e-3, 1e-2]  # a fifth of ten samples each, then the peak
    assert rates[8] == 1e-2  # 36 samples: the decay begins at 40
    part = trainer.run(
        "pretrain_gpt.py", *args(data, tmp_path / "b", "--load", tmp_path / "a", "--ckpt-step", 4)
    )
    assert part.status == 0, part.stderr
    assert part.lines == {step: line for step, line in whole.lines.items() if step > 4}
