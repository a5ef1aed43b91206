#!/usr/bin/env python3
"""Write a vocabulary of word pieces and documents of its sentences as BERT and T5 read them: word_pieces.py FOLDER."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "Megatron-LM"))

import numpy as np
import torch
from megatron_core_trainer import cpu_device

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS, DOCUMENTS, SENTENCES = 95, 60, 12

if __name__ == "__main__":
    cpu_device.install()
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    folder, draw = Path(sys.argv[1]), random.Random(1)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"w{word}" for word in range(WORDS))]) + "\n")
    builder = IndexedDatasetBuilder(str(folder / "text.bin"), dtype=np.int32)
    first = len(SPECIAL)
    for _ in range(DOCUMENTS):
        sentences = [
            draw.choices(range(first, first + WORDS), k=draw.randrange(8, 20)) for _ in range(SENTENCES)
        ]
        words = [word for sentence in sentences for word in sentence]
        builder.add_document(torch.tensor(words), [len(sentence) for sentence in sentences])
    builder.finalize(str(folder / "text.idx"))
