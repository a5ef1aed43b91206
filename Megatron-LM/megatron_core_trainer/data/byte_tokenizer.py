"""Tokenizers that need no download: one token per byte, or byte-pair encoding trained on the training split.

Both are written as ``tokenizer.json`` and ``tokenizer_config.json``, which transformers' ``AutoTokenizer`` loads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
BYTE_VOCAB_SIZE = 257


def byte_characters() -> list[str]:
    """Return the printable character for each byte in a byte-level vocabulary.

    Printable Latin-1 stands for itself, the other bytes for U+0100 onwards (Radford et al. 2019, GPT-2's
    ``bytes_to_unicode``).
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_byte_tokenizer(directory: Path) -> None:
    """Write the tokenizer whose token ids are the bytes of the UTF-8 text, with 256 for the end of a document.

    :param directory: output folder; created if it does not exist.
    """
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    vocabulary[END_OF_TEXT] = 256
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    write_tokenizer(directory, json.dumps(tokenizer, ensure_ascii=False), END_OF_TEXT)


def encode_bytes(text: str) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return the token ids of a text for the byte tokenizer, without loading it.

    :param text: the text.
    """
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint16)


def train_byte_pairs(texts: Iterable[str], vocab_size: int, directory: Path) -> None:
    """Train a byte-level BPE vocabulary and write it.

    :param texts: texts of the training split.
    :param vocab_size: number of tokens, including the end-of-document token.
    :param directory: output folder; created if it does not exist.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    write_tokenizer(directory, tokenizer.to_str(), END_OF_TEXT)


def write_tokenizer(directory: Path, tokenizer: str, end: str) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    :param directory: output folder; created if it does not exist.
    :param tokenizer: content of ``tokenizer.json``.
    :param end: the token that ends a document.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "bos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": 1_000_000_000,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
