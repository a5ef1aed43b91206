"""Evaluation tasks made from the test split, as lm-evaluation-harness task files.

``heldout``: perplexity per byte of pieces of held-out documents. ``next_line``: choose the next line of a document from
four; the three wrong ones are other lines of the same split. Data paths in the task files are relative to their folder.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Document = tuple[str, str]

_HELDOUT = """\
task: heldout
dataset_path: json
dataset_kwargs:
  data_files:
    test: heldout.jsonl
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: byte_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
  - metric: bits_per_byte
    aggregation: bits_per_byte
    higher_is_better: false
metadata:
  version: 1.0
"""

_NEXT_LINE = """\
task: next_line
dataset_path: json
dataset_kwargs:
  data_files:
    test: next_line.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


def heldout_pieces(documents: Sequence[Document], count: int, size: int) -> list[dict[str, str]]:
    """Return the beginning of documents, cut at a line end.

    :param documents: the test split.
    :param count: maximum number of pieces.
    :param size: maximum number of characters of a piece.
    """
    pieces = []
    for name, text in documents[:count]:
        piece = text[:size]
        if len(text) > size and "\n" in piece:
            piece = piece[: piece.rindex("\n") + 1]
        pieces.append({"document": name, "text": piece})
    return pieces


def next_line_questions(
    documents: Sequence[Document], count: int, context_size: int, seed: int
) -> list[dict[str, object]]:
    """Return questions that ask which of four lines follows some lines of a document.

    :param documents: the test split.
    :param count: maximum number of questions; the documents are visited in turn.
    :param context_size: maximum characters of context, in whole lines.
    :param seed: seed of the choice of questions.
    """
    rng = random.Random(seed)
    lines = {name: text.splitlines(keepends=True) for name, text in documents}
    places = {name: [i for i in range(2, len(body)) if _is_telling(body[i])] for name, body in lines.items()}
    names = [name for name, found in places.items() if found]
    pool = sorted({lines[name][i] for name in names for i in places[name]})
    if len(pool) < 4:
        return []
    for name in names:
        rng.shuffle(places[name])
    questions: list[dict[str, object]] = []
    while names and len(questions) < count:
        for name in list(names):
            if len(questions) == count:
                break
            if not places[name]:
                names.remove(name)
                continue
            at = places[name].pop()
            context = _context(lines[name], at, context_size)
            if not context.strip():
                continue  # the harness moves trailing blanks to the choice, which would leave no context
            right = lines[name][at]
            wrong = rng.sample([line for line in rng.sample(pool, min(len(pool), 8)) if line != right], 3)
            choices = [right, *wrong]
            rng.shuffle(choices)
            questions.append(
                {
                    "document": name,
                    "line": at + 1,
                    "context": context,
                    "choices": choices,
                    "answer": choices.index(right),
                }
            )
    return questions


def write_tasks(
    directory: Path,
    documents: Sequence[Document],
    *,
    pieces: int,
    piece_size: int,
    questions: int,
    context: int,
    seed: int,
) -> dict[str, int]:
    """Write both tasks and their data; return how many items each has.

    :param directory: output folder; created if it does not exist.
    :param documents: the test split.
    :param pieces: maximum number of held-out pieces.
    :param piece_size: maximum characters of a piece.
    :param questions: maximum number of questions.
    :param context: maximum characters of context of a question.
    :param seed: seed of the questions.
    """
    directory.mkdir(parents=True, exist_ok=True)
    items: dict[str, Sequence[object]] = {
        "heldout": heldout_pieces(documents, pieces, piece_size),
        "next_line": next_line_questions(documents, questions, context, seed),
    }
    for name, text in (("heldout", _HELDOUT), ("next_line", _NEXT_LINE)):
        if not items[name]:
            continue
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
        with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for item in items[name]:
                file.write(json.dumps(item, ensure_ascii=False) + "\n")
    return {name: len(found) for name, found in items.items()}


def _is_telling(line: str) -> bool:
    return len(line.strip()) >= 8 and len(line) <= 60


def _context(lines: Sequence[str], at: int, size: int) -> str:
    start, length = at, 0
    while start > 0 and length + len(lines[start - 1]) <= size:
        start -= 1
        length += len(lines[start])
    return "".join(lines[start:at]) or lines[at - 1][-size:]
