"""Scalars of a training in Weights & Biases, and data paths in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trainer_harness import MODEL, Trainer

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = """
import json, pathlib

class Run:
    def __init__(self, folder): self.file = (pathlib.Path(folder) / "run.jsonl").open("w")
    def log(self, values, step): print(json.dumps([step, values]), file=self.file)
    def finish(self): self.file.close()

def init(dir, name, project, config, entity=None):
    (pathlib.Path(dir) / "about.json").write_text(json.dumps([name, project, entity, config["num_layers"]]))
    return Run(dir)
"""
SHORT = (
    *(
        "--micro-batch-size",
        "2",
        "--train-iters",
        "3",
        "--lr",
        "1e-2",
        "--log-interval",
        "1",
        "--num-workers",
        "0",
    ),
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", "--eval-iters", "0"),
)


def test_figures_go_to_weights_and_biases_too(trainer: Trainer, tmp_path: Path) -> None:
    """A stand-in replaces its client, which would need an account."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(STAND_IN)
    saved = ["--save", tmp_path / "a", "--save-interval", "10", "--tensorboard-dir", tmp_path / "board"]
    named = ["--wandb-project", "small", "--wandb-exp-name", "first"]
    done = trainer.run(
        "pretrain_gpt.py",
        *(*MODEL, *SHORT, "--mock-data", *saved, *named),
        environment={"PYTHONPATH": str(tmp_path / "packages")},
    )
    assert done.status == 0, done.stderr
    folder = tmp_path / "a" / "wandb"
    assert json.loads((folder / "about.json").read_text()) == ["first", "small", None, 2]
    rows = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert [step for step, values in rows if "lm loss" in values] == [1, 2, 3]
    assert not any(name.endswith("vs samples") for _, values in rows for name in values)


def test_data_paths_come_from_a_file(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "blend.txt").write_text("0.3 /data/a\n0.7 /data/b\n")
    done = trainer.run("pretrain_gpt.py", *MODEL, *SHORT, "--data-args-path", tmp_path / "blend.txt")
    assert done.status == 2
    assert "/data/a.idx does not exist" in done.stderr
    missing = trainer.run("pretrain_gpt.py", *MODEL, *SHORT, "--data-args-path", tmp_path / "none.txt")
    assert "--data-args-path: there is no file" in missing.stderr
