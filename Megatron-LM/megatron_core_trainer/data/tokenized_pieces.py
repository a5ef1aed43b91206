"""Tokenize a corpus piece by piece, with several processes, so that an interrupted preparation can continue.

The result of a piece is three files in a work directory. The last one, ``piece-N.json``, is written when the others are
complete; a piece that has it is not processed again. The order of the documents is determined when the pieces are
joined, and depends only on their names. Neither the number of processes nor an interruption changes the output.
"""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megatron_core_trainer import atomic_output
from megatron_core_trainer.data import byte_tokenizer, corpus, indexed_data
from megatron_core_trainer.data.corpus import SPLITS, CorpusError, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Task:
    """Settings that every worker needs.

    :param work: the work directory.
    :param tokenizer: directory of the tokenizer's files, or None for bytes.
    :param end: the token that ends a document.
    :param dtype: NumPy's name of the tokens' type.
    :param key: key of the text.
    :param seed: seed of the documents' order.
    :param valid_percent: share of the validation split.
    :param test_percent: share of the test split.
    :param lenient: whether files that are not text are skipped.
    """

    work: Path
    tokenizer: Path | None
    end: int
    dtype: str
    key: str
    seed: int
    valid_percent: int
    test_percent: int
    lenient: bool


_DOCUMENT = np.dtype([("key", "S64"), ("split", "u1"), ("tokens", "i8"), ("start", "i8")])


def divide(sources: Sequence[corpus.Source], size: int) -> list[list[Piece]]:
    """Divide sources into units of work; small files share one.

    :param sources: the input.
    :param size: approximate bytes of a unit.
    """
    units: list[list[Piece]] = []
    small: list[Piece] = []
    room = size
    for source in sources:
        length = source.path.stat().st_size
        if source.path.is_file() and source.path.suffix not in (".parquet", ".jsonl") and length < size:
            if length > room:
                units.append(small)
                small, room = [], size
            small.append(Piece(source))
            room -= length
        else:
            units += [[piece] for piece in corpus.pieces(source, size)]
    return [*units, small] if small else units


def tokenize(task: Task, units: Sequence[Sequence[Piece]], workers: int) -> int:
    """Tokenize the units that are not done yet; return the number that was done before.

    :param task: the settings.
    :param units: the units of work.
    :param workers: number of processes; 1: this one.
    :raises CorpusError: for invalid input.
    """
    missing = [
        (task, number, unit)
        for number, unit in enumerate(units)
        if not (task.work / f"piece-{number}.json").is_file()
    ]
    if workers == 1 or len(missing) < 2:
        for job in missing:
            _tokenize_unit(job)
    else:
        # Not forked: the parent may have threads of pyarrow or of the tokenizer.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for _ in pool.map(_tokenize_unit, missing):
                pass
    return len(units) - len(missing)


def encoder(tokenizer: Path | None) -> Callable[[str], Any]:
    """Return the function that encodes a text.

    :param tokenizer: directory of the tokenizer's files, or None for bytes.
    """
    if tokenizer is None:
        return byte_tokenizer.encode_bytes
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    loaded.encode_special_tokens = True  # text that looks like a special token is ordinary text
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


def _tokenize_unit(job: tuple[Task, int, Sequence[Piece]]) -> None:
    task, number, unit = job
    encode = encoder(task.tokenizer)
    rows: list[tuple[bytes, int, int, int]] = []
    texts: list[str] = []
    start = 0
    base = task.work / f"piece-{number}"
    with base.with_suffix(".bin").open("wb") as tokens_file:
        for piece in unit:
            try:
                for name, text in corpus.read_documents(piece, task.key):
                    split = corpus.split_of(name, task.valid_percent, task.test_percent)
                    ids = np.asarray([*encode(text), task.end], dtype=task.dtype)
                    tokens_file.write(ids.tobytes())
                    key = corpus.order_key(name, task.seed).hex().encode()
                    rows.append((key, SPLITS.index(split), len(ids), start))
                    start += len(ids)
                    if split == "test":
                        texts.append(json.dumps([key.decode(), name, text]))
            except CorpusError:
                if not task.lenient:
                    raise
    np.save(base.with_suffix(".npy"), np.array(rows, dtype=_DOCUMENT))
    base.with_suffix(".texts").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    atomic_output.write_json(base.with_suffix(".json"), {"documents": len(rows), "tokens": start})


@dataclass(frozen=True)
class Tokenized:
    """The tokenized pieces of a corpus.

    :param task: the settings.
    :param count: number of pieces.
    """

    task: Task
    count: int

    def write_split(self, split: str, prefix: Path, limit: int | None) -> dict[str, int]:
        """Write a split as Megatron's indexed data, in the order of the documents.

        :param split: its name.
        :param prefix: path of the two files, without their extension.
        :param limit: maximum number of tokens; the last document is truncated.
        """
        dtype = np.dtype(self.task.dtype)
        tables = [np.load(self.task.work / f"piece-{number}.npy") for number in range(self.count)]
        chosen = [table[table["split"] == SPLITS.index(split)] for table in tables]
        sources = np.repeat(np.arange(self.count), [len(table) for table in chosen])
        rows = np.concatenate(chosen) if chosen else np.array([], dtype=_DOCUMENT)
        order = np.argsort(rows["key"], kind="stable")
        data = [
            np.memmap(self.task.work / f"piece-{number}.bin", dtype=dtype, mode="r") if len(table) else None
            for number, table in enumerate(tables)
        ]
        lengths: list[int] = []
        tokens = 0
        with prefix.with_name(f"{prefix.name}.bin").open("wb") as file:
            for index in order:
                if limit is not None and tokens >= limit:
                    break
                row = rows[index]
                length = int(row["tokens"]) if limit is None else min(int(row["tokens"]), limit - tokens)
                file.write(data[sources[index]][row["start"] : row["start"] + length].tobytes())
                lengths.append(length)
                tokens += length
        indexed_data.write_index(prefix.with_name(f"{prefix.name}.idx"), lengths, dtype)
        return {"documents": len(lengths), "tokens": tokens}

    def test_documents(self, limit: int) -> list[tuple[str, str]]:
        """Return the first documents of the test split as pairs of name and text, in the order of the documents.

        :param limit: maximum number of documents.
        """
        found: list[tuple[str, str, str]] = []
        for number in range(self.count):
            with (self.task.work / f"piece-{number}.texts").open(encoding="utf-8") as file:
                found += [tuple(json.loads(line)) for line in file]
            found = sorted(found)[:limit]
        return [(name, text) for _, name, text in found]
