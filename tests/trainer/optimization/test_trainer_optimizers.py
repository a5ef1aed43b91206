"""Optimizers: each of them trains, and a resumed run equals an uninterrupted one bit by bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trainer_harness import MODEL, SCRIPTS, Data, Trainer, pretrain_args

if TYPE_CHECKING:
    from collections.abc import Mapping

sys.path.insert(0, str(SCRIPTS))

from megatron_core_trainer.optimization.optimizer_choices import LIBRARY

BASE = (
    *MODEL,
    *("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "63"),
    *("--make-vocab-size-divisible-by", "1", "--micro-batch-size", "2", "--global-batch-size", "4"),
    *("--num-layers", "1", "--seq-length", "32", "--train-iters", "6", "--lr", "1e-3"),
    *("--lr-warmup-iters", "2", "--lr-decay-style", "constant"),
    *("--log-interval", "1", "--save-interval", "3", "--eval-iters", "1", "--num-workers", "0"),
)
CASES = {name: ["--optimizer", name] for name in ("adamw", "sgd", *LIBRARY)}
CASES["muon-own-rate"] = ["--optimizer", "muon", "--optimizer-settings", "adamw_lr=5e-4", "momentum=0.9"]
CASES["muon-without-rate"] = ["--optimizer", "muon", "--lr", "0"]
MUP = ["--use-mup", "--mup-base-hidden-size", "8", "--enable-depth-scale", "--depth-base", "2"]
CASES["adam-mup"] = [*MUP, "--depth-alpha", "0.5"]
CASES["adam-mup-distributed"] = [
    *CASES["adam-mup"],
    "--use-distributed-optimizer",
    "--lr-decay-style",
    "cosine",
]
CASES["lion-mup"] = [*MUP, "--optimizer", "lion"]
CASES["adamwschedulefree-bf16"] = ["--optimizer", "adamwschedulefree", "--bf16"]


@pytest.fixture(scope="module")
def outcomes(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """All cases in one process: starting one costs more than a case."""
    request = {"base": BASE, "directory": str(tmp_path_factory.mktemp("optimizers")), "cases": CASES}
    answers = trainer.answers(Path(__file__).with_name("optimizer_round_trips.py"), json.dumps(request))
    return {found["case"]: found for found in answers}


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_equals_the_uninterrupted_one(name: str, outcomes: Mapping[str, Any]) -> None:
    found = outcomes[name]
    assert sorted(found["whole"], key=int) == ["1", "2", "3", "4", "5", "6"]
    assert found["resumed"] == {step: line for step, line in found["whole"].items() if int(step) > 3}
    assert found["equal"]
    assert found["tensors"] >= 6
    assert found["validations"][0] == found["validations"][1] != []


def test_they_train_and_differ(outcomes: Mapping[str, Any]) -> None:
    last = {name: float(outcomes[name]["whole"]["6"][1]) for name in CASES}
    first = float(outcomes["adamw"]["whole"]["1"][1])
    # Optimizers that change every weight by about the rate reduce the loss; the others need far higher rates.
    for name in ("adamw", "ademamix", "adopt", "lion", "muon", "soap", "adamwschedulefree"):
        assert last[name] < first - 0.01, name
    assert len({round(loss, 6) for name, loss in last.items()}) == len(last)


def test_two_data_parallel_processes_train_like_one(trainer: Trainer, outcomes: Mapping[str, Any]) -> None:
    script = Path(__file__).with_name("optimizer_data_parallel.py")
    ranks = trainer.run_ranks(2, json.dumps(BASE), json.dumps(CASES), script=script)
    assert [outcome.status for outcome in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    found = {line["case"]: line["lines"] for line in map(json.loads, ranks[1].stdout.splitlines())}
    assert list(found) == list(CASES)
    for name, lines in found.items():
        for step, (rate, loss, norm) in lines.items():
            alone = outcomes[name]["whole"][step]
            assert rate == alone[0]
            # Gradients are summed in another order.
            assert [float(loss), float(norm)] == pytest.approx([*map(float, alone[1:])], rel=2e-5), (
                name,
                step,
            )


def test_wrong_settings_and_another_optimizer_are_refused(
    trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    args = pretrain_args(data, tmp_path / "c", ["--optimizer", "lion", "--optimizer-settings", "rho=1"])
    outcome = trainer.run("pretrain_gpt.py", *args)
    assert outcome.status == 2
    assert "--optimizer lion has no setting 'rho'; it has betas, " in outcome.stderr
    assert not (tmp_path / "c").exists()


def test_the_settings_are_those_of_the_library(trainer: Trainer) -> None:
    known = {
        name: {
            **dict.fromkeys(choice.flags.split(), "flag"),
            **dict.fromkeys(choice.numbers.split(), "number"),
            **choice.betas,
            **dict.fromkeys(choice.others.split(), "other"),
        }
        for name, choice in LIBRARY.items()
    }
    assert dict(trainer.answers(Path(__file__).with_name("library_settings.py"), "")) == known


def test_a_setting_without_meaning_is_refused_without_a_traceback(
    trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    settings = ["--optimizer", "shampoo", "--optimizer-settings", "preconditioning_compute_steps=0"]
    outcome = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "c", settings))
    assert outcome.status == 2
    assert (
        "--optimizer shampoo cannot be made: preconditioning_compute_steps must be positive" in outcome.stderr
    )


def test_a_checkpoint_of_another_optimizer_is_refused(
    trainer: Trainer, data: Data, reference: tuple[object, Path], tmp_path: Path
) -> None:
    args = pretrain_args(data, tmp_path / "c", ["--load", reference[1], "--optimizer", "lion"])
    outcome = trainer.run("pretrain_gpt.py", *args)
    assert outcome.status == 2
    assert (
        "was saved with --optimizer adam, not lion; continue with the same, or give --no-load-optim"
        in outcome.stderr
    )
