"""The trainer beside unmodified upstream on the CPU: equal arguments, data and seeds give equal numbers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from trainer_harness import REPOSITORY, UPSTREAM_RELEASE, VALIDATION, Data, Trainer

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.spec.model.cluster_profile import load_cluster

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

LINE = re.compile(r" iteration +(\d+)/ +(\d+) \| (.*) \|$", re.MULTILINE)
COMMON = (
    *("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--max-position-embeddings", "32", "--micro-batch-size", "2", "--lr", "1e-2", "--log-interval", "1"),
    *("--save-interval", "3", "--eval-interval", "2", "--eval-iters", "2", "--num-workers", "0"),
    *("--log-num-zeros-in-grad", "--log-params-norm"),
)
SIX = ("--global-batch-size", "4", "--train-iters", "6")
LLAMA = (
    *("--position-embedding-type", "rope", "--rotary-base", "500", "--normalization", "RMSNorm", "--swiglu"),
    *("--ffn-hidden-size", "64", "--disable-bias-linear", "--untie-embeddings-and-output-weights"),
    *("--group-query-attention", "--num-query-groups", "2", "--qk-layernorm"),
)
CASES = {
    # --hidden-dropout and --attention-dropout are 0.1 by default
    "defaults": SIX,
    # with dropout, the attention does not use the fused kernel, which rounds differently
    "bfloat16": (*SIX, "--bf16"),
    "llama": (
        *(*SIX, *LLAMA, "--hidden-dropout", "0.2", "--attention-dropout", "0", "--init-method-std", "0.05"),
        *("--embedding-init-method-std", "0.1", "--make-vocab-size-divisible-by", "64", "--seed", "7"),
        *(
            "--lr-decay-style",
            "WSD",
            "--lr-wsd-decay-iters",
            "3",
            "--lr-warmup-iters",
            "1",
            "--min-lr",
            "1e-4",
        ),
    ),
    "ramp-up": (
        *("--train-samples", "40", "--rampup-batch-size", "4", "4", "16", "--global-batch-size", "12"),
        *("--lr-decay-style", "cosine", "--lr-warmup-samples", "8", "--clip-grad", "0.5"),
    ),
    "documents": (
        *(*SIX, "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss", "--optimizer", "sgd"),
        *("--start-weight-decay", "0.1", "--end-weight-decay", "0.9", "--weight-decay-incr-style", "linear"),
    ),
}
Numbers = dict[str, dict[str, float]]


def numbers(output: str, *, upstream: bool = False) -> Numbers:
    """Return what a log says about iterations and validations."""
    found: Numbers = {}
    for match in LINE.finditer(output):
        fields = (part.split(":", 1) for part in match[3].split(" | "))
        values = {name.strip(): float(value) for name, value in fields if "elapsed" not in name}
        found[match[1]] = {**values, "iterations": float(match[2])}
    if upstream:
        # its second line after a start counts the first iteration again
        first, second = list(found.values())[:2]
        second["lm loss"] = 2 * second["lm loss"] - first["lm loss"]
    for match in VALIDATION.finditer(output):
        found[f"validation {match['iteration']}{match['set'] or ''}"] = {"lm loss": float(match["loss"])}
    return found


def check(ours: Numbers, theirs: Numbers) -> None:
    """Compare two logs. Norms have three digits after the point; rounding decides which gradients are exactly zero."""
    assert ours.keys() == theirs.keys()
    for line, values in theirs.items():
        tolerance = {
            name: 3e-3 if name.endswith("norm") else 10 if name == "num zeros" else 0 for name in values
        }
        for name, value in values.items():
            assert ours[line].get(name) == pytest.approx(value, rel=1e-4, abs=tolerance[name]), (line, name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upstream")


@pytest.fixture(scope="module")
def theirs(trainer: Trainer, data: Data, upstream: Path, place: Path) -> dict[str, str]:
    """Outputs of upstream, by case."""
    machine = to_argv(load_cluster("local").trainer("megatron_lm").arguments, UPSTREAM_RELEASE)
    runs = {name: [*case, "--save", place / name] for name, case in CASES.items()}
    runs["stopped"] = [*CASES["llama"], "--save", place / "stopped", "--exit-interval", "3"]
    runs["continued"] = [*CASES["llama"], "--load", place / "stopped"]
    half = (*CASES["llama"], "--save", place / "ours", "--exit-interval", "3")
    outcome = trainer.run("pretrain_gpt.py", *COMMON, *data.args(), *half)
    assert outcome.status == 0, outcome.stderr
    runs["continued ours"] = [*CASES["llama"], "--load", place / "ours"]
    words = [
        [*COMMON, *machine, *data.args(), "--data-cache-path", place / "cache", *run] for run in runs.values()
    ]
    script = upstream / "pretrain_gpt.py"
    request = {"script": str(script), "runs": [[str(word) for word in run] for run in words]}
    answers = trainer.answers(
        REPOSITORY / "tests" / "trainer" / "training" / "upstream_runs.py", json.dumps(request)
    )
    assert [status for status, _ in answers] == [0] * len(runs), answers
    return {name: output for name, (_, output) in zip(runs, answers, strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_upstream(
    trainer: Trainer, data: Data, theirs: dict[str, str], case: str, tmp_path: Path
) -> None:
    outcome = trainer.run("pretrain_gpt.py", *COMMON, *data.args(), *CASES[case], "--save", tmp_path)
    assert outcome.status == 0, outcome.stderr
    check(numbers(outcome.stdout), numbers(theirs[case], upstream=True))


def test_upstream_continues_as_if_nothing_had_happened(theirs: dict[str, str]) -> None:
    """The dropout is that of an uninterrupted training, after upstream's checkpoint and after this trainer's."""
    whole, first = (numbers(theirs[name], upstream=True) for name in ("llama", "stopped"))
    check(first, {line: whole[line] for line in first})
    for name in ("continued", "continued ours"):
        rest = numbers(theirs[name], upstream=True)
        assert [*rest][:3] == ["4", "5", "6"]
        check(rest, {line: whole[line] for line in rest})


def test_a_checkpoint_of_upstream_is_continued(
    trainer: Trainer, data: Data, theirs: dict[str, str], place: Path
) -> None:
    words = (*COMMON, *data.args(), *CASES["llama"], "--load", place / "stopped")
    outcome = trainer.run("pretrain_gpt.py", *words)
    assert outcome.status == 0, outcome.stderr
    check(numbers(outcome.stdout), numbers(theirs["continued"], upstream=True))


def test_other_positions_than_those_of_the_checkpoint(
    trainer: Trainer, data: Data, theirs: dict[str, str], place: Path
) -> None:
    assert theirs
    words = (*COMMON, *data.args(), *CASES["llama"], "--load", place / "stopped")
    outcome = trainer.run("pretrain_gpt.py", *words, "--position-embedding-type", "learned_absolute")
    assert outcome.status == 2
    assert "(rope) is not this run's (learned_absolute); give the checkpoint's value" in outcome.stderr
