"""Run inside the trainer's environment: write documents in several formats, and tokenizers of several kinds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import sentencepiece
from pyarrow import parquet
from tokenizers import ByteLevelBPETokenizer

directory = Path(sys.argv[1])
texts = [json.loads(line)["text"] for line in (directory / "documents.jsonl").open() if line.strip()]
(directory / "snapshot" / "data").mkdir(parents=True)
parquet.write_table(
    pa.table({"text": texts[:50], "number": list(range(50))}),
    directory / "snapshot" / "data" / "train-00000.parquet",
    row_group_size=15,
)
parquet.write_table(pa.table({"text": texts[50:]}), directory / "snapshot" / "data" / "train-00001.parquet")
halves = {"train": texts[:70], "test": texts[70:]}
datasets.DatasetDict(
    {name: datasets.Dataset.from_dict({"text": half}) for name, half in halves.items()}
).save_to_disk(directory / "saved")
gpt2 = ByteLevelBPETokenizer()
gpt2.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
(directory / "gpt2").mkdir()
gpt2.save_model(str(directory / "gpt2"))
for kind in ("unigram", "bpe"):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(directory / kind),
        vocab_size=120,
        model_type=kind,
        minloglevel=2,
    )
