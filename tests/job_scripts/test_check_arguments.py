"""The trainer's checks of command lines, without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "Megatron-LM" / "check_arguments.py"
MODEL = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 64,
    "max-position-embeddings": 64,
}
RUN = {
    "micro-batch-size": 2,
    "lr": 1e-3,
    "train-iters": 5,
    "tokenizer-type": "NullTokenizer",
    "vocab-size": 9,
}
ELSEWHERE = ["--data-path", "/not/on/this/machine"]
GOOD = [f"--{name}={value}" for name, value in {**MODEL, **RUN}.items()] + ELSEWHERE


@pytest.mark.slow
def test_an_answer_for_each_line() -> None:
    requests = [
        (GOOD, 2),
        ([*GOOD, "--tensor-model-parallel-size", "2"], 3),
        ([*GOOD, "--no-such-flag"], 1),
        (["--use-checkpoint-args", "--load", "/elsewhere", "--micro-batch-size", "1"], 1),
        ([*GOOD, "--transformer-impl", "transformer_engine", "--optimizer", "lamb"], 1),
        ([*GOOD, "--swiglu", "--hidden-size", f"4{'0' * 400}"], 1),
        ([*GOOD, "--group-query-attention", "--num-query-groups", "0"], 1),
        (
            [
                *GOOD,
                "--num-layers=3",
                "--hidden-size=63",
                "--save=/s",
                "--wandb-project=x",
                "--eval-iters=-1",
            ],
            1,
        ),
    ]
    lines = "".join(json.dumps({"argv": argv, "world_size": size}) + "\n" for argv, size in requests)
    done = subprocess.run([sys.executable, PROGRAM], input=lines, capture_output=True, text=True, check=True)
    good, (parallel,), (unknown,), from_checkpoint, elsewhere, (large,), (zero,), several = map(
        json.loads, done.stdout.splitlines()
    )
    assert good is from_checkpoint is elsewhere is None
    assert "must be a multiple of" in parallel
    assert "no argument '--no-such-flag'" in unknown
    assert "cannot calculate with these values: integer division result too large" in large
    assert zero == "--num-query-groups must be above zero, not 0"
    assert several == [
        "--hidden-size (63) must be a multiple of --num-attention-heads (4)",
        "--save needs --save-interval",
        "--eval-iters must not be negative",
        "--wandb-project needs --tensorboard-dir: it gets what TensorBoard gets",
    ]
