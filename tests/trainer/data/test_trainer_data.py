"""Data preparation: deterministic, skipped if complete, readable by trainer and converter."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from trainer_harness import SCRIPTS, SMALL_DATA, Data, Trainer

if TYPE_CHECKING:
    from pathlib import Path


def manifest(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "manifest.json").read_text())
    return found


def test_finished_output_is_recognised_at_once(trainer: Trainer, data: Data) -> None:
    before = (data.directory / "manifest.json").stat().st_mtime_ns
    outcome = trainer.run("prepare_data.py", "--output", data.directory, *SMALL_DATA)
    assert outcome.status == 0
    assert "is prepared already" in outcome.stdout
    assert (data.directory / "manifest.json").stat().st_mtime_ns == before


def test_other_output_is_not_overwritten(trainer: Trainer, data: Data) -> None:
    outcome = trainer.run("prepare_data.py", "--output", data.directory, *SMALL_DATA, "--seed", 7)
    assert outcome.status == 2
    assert "was not prepared from these arguments" in outcome.stderr


def test_layout_and_sizes(data: Data) -> None:
    found = manifest(data.directory)
    splits = found["splits"]
    assert isinstance(splits, dict)
    assert splits["train"]["tokens"] == 60000
    assert splits["valid"]["tokens"] == 8000
    for split in ("train", "valid", "test"):
        # Two bytes a token: 257 tokens fit sixteen bits.
        assert (data.directory / f"{split}_text_document.bin").stat().st_size == 2 * splits[split]["tokens"]
        assert (data.directory / f"{split}_tokens").read_text() == f"{splits[split]['tokens']}\n"
    questions = [json.loads(line) for line in (data.directory / "evaluation" / "next_line.jsonl").open()]
    assert len(questions) == 12
    assert all(len(set(question["choices"])) == 4 for question in questions)
    assert {question["answer"] for question in questions} > {0, 1}


def test_both_sides_read_the_same_tokens(trainer: Trainer, data: Data) -> None:
    check = """
import sys
from transformers import AutoTokenizer
from megatron.core.datasets.indexed_dataset import IndexedDataset
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1] + "/tokenizer")
dataset = IndexedDataset(sys.argv[1] + "/train_text_document")
ids = dataset[0].tolist()
assert ids[-1] == tokenizer.eos_token_id == 256, ids[-5:]
text = bytes(ids[:-1]).decode()
assert tokenizer.decode(ids[:-1]) == text
assert tokenizer.encode(text, add_special_tokens=False) == ids[:-1]
odd = "h\\u00e9llo \\U0001f642\\t\\r\\n  \\x00 \\u202e"
assert tokenizer.encode(odd, add_special_tokens=False) == list(odd.encode())
"""
    result = subprocess.run(
        [str(trainer.python), "-c", check, str(data.directory)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr


def test_files_equal_those_of_megatrons_builder(trainer: Trainer, tmp_path: Path) -> None:
    check = """
import pathlib, sys
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron_core_trainer.data.indexed_data import write_index
folder = pathlib.Path(sys.argv[1])
for name in ("uint16", "int32"):
    for lengths in ([], [1], [3, 70_000, 1, 12]):
        builder = IndexedDatasetBuilder(str(folder / "theirs.bin"), dtype=np.dtype(name).type)
        for length in lengths:
            builder.add_document(torch.arange(length) % 60_000, [length])
        builder.finalize(str(folder / "theirs.idx"))
        write_index(folder / "ours.idx", lengths, np.dtype(name))
        theirs, ours = ((folder / f"{side}.idx").read_bytes() for side in ("theirs", "ours"))
        assert theirs == ours, (name, lengths)
"""
    result = subprocess.run(
        [str(trainer.python), "-c", check, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    assert result.returncode == 0, result.stderr


def test_own_files_and_learned_byte_pairs(trainer: Trainer, tmp_path: Path) -> None:
    text = tmp_path / "own.jsonl"
    documents = [f"document {i}: " + "the quick brown fox jumps over the lazy dog. " * 20 for i in range(60)]
    text.write_text("".join(json.dumps({"body": document}) + "\n" for document in documents))
    outcome = trainer.run(
        *("prepare_data.py", "--output", tmp_path / "out", "--input", text, "--json-key", "body"),
        *("--tokenizer", "bpe", "--vocab-size", 300, "--valid-percent", 20, "--test-percent", 20),
    )
    assert outcome.status == 0, outcome.stderr
    found = manifest(tmp_path / "out")
    splits = found["splits"]
    assert isinstance(splits, dict)
    assert sum(split["documents"] for split in splits.values()) == 60
    assert found["vocab_size"] == 300
    assert sum(split["tokens"] for split in splits.values()) < sum(map(len, documents)) / 2


def test_bad_input_names_file_and_line(trainer: Trainer, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"txt": "no"}\n')
    outcome = trainer.run("prepare_data.py", "--output", tmp_path / "out", "--input", bad)
    assert outcome.status == 2
    assert f"{bad}, line 2: expected a JSON object with the text under 'text'" in outcome.stderr
    bad.write_text('{"text": "fine"}\n{"text": "half \\ud83d of a pair"}\n')
    outcome = trainer.run("prepare_data.py", "--output", tmp_path / "out", "--input", bad)
    assert outcome.status == 2
    assert f"{bad}, line 2: 'text' has half a surrogate pair, '\\ud83d'" in outcome.stderr
    outcome = trainer.run("prepare_data.py", "--output", tmp_path / "out", "--input", tmp_path / "none.txt")
    assert outcome.status == 2
    assert "none.txt: no such file" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
