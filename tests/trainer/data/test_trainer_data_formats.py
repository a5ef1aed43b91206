"""Data preparation from other formats and tokenizers, with several processes, and after an interruption."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_harness import SCRIPTS, SMALL_DATA, TIMEOUT_S, Data, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

sys.path.insert(0, str(SCRIPTS))

from megatron_core_trainer.data import corpus, tokenized_pieces

SHARES = ("--valid-percent", 20, "--test-percent", 20)
DOCUMENTS = [
    f"Document {i}: naïve <|endoftext|> <s> words, {i * i}\n" + "so it goes " * (i % 7 + 1)
    for i in range(100)
]


@pytest.fixture(scope="module")
def inputs(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same hundred documents as .jsonl, as a snapshot of .parquet files and as a saved data set; tokenizers."""
    directory = tmp_path_factory.mktemp("formats")
    lines = [json.dumps({"text": text}) for text in DOCUMENTS]
    (directory / "documents.jsonl").write_text("\n".join([*lines, "", ""]))
    script = Path(__file__).with_name("data_formats.py")
    result = subprocess.run(
        [str(trainer.python), str(script), str(directory)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return directory


def prepare(trainer: Trainer, output: Path, *args: object) -> Mapping[str, Any]:
    """Prepare data and return the manifest."""
    outcome = trainer.run("prepare_data.py", "--output", output, *SHARES, *args)
    assert outcome.status == 0, outcome.stderr
    assert [path.name for path in output.parent.glob(".*")] == []
    found: Mapping[str, Any] = json.loads((output / "manifest.json").read_text())
    return found


def test_a_snapshot_of_parquet_files_and_gpt2s_files(trainer: Trainer, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = prepare(trainer, out, "--input", inputs / "snapshot", "--tokenizer", inputs / "gpt2")
    assert sum(split["documents"] for split in found["splits"].values()) == 100
    check = """
import sys
from tokenizers import ByteLevelBPETokenizer
from megatron.core.datasets.indexed_dataset import IndexedDataset
out, inputs = sys.argv[1:]
original = ByteLevelBPETokenizer(f"{inputs}/gpt2/vocab.json", f"{inputs}/gpt2/merges.txt")
end = original.token_to_id("<|endoftext|>")
texts = []
for split in ("train", "valid", "test"):
    for ids in IndexedDataset(f"{out}/{split}_text_document"):
        assert ids[-1] == end and end not in ids[:-1]  # the text's own <|endoftext|> ends nothing
        text = original.decode(ids[:-1].tolist())
        texts.append(text)
print(repr(sorted(texts)))
"""
    result = subprocess.run(
        [str(trainer.python), "-c", check, str(out), str(inputs)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == repr(sorted(DOCUMENTS))
    assert found["tokens"] == sum(split["tokens"] for split in found["splits"].values())
    assert found["vocab_size"] == len(json.loads((inputs / "gpt2" / "vocab.json").read_text()))
    # The tokenizer converted from GPT-2's files is a Hugging Face tokenizer, which gives the same data.
    again = prepare(
        trainer, tmp_path / "again", "--input", inputs / "snapshot", "--tokenizer", out / "tokenizer"
    )
    assert again["sha256"] == found["sha256"]


@pytest.mark.parametrize(("kind", "source"), [("unigram", "saved"), ("bpe", "documents.jsonl")])
def test_sentencepiece_models_keep_their_ids(
    kind: str, source: str, trainer: Trainer, inputs: Path, tmp_path: Path
) -> None:
    model = inputs / f"{kind}.model"
    out = tmp_path / "out"
    found = prepare(trainer, out, "--input", inputs / source, "--tokenizer", model)
    assert found["vocab_size"] == 120
    check = """
import sys
import sentencepiece
from megatron.core.datasets.indexed_dataset import IndexedDataset
out, model = sys.argv[1:]
original = sentencepiece.SentencePieceProcessor(model_file=model)
count = 0
for split in ("train", "valid", "test"):
    for ids in IndexedDataset(f"{out}/{split}_text_document"):
        *text, end = ids.tolist()
        assert end == original.eos_id()
        # Normalised text, encoded again by the original, is the same document.
        assert original.encode(original.decode(text)) == text
        count += 1
print(count)
"""
    result = subprocess.run(
        [str(trainer.python), "-c", check, str(out), str(model)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "100"


def test_the_same_arguments_give_the_same_bytes_for_any_processes_and_interruptions(
    trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    args = ("prepare_data.py", "--output", tmp_path / "out", *SMALL_DATA, "--piece-size", 100000)
    killed = trainer.start(*map(str, args))
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob(".out.*/piece-*.json")):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        killed.kill()
        killed.communicate()
    assert not (tmp_path / "out").exists()
    copied = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-other"))
    outcome = trainer.run(*args, "--workers", 2)
    assert outcome.status == 0, outcome.stderr
    assert "pieces were done before" in outcome.stdout
    ours = json.loads((tmp_path / "out" / "manifest.json").read_text())
    whole = json.loads((data.directory / "manifest.json").read_text())
    assert ours == whole
    assert "train_text_document.bin" in whole["sha256"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # pieces of another size have other documents
    outcome = trainer.run("prepare_data.py", "--output", copied / "out", *SMALL_DATA, "--piece-size", 300000)
    assert outcome.status == 0, outcome.stderr
    assert json.loads((copied / "out" / "manifest.json").read_text()) == whole


def test_wrong_inputs_are_named(trainer: Trainer, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for args, message in (
        (("--input", inputs / "snapshot", "--json-key", "body"), "has no column 'body'; it has text, number"),
        (("--input", tmp_path / "in"), "is not a saved data set and holds no .parquet or .jsonl file"),
        (("--input", inputs / "saved", "--tokenizer", tmp_path / "in"), "or a SentencePiece .model file"),
    ):
        outcome = trainer.run("prepare_data.py", "--output", tmp_path / "out", *args)
        assert outcome.status == 2
        assert message in outcome.stderr
        assert "\n" not in outcome.stderr.strip()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), max_size=30), st.integers(1, 200), st.booleans())
def test_any_division_reads_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    lines = [json.dumps({"text": text}) for text in texts]
    path.write_text("\n".join(lines) + ("\n" if ends else ""), encoding="utf-8")
    source = corpus.Source(path, "x")
    whole = [(f"x:{number}", text) for number, text in enumerate(texts, start=1) if text.strip()]
    units = tokenized_pieces.divide([source], size)
    assert [document for [piece] in units for document in corpus.read_documents(piece, "text")] == whole
