"""A tokenizer is given by its directory, or by its name on the Hub if it is in Hugging Face's cache."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.project import local_dir, project_root

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trainer

PROGRAM = """
import sys
from pathlib import Path
from megatron_core_trainer.arguments import ArgumentError
from megatron_core_trainer.data.tokenizer import tokenizer_directory
try:
    print(tokenizer_directory(Path(sys.argv[1])))
except ArgumentError as error:
    print("refused:", error)
"""


def directory_of(name: str, home: Path) -> str:
    done = subprocess.run(
        [local_dir() / "venv-trainer/bin/python", "-c", PROGRAM, name],
        env={"PATH": os.environ["PATH"], "HF_HOME": str(home), "PYTHONPATH": str(project_root() / "Megatron-LM")},
        cwd=home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Return the directory of a model in a cache as huggingface_hub lays it out."""
    model = tmp_path / "hub" / "models--EleutherAI--gpt-neox-20b"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc").mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / "snapshots" / "abc" / file).write_text("{}")
    return model / "snapshots" / "abc"


def test_names(snapshot: Path, tmp_path: Path) -> None:
    assert directory_of("EleutherAI/gpt-neox-20b", tmp_path) == str(snapshot)
    assert directory_of(str(tmp_path), tmp_path) == str(tmp_path)
    (snapshot / "tokenizer_config.json").unlink()
    answer = directory_of("EleutherAI/gpt-neox-20b", tmp_path)
    assert answer.startswith("refused: the tokenizer EleutherAI/gpt-neox-20b is not a directory")
    assert answer.endswith("hf download EleutherAI/gpt-neox-20b tokenizer.json tokenizer_config.json")
