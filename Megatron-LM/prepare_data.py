#!/usr/bin/env python3
"""Turn text into Megatron's indexed data, a tokenizer, and evaluation tasks.

Without --input the text is the Python standard library's sources, which every machine has. OUTPUT then holds
{train,valid,test}_text_document.{bin,idx}, tokenizer/, evaluation/ and manifest.json. OUTPUT appears complete or not at
all; a second run with the same arguments sees that and does nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer import atomic_output, byte_tokenizer, corpus, evaluation_tasks
from megatron_core_trainer.corpus import SPLITS, CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMAT = 1


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="directory to make")
    add("--input", nargs="+", help="text files, or .jsonl files; default: the standard library's sources")
    add("--json-key", default="text", help="key of the text in .jsonl lines (default: %(default)s)")
    add(
        "--tokenizer",
        default="byte",
        help="byte (257 tokens), bpe (learned from the training split), or a Hugging Face tokenizer's directory",
    )
    add("--vocab-size", type=int, default=4096, help="tokens of --tokenizer bpe (default: %(default)s)")
    add("--train-tokens", type=int, help="limit of the training split; default: no limit")
    add("--valid-tokens", type=int, help="limit of the validation split")
    add("--test-tokens", type=int, help="limit of the test split")
    add("--valid-percent", type=int, default=5, help="share of documents (default: %(default)s)")
    add("--test-percent", type=int, default=5, help="share of documents (default: %(default)s)")
    add(
        "--seed",
        type=int,
        default=1234,
        help="of the documents' order and the questions (default: %(default)s)",
    )
    add(
        "--heldout-pieces",
        type=int,
        default=40,
        help="documents of the perplexity task (default: %(default)s)",
    )
    add("--heldout-size", type=int, default=2000, help="characters of each at most (default: %(default)s)")
    add(
        "--questions",
        type=int,
        default=200,
        help="questions of the multiple-choice task (default: %(default)s)",
    )
    add(
        "--question-context", type=int, default=60, help="characters before the choice (default: %(default)s)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Prepare the data and return the exit status.

    :param argv: the arguments, without the program's name.
    """
    args = build_parser().parse_args(argv)
    try:
        prepare(args)
    except (CorpusError, OSError) as error:
        print(f"prepare_data.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(args: argparse.Namespace) -> None:
    """Write the data unless it is there already.

    :param args: parsed arguments.
    :raises CorpusError: for input that cannot be used, or an output directory that holds something else.
    """
    sources = corpus.own_files(args.input) if args.input else corpus.standard_library()
    wanted = corpus.fingerprint(sources, _influences(args))
    if _is_prepared(args.output, wanted):
        print(f"{args.output} is prepared already")
        return
    with atomic_output.new_directory(args.output) as directory:
        manifest = _write(args, sources, directory)
        manifest["fingerprint"] = wanted
        atomic_output.write_json(directory / "manifest.json", manifest)
    for split in SPLITS:
        counts = manifest["splits"][split]
        print(f"{split}: {counts['tokens']} tokens in {counts['documents']} documents")
    print(f"tokenizer: {manifest['vocab_size']} tokens; tasks: {manifest['tasks']}")
    print(f"wrote {args.output}")


def _influences(args: argparse.Namespace) -> dict[str, object]:
    values = {name: value for name, value in vars(args).items() if name != "output"}
    return {**values, "format": _FORMAT, "python": list(sys.version_info[:3])}


def _is_prepared(output: Path, wanted: str) -> bool:
    if not output.is_dir() or not any(output.iterdir()):
        return False
    try:
        manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
        same = manifest["fingerprint"] == wanted
        whole = all((output / name).stat().st_size == size for name, size in manifest["sizes"].items())
    except (OSError, ValueError, KeyError):
        same = whole = False
    if not (same and whole):
        raise CorpusError(
            f"{output} exists and was not prepared from these arguments and inputs;"
            " give another --output, or remove it"
        )
    return True


def _write(args: argparse.Namespace, sources: Sequence[corpus.Source], directory: Path) -> dict[str, Any]:
    documents: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for source in sources:
        try:
            for name, text in corpus.read_documents(source, args.json_key):
                documents[corpus.split_of(name, args.valid_percent, args.test_percent)].append((name, text))
        except CorpusError:
            if args.input:
                raise  # a person's own file must be right; the standard library has a few files in other encodings
    documents = {split: corpus.shuffled(found, args.seed) for split, found in documents.items()}
    encode, vocab_size, end = _tokenizer(args, documents["train"], directory / "tokenizer")
    limits = {"train": args.train_tokens, "valid": args.valid_tokens, "test": args.test_tokens}
    splits = {}
    for split in SPLITS:
        splits[split] = _write_split(
            directory / f"{split}_text_document", documents[split], encode, end, vocab_size, limits[split]
        )
        if not splits[split]["documents"]:
            raise CorpusError(
                f"the {split} split has no document; give more or smaller inputs, or other shares"
            )
    tasks = evaluation_tasks.write_tasks(
        directory / "evaluation",
        documents["test"],
        pieces=args.heldout_pieces,
        piece_size=args.heldout_size,
        questions=args.questions,
        context=args.question_context,
        seed=args.seed,
    )
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        "splits": splits,
        "vocab_size": vocab_size,
        "tasks": tasks,
        "arguments": {name: str(value) for name, value in vars(args).items() if name != "output"},
        "sizes": {path.relative_to(directory).as_posix(): path.stat().st_size for path in files},
        "sha256": {
            path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }


def _tokenizer(
    args: argparse.Namespace, train: Sequence[tuple[str, str]], directory: Path
) -> tuple[Callable[[str], Any], int, int]:
    """Write the tokenizer; return how to encode, the number of tokens and the end-of-document token."""
    if args.tokenizer == "byte":
        byte_tokenizer.write_byte_tokenizer(directory)
        return byte_tokenizer.encode_bytes, byte_tokenizer.BYTE_VOCAB_SIZE, byte_tokenizer.BYTE_VOCAB_SIZE - 1
    from tokenizers import Tokenizer

    if args.tokenizer == "bpe":
        byte_tokenizer.train_byte_pairs((text for _, text in train), args.vocab_size, directory)
    else:
        _copy_tokenizer(Path(args.tokenizer), directory)
    from megatron_core_trainer.arguments import ArgumentError
    from megatron_core_trainer.tokenizer import read_hugging_face_tokenizer

    try:
        description = read_hugging_face_tokenizer(directory)
    except ArgumentError as error:
        raise CorpusError(str(error)) from error
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        description.vocab_size,
        description.eod,
    )


def _copy_tokenizer(source: Path, directory: Path) -> None:
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (source / name).is_file():
            raise CorpusError(f"--tokenizer must be byte, bpe or a directory with {name}; {source} is not")
        (directory / name).write_bytes((source / name).read_bytes())


def _write_split(
    prefix: Path,
    documents: Sequence[tuple[str, str]],
    encode: Callable[[str], Any],
    end: int,
    vocab_size: int,
    limit: int | None,
) -> dict[str, int]:
    import numpy as np
    import torch

    warnings.filterwarnings("ignore", category=UserWarning)
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    dtype = DType.optimal_dtype(vocab_size)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    written = tokens = 0
    for _, text in documents:
        if limit is not None and tokens >= limit:
            break
        ids = np.append(np.asarray(encode(text), dtype=dtype), np.asarray([end], dtype=dtype))
        if limit is not None:
            ids = ids[: limit - tokens]
        builder.add_document(torch.from_numpy(ids.astype(np.int64)), [len(ids)])
        written += 1
        tokens += len(ids)
    builder.finalize(f"{prefix}.idx")
    return {"documents": written, "tokens": tokens}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
