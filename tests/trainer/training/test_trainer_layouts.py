"""Tensor, pipeline and data parallelism over gloo: training, checkpoints, and conversion of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trainer_harness import Data, Outcome, Trainer, pretrain_args

if TYPE_CHECKING:
    from pathlib import Path

LAYOUTS = {
    # The vocabulary is padded to a multiple of this times the tensor-parallel size.
    "tensor": ["--tensor-model-parallel-size", "2", "--make-vocab-size-divisible-by", "64"],
    "pipeline": ["--pipeline-model-parallel-size", "2", "--micro-batch-size", "1"],
    "data": ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"],
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(
    request: pytest.FixtureRequest, trainer: Trainer, data: Data, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[object], list[Outcome], Path]:
    """A two-process run: the layout's name, its arguments, both processes' outcomes, the checkpoints."""
    save = tmp_path_factory.mktemp(request.param) / "checkpoints"
    args = pretrain_args(data, save, LAYOUTS[request.param])
    outcomes = trainer.run_ranks(2, *args)
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes[0].stderr + outcomes[1].stderr
    return request.param, args, outcomes, save


def test_two_processes_train_like_one(
    layout: tuple[str, list[object], list[Outcome], Path], reference: tuple[Outcome, Path]
) -> None:
    name, _, outcomes, _ = layout
    lines = outcomes[1].lines  # the last rank logs iterations, as upstream's does
    assert not outcomes[0].lines
    assert "[after training is done]" in outcomes[0].stdout
    for step, line in reference[0].lines.items():
        assert (lines[step].lr, lines[step].consumed) == (line.lr, line.consumed)
        # The later stage of a pipeline draws its initial weights from another seed; the others start the same.
        tolerance = 0.25 if name == "pipeline" else 2e-3
        assert float(lines[step].loss) == pytest.approx(float(line.loss), abs=tolerance)


def test_every_rank_writes_its_part(layout: tuple[str, list[object], list[Outcome], Path]) -> None:
    names = {path.name for path in (layout[3] / "iter_0000012").iterdir()}
    assert {".metadata", "metadata.json", "common.pt", "__0_0.distcp", "__1_0.distcp"} <= names


def test_resumes_equal(
    layout: tuple[str, list[object], list[Outcome], Path], trainer: Trainer, tmp_path: Path
) -> None:
    _, args, outcomes, save = layout
    again = trainer.run_ranks(2, *args, "--load", save, "--ckpt-step", 8, "--save", tmp_path / "own")
    assert [outcome.status for outcome in again] == [0, 0], again[0].stderr
    assert again[1].lines == {step: line for step, line in outcomes[1].lines.items() if step > 8}
    assert again[1].validations["12 on test set"] == outcomes[1].validations["12 on test set"]


def test_converts(
    layout: tuple[str, list[object], list[Outcome], Path], trainer: Trainer, tmp_path: Path
) -> None:
    outcome = trainer.run("convert_to_hf.py", "--load", layout[3], "--output", tmp_path / "iter_12")
    assert outcome.status == 0, outcome.stderr
    assert "max abs logit difference: " in outcome.stdout
    assert (tmp_path / "iter_12" / "model.safetensors").is_file()


def test_continues_in_another_layout(
    layout: tuple[str, list[object], list[Outcome], Path], trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    name, _, outcomes, save = layout
    extra = ["--load", save, "--ckpt-step", 8]
    outcome = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "own", extra))
    if name == "data":
        assert outcome.status == 2
        assert "was saved with --use-distributed-optimizer" in outcome.stderr
        divided = [*extra, "--use-distributed-optimizer", *LAYOUTS["tensor"]]
        ranks = trainer.run_ranks(2, *pretrain_args(data, tmp_path / "tensor", divided))
        assert [rank.status for rank in ranks] == [2, 2]
        assert "the state of --use-distributed-optimizer for other tensor- and pipeline" in ranks[0].stderr
        return
    assert outcome.status == 0, outcome.stderr
    assert "RNG state will be ignored" in outcome.stdout
    for step, line in outcome.lines.items():
        assert float(line.loss) == pytest.approx(float(outcomes[1].lines[step].loss), abs=2e-3)
