"""The properties of a tokenizer that training needs: the number of tokens and the end-of-document token.

The files of a Hugging Face tokenizer are read directly, because importing the library takes two seconds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.arguments import ArgumentError, Tokenizer

if TYPE_CHECKING:
    import argparse

FILES = ("tokenizer.json", "tokenizer_config.json")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def load_tokenizer(args: argparse.Namespace) -> Tokenizer:
    """Return the properties of the tokenizer in the arguments.

    :param args: the run's arguments.
    :raises ArgumentError: if its files are missing or have no end-of-sequence token.
    """
    if args.tokenizer_type == "NullTokenizer":
        # Upstream's NullTokenizer adds an end-of-document token after the --vocab-size ordinary tokens.
        return Tokenizer("NullTokenizer", args.vocab_size + 1, args.vocab_size)
    return read_hugging_face_tokenizer(Path(args.tokenizer_model))


def tokenizer_directory(named: Path) -> Path:
    """Return the directory of a tokenizer: the given one, or the snapshot in Hugging Face's cache.

    Nothing is downloaded: compute nodes often have no internet access.

    :param named: a directory, or a name such as ``EleutherAI/gpt-neox-20b``.
    :raises ArgumentError: if the cache does not have it.
    """
    if named.is_dir() or not _HUB_NAME.fullmatch(str(named)):
        return named
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(str(named), file) for file in FILES]
    if not all(isinstance(path, str) for path in found):
        raise ArgumentError(
            f"the tokenizer {named} is not a directory, and Hugging Face's cache does not have it; run: "
            f"hf download {named} {' '.join(FILES)}"
        )
    return Path(str(found[0])).parent


def read_hugging_face_tokenizer(directory: Path) -> Tokenizer:
    """Return the properties of the tokenizer in ``tokenizer.json`` and ``tokenizer_config.json``.

    :param directory: folder of the two files.
    :raises ArgumentError: if they are missing or have no end-of-sequence token.
    """
    tokenizer = _read_json(directory / "tokenizer.json")
    config = _read_json(directory / "tokenizer_config.json")
    vocabulary = tokenizer["model"]["vocab"]
    ids = (
        dict(vocabulary)
        if isinstance(vocabulary, dict)
        else {item[0]: i for i, item in enumerate(vocabulary)}
    )
    ids.update({token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])})
    eos = config.get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    if eos not in ids:
        raise ArgumentError(f"{directory}/tokenizer_config.json names no eos_token of the vocabulary")
    return Tokenizer("HuggingFaceTokenizer", len(ids), ids[eos])


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--tokenizer-model must name a directory with tokenizer files: {error}"
        ) from error
