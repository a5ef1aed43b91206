"""``airflow-megatron log``: show the contents of training logs as records."""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections import deque
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    ErrorRecord,
    IterationRecord,
    LogParser,
    MarkerKind,
    MarkerRecord,
    MemoryRecord,
    ParameterCount,
    Record,
    ValidationRecord,
    merge_iterations,
)
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader

CHUNK_BYTES = 1 << 17

_CONTROL = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Control characters that JSON does not escape but a terminal interprets."""

_EXITS = frozenset(
    {
        MarkerKind.TRAINING_DONE,
        MarkerKind.EXITING_SIGNAL,
        MarkerKind.EXITING_DURATION,
        MarkerKind.EXITING_INTERVAL,
        MarkerKind.EXITING_MISSING_CHECKPOINT,
    }
)
_TYPES: dict[type[Any], str] = {
    IterationRecord: "iteration",
    ValidationRecord: "validation",
    MarkerRecord: "marker",
    CheckpointRecord: "checkpoint",
    MemoryRecord: "memory",
    ParameterCount: "parameters",
    ErrorRecord: "error",
}


_MOST_ROWS = 20
_SIZES = ("allocated", "max_allocated", "reserved", "max_reserved")


class LogFormat(StrEnum):
    """Output format of a log."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def log(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Logs of one run, oldest first; - for standard input")
    ],
    output: Annotated[
        LogFormat,
        typer.Option("--format", help="json: one object; jsonl: one line per record, in the log's order"),
    ] = LogFormat.TABLE,
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Show each iteration once, without those that a restart repeated"),
    ] = False,
) -> None:
    """Show the records of training logs: iterations, validation, memory, throughput, markers, checkpoints, exits."""
    try:
        unread: list[int] = []
        records = _read(files, unread)
        if output is LogFormat.JSONL:
            for record in _merged(records) if merged else records:
                print(_dump(record_object(record)))
            return
        content = log_object(list(records), merged=merged, unread_lines=sum(unread))
    except OSError as error:
        if error.filename is None:  # it is the output's
            raise
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    if output is LogFormat.JSON:
        print(_dump(content, indent=1))
    else:
        _print_table(content)


def record_object(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record: its ``type`` and its fields.

    An iteration also has ``loss`` and ``is_nan``, and ``unread`` if fields of its line could not be parsed.
    Numbers that JSON cannot represent are null.
    """
    fields = {name: _plain(value) for name, value in zip(record._fields, record, strict=True)}
    if not fields.get("unread"):
        fields.pop("unread", None)
    if isinstance(record, IterationRecord | ValidationRecord):
        fields["loss"] = _plain(record.loss)
    if isinstance(record, IterationRecord):
        fields["is_nan"] = record.is_nan
    return {"type": _TYPES[type(record)], **fields}


def log_object(records: Sequence[Record], *, merged: bool = False, unread_lines: int = 0) -> dict[str, Any]:
    """Return the records of the logs of one run by kind, in the order of the log.

    :param records: of all attempts, oldest first.
    :param merged: keep only one record of each iteration that was repeated after a resume.
    :param unread_lines: number of iteration lines that could not be parsed completely.
    :returns: ``iterations``, ``validation``, ``memory``, ``parameters``, ``markers``, ``checkpoints``, ``exits``,
        ``errors``, ``resumes`` (iterations at which an attempt resumed), ``throughput`` (median TFLOP/s per GPU),
        ``unread_lines``
    """
    kinds: dict[str, list[dict[str, Any]]] = {name: [] for name in _TYPES.values()}
    exits, resumes, speeds = [], [], []
    chosen: list[Record] = [record for record in records if not isinstance(record, IterationRecord)]
    chosen += merge_iterations(records) if merged else [r for r in records if isinstance(r, IterationRecord)]
    for record in chosen:
        made = record_object(record)
        kinds[made.pop("type")].append(made)
        if isinstance(record, MarkerRecord) and record.kind in _EXITS:
            exits.append(made)
        elif isinstance(record, CheckpointRecord) and record.event in _STARTS:
            resumes.append(
                {"iteration": record.iteration or 0, "event": str(record.event), "path": record.path}
            )
        elif isinstance(record, IterationRecord) and record.throughput and math.isfinite(record.throughput):
            speeds.append(record.throughput)
    return {
        "iterations": kinds["iteration"],
        "validation": kinds["validation"],
        "memory": kinds["memory"],
        "parameters": kinds["parameters"],
        "markers": kinds["marker"],
        "checkpoints": kinds["checkpoint"],
        "exits": exits,
        "errors": kinds["error"],
        "resumes": resumes,
        "throughput": statistics.median(speeds) if speeds else None,
        "unread_lines": unread_lines,
    }


_STARTS = frozenset({CheckpointEvent.LOADED, CheckpointEvent.RANDOM_START})


def _read(files: Sequence[str], unread: list[int]) -> Iterator[Record]:
    for name in files:
        # the log of an attempt starts on a new line
        parser = LogParser()
        if name == "-":
            # read available data from a pipe without waiting for a complete chunk
            pipe = cast("BufferedReader", sys.stdin.buffer)
            while chunk := pipe.read1(CHUNK_BYTES):
                yield from parser.feed(chunk)
        else:
            with Path(name).open("rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield from parser.feed(chunk)
        yield from parser.finish()
        unread.append(parser.unread_lines)


def _merged(records: Iterator[Record]) -> Iterator[Record]:
    kept = list(records)
    belonging = deque(merge_iterations(kept))
    for record in kept:
        if not isinstance(record, IterationRecord):
            yield record
        elif belonging and belonging[0] is record:
            yield belonging.popleft()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value


def _dump(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return text if text.isprintable() else _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _print_table(content: dict[str, Any]) -> None:
    lines = list(_table_lines(content))
    for line in lines:
        print(shown(line))
    if not lines:
        print("no line of a Megatron training in this log", file=sys.stderr)


def _table_lines(content: dict[str, Any]) -> Iterator[str]:
    iterations = content["iterations"]
    for row in content["parameters"]:
        where = f" (rank {', '.join(map(str, row['ranks']))})" if row["ranks"] else ""
        yield f"parameters, {row['scope']}{where}: {row['parameters']:,}"
    for row in content["markers"]:
        yield f"marker: {row['text']}" + (f" at {row['time']}" if row["time"] else "")
    for row in iterations[-_MOST_ROWS:]:
        loss = "NaN" if row["is_nan"] else "" if row["loss"] is None else f"{row['loss']:.4f}"
        speed = "" if row["elapsed_ms"] is None else f"{row['elapsed_ms']:.1f} ms"
        if row["throughput"] is not None:
            speed += f"  {row['throughput']:.1f} TFLOP/s/GPU"
        yield f"iteration {row['iteration']:>8}/{row['train_iters']}  loss {loss:>8}  {speed}".rstrip()
    if len(iterations) > _MOST_ROWS:
        yield f"(the last {_MOST_ROWS} of {len(iterations)} iteration lines)"
    if content["throughput"] is not None:
        yield f"throughput: {content['throughput']:.1f} TFLOP/s/GPU (median)"
    for row in content["memory"]:
        sizes = [f"{name.replace('_', ' ')} {row[name]:.0f}" for name in _SIZES if row[name] is not None]
        yield f"memory of rank {row['rank']} {row['when']} (MB): {', '.join(sizes)}"
    for row in content["checkpoints"][-_MOST_ROWS:]:
        iteration = "" if row["iteration"] is None else f" iteration {row['iteration']}"
        yield f"checkpoint: {row['event']}{iteration}" + (f": {row['path']}" if row["path"] else "")
    if len(content["checkpoints"]) > _MOST_ROWS:
        yield f"(the last {_MOST_ROWS} of {len(content['checkpoints'])} lines on checkpoints)"
    for row in content["validation"]:
        when = "the end" if row["iteration"] is None else f"iteration {row['iteration']}"
        final = " (final)" if row["final"] and row["iteration"] is not None else ""
        of = "" if row["dataset"] is None else f" of set {row['dataset']}"
        loss = "NaN" if row["loss"] is None else row["loss"]
        yield f"{row['split']} loss{of} at {when}{final}: {loss}"
    for row in content["exits"]:
        yield f"exit: {row['text']}"
    for row in content["errors"]:
        yield f"error: {row['exception'] or row['kind']}: {row['message']}"
    if content["unread_lines"]:
        yield f"{content['unread_lines']} iteration lines could not be parsed completely"
