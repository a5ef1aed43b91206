#!/usr/bin/env python3
"""Convert text to Megatron's indexed data, a tokenizer, and evaluation tasks.

Without --input the text is the source code of Python's standard library, which every machine has. OUTPUT contains
{train,valid,test}_text_document.{bin,idx}, {train,valid,test}_tokens (only the number of tokens), tokenizer/,
evaluation/ and manifest.json. OUTPUT is created atomically. A second run with the same arguments does nothing if OUTPUT
exists, and otherwise continues an interrupted run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import sys
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer import atomic_output
from megatron_core_trainer.data import byte_tokenizer, corpus, tokenized_pieces, tokenizer_files
from megatron_core_trainer.data.corpus import SPLITS, CorpusError
from megatron_core_trainer.evaluation import evaluation_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FORMAT = 3
_WITHOUT_EFFECT = ("output", "workers", "piece_size")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="output directory")
    add(
        "--input",
        nargs="+",
        help=".txt, .jsonl or .parquet files, or directories of data sets; default: Python's standard library",
    )
    add("--json-key", default="text", help="key of the text, or its column (default: %(default)s)")
    add(
        "--tokenizer",
        default="byte",
        help="byte (257 tokens), bpe (learned from the training split), a directory with tokenizer.json or with GPT-2's"
        " vocab.json and merges.txt, or a SentencePiece .model file",
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
        help="seed of the order of documents and of the questions (default: %(default)s)",
    )
    add(
        "--heldout-pieces",
        type=int,
        default=40,
        help="number of documents of the perplexity task (default: %(default)s)",
    )
    add("--heldout-size", type=int, default=2000, help="maximum characters of each (default: %(default)s)")
    add(
        "--questions",
        type=int,
        default=200,
        help="number of questions of the multiple-choice task (default: %(default)s)",
    )
    add(
        "--question-context", type=int, default=60, help="characters before the choice (default: %(default)s)"
    )
    add(
        "--task-documents",
        type=int,
        default=20_000,
        help="maximum number of documents for the tasks (default: %(default)s)",
    )
    add(
        "--workers",
        type=int,
        default=1,
        help="number of processes; does not change the output (default: %(default)s)",
    )
    add("--piece-size", type=int, default=32_000_000, help="approximate bytes of text in a piece of work")
    return parser


def main(argv: Sequence[str]) -> int:
    """Prepare the data and return the exit status.

    :param argv: the arguments, without the program's name.
    """
    args = build_parser().parse_args(argv)
    try:
        prepare(args)
    except (CorpusError, OSError, BrokenProcessPool) as error:
        print(f"prepare_data.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(args: argparse.Namespace) -> None:
    """Write the data unless it exists already.

    :param args: parsed arguments.
    :raises CorpusError: for invalid input, or an output directory with other content.
    """
    sources = corpus.own_files(args.input) if args.input else corpus.standard_library()
    wanted = corpus.fingerprint(sources, _influences(args))
    if _is_prepared(args.output, wanted):
        print(f"{args.output} is prepared already")
        return
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with _work_directory(args.output.parent / f".{args.output.name}.{wanted[:16]}") as work:
        if _is_prepared(args.output, wanted):
            print(f"{args.output} is prepared already")
            return
        directory = work / "output"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        _discard_other_pieces(work, args.piece_size)
        manifest = _write(args, sources, directory, work)
        manifest["fingerprint"] = wanted
        atomic_output.write_json(directory / "manifest.json", manifest)
        directory.rename(args.output)
    for split in SPLITS:
        counts = manifest["splits"][split]
        print(f"{split}: {counts['tokens']} tokens in {counts['documents']} documents")
    print(f"tokenizer: {manifest['vocab_size']} tokens; tasks: {manifest['tasks']}")
    print(f"wrote {args.output}")


def _influences(args: argparse.Namespace) -> dict[str, object]:
    values = {name: value for name, value in vars(args).items() if name not in _WITHOUT_EFFECT}
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


@contextlib.contextmanager
def _work_directory(path: Path) -> Iterator[Path]:
    """Yield the directory of the pieces to one process at a time; delete it after success or invalid input.

    It is kept if the process is killed or a disk is full, so that the next run continues.
    """
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield path
        except CorpusError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _discard_other_pieces(work: Path, size: int) -> None:
    """Delete the pieces of an interrupted run with another ``--piece-size``, which have other documents."""
    kept = work / "piece-size"
    if kept.is_file() and kept.read_text(encoding="ascii") == str(size):
        return
    for piece in work.glob("piece-[0-9]*"):
        piece.unlink()
    kept.write_text(str(size), encoding="ascii")


def _write(
    args: argparse.Namespace, sources: Sequence[corpus.Source], directory: Path, work: Path
) -> dict[str, Any]:
    lenient = (
        not args.input
    )  # files of the user must be valid text; the standard library has a few in other encodings
    units = tokenized_pieces.divide(sources, args.piece_size)
    vocab_size, end = _tokenizer(args, units, directory / "tokenizer", lenient=lenient)
    task = tokenized_pieces.Task(
        work=work,
        tokenizer=None if args.tokenizer == "byte" else directory / "tokenizer",
        end=end,
        # Megatron's rule (DType.optimal_dtype): two bytes if they suffice.
        dtype="uint16" if vocab_size < 65500 else "int32",
        key=args.json_key,
        seed=args.seed,
        valid_percent=args.valid_percent,
        test_percent=args.test_percent,
        lenient=lenient,
    )
    before = tokenized_pieces.tokenize(task, units, args.workers)
    if before:
        print(f"{before} of {len(units)} pieces were done before")
    warnings.filterwarnings("ignore", category=UserWarning)
    tokenized = tokenized_pieces.Tokenized(task, len(units))
    limits = {"train": args.train_tokens, "valid": args.valid_tokens, "test": args.test_tokens}
    splits = {}
    for split in SPLITS:
        splits[split] = tokenized.write_split(split, directory / f"{split}_text_document", limits[split])
        if not splits[split]["documents"]:
            raise CorpusError(
                f"the {split} split has no document; give more or smaller inputs, or other shares"
            )
        (directory / f"{split}_tokens").write_text(f"{splits[split]['tokens']}\n", encoding="ascii")
    tasks = evaluation_tasks.write_tasks(
        directory / "evaluation",
        tokenized.test_documents(args.task_documents),
        pieces=args.heldout_pieces,
        piece_size=args.heldout_size,
        questions=args.questions,
        context=args.question_context,
        seed=args.seed,
    )
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        "splits": splits,
        "tokens": sum(counts["tokens"] for counts in splits.values()),
        "vocab_size": vocab_size,
        "tasks": tasks,
        "arguments": {name: str(value) for name, value in vars(args).items() if name not in _WITHOUT_EFFECT},
        "sizes": {path.relative_to(directory).as_posix(): path.stat().st_size for path in files},
        "sha256": {path.relative_to(directory).as_posix(): _sha256(path) for path in files},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer(
    args: argparse.Namespace, units: Sequence[Sequence[corpus.Piece]], directory: Path, *, lenient: bool
) -> tuple[int, int]:
    """Write the tokenizer; return the number of tokens and the end-of-document token."""
    if args.tokenizer == "byte":
        byte_tokenizer.write_byte_tokenizer(directory)
        return byte_tokenizer.BYTE_VOCAB_SIZE, byte_tokenizer.BYTE_VOCAB_SIZE - 1
    source = Path(args.tokenizer)
    if args.tokenizer == "bpe":
        byte_tokenizer.train_byte_pairs(
            _train_texts(args, units, lenient=lenient), args.vocab_size, directory
        )
    else:
        tokenizer_files.import_tokenizer(source, directory)
    if source.suffix == ".model":
        texts = itertools.islice(_train_texts(args, units, lenient=lenient), 200)
        tokenizer_files.check_sentencepiece(source, directory, texts)
    from megatron_core_trainer.arguments import ArgumentError
    from megatron_core_trainer.data.tokenizer import read_hugging_face_tokenizer

    try:
        description = read_hugging_face_tokenizer(directory)
    except ArgumentError as error:
        raise CorpusError(str(error)) from error
    return description.vocab_size, description.eod


def _train_texts(
    args: argparse.Namespace, units: Sequence[Sequence[corpus.Piece]], *, lenient: bool
) -> Iterator[str]:
    for piece in itertools.chain.from_iterable(units):
        try:
            for name, text in corpus.read_documents(piece, args.json_key):
                if corpus.split_of(name, args.valid_percent, args.test_percent) == "train":
                    yield text
        except CorpusError:
            if not lenient:
                raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
