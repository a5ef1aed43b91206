"""The starter of upstream's searches for a learning rate: its words, its refusals and its rates.

That upstream trains with it is tested in ``tests/trainer/optimization/test_trainer_lr_finder.py``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "Megatron-LM"))

import upstream_lr_finder
from megatron_core_trainer.optimization import lr_finder_options
from upstream_lr_finder import Search

STARTER = Path(upstream_lr_finder.__file__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "error: '.' is not a file; name CHECKOUT/pretrain_gpt.py"),
        (
            ["/no/pretrain_gpt.py"],
            "error: '/no/pretrain_gpt.py' is not a file; name CHECKOUT/pretrain_gpt.py",
        ),
        ([STARTER, "--lr", "1"], "error: the following arguments are required: --lr-finder-save"),
        (
            [STARTER, "--lr-finder-save", "/s", "--lr-finder-start-lr", "2"],
            "error: --lr-finder-start-lr (2.0) must be above zero and below --lr-finder-end-lr (1.0)",
        ),
    ],
)
def test_refusals(words: list[str | Path], message: str) -> None:
    done = subprocess.run([sys.executable, STARTER, *words], capture_output=True, text=True, check=False)
    assert done.returncode in {1, 2}
    assert done.stderr.splitlines()[-1] == f"upstream_lr_finder.py: {message}"


def test_upstream_receives_its_arguments_in_order() -> None:
    own = ["--data-path", "0.3", "/d/a b", "--lr", "-0.5", "--lr-finder", "--init=-1e-05", "--bf16"]
    words = [*own[:3], "--lr-finder-end-lr", "3", *own[3:6], "--lr-finder-save=/s", *own[6:]]
    options, rest = lr_finder_options.split("s", words)
    assert rest == own
    assert (options.lr_finder_end_lr, options.lr_finder_start_lr, options.lr_finder_save) == (3.0, 1e-6, "/s")


def test_rates_rise_from_the_first_step_to_the_last() -> None:
    options, _ = lr_finder_options.split("s", ["--lr-finder-save", "/s", "--lr-finder-start-lr", "1e-4"])
    search = Search(options, lambda: argparse.Namespace(train_iters=5, global_batch_size=8))
    rates = [search.rate(8 * step) for step in range(5)]
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert search.rate(1000) == 1.0


@pytest.mark.parametrize(
    ("highest", "group", "relation"),
    [(0.2, {"max_lr": 0.2}, 1), (0.2, {"max_lr": 0.02}, 0.1), (0.2, {}, 1), (0.0, {"max_lr": 0.1}, 1)],
)
def test_groups_keep_their_relation(highest: float, group: dict[str, float], relation: float) -> None:
    options, _ = lr_finder_options.split("s", ["--lr-finder-save", "/s"])
    search = Search(options, lambda: argparse.Namespace(train_iters=7, global_batch_size=1))
    scheduler = SimpleNamespace(max_lr=highest, num_steps=3)
    assert search.group_rate(scheduler, group) == pytest.approx(1e-3 * relation)
