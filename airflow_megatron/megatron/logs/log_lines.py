"""Streaming parser of the lines that Megatron writes to its log.

It understands Megatron-LM ``core_v0.5.0`` to the 0.20 development branch (``megatron/training/training.py``,
``checkpointing.py``, ``utils.py``, ``theoretical_memory_usage.py``) and Megatron-DeepSpeed. A log consists of bytes.
It may contain text of several processes, incomplete and merged lines, prefixes such as ``[default0]:`` and bytes that
are not UTF-8. Lines are therefore never matched from their start: the parser searches the fixed part of each line and
continues from there.

>>> parser = LogParser()
>>> parser.feed(b" [2025-10-11 19:28:56] iteration        1/     100 | consumed samples:            4 |")
[]
>>> parser.finish()[0].iteration
1
"""

from __future__ import annotations

import re
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from airflow_megatron.megatron.logs.checkpoint_lines import CheckpointEvent as CheckpointEvent
from airflow_megatron.megatron.logs.checkpoint_lines import CheckpointRecord as CheckpointRecord
from airflow_megatron.megatron.logs.checkpoint_lines import read_checkpoint
from airflow_megatron.megatron.logs.iteration_lines import (
    NEEDLE,
    PREFIX,
    IterationReader,
    read_fields,
    read_time,
)
from airflow_megatron.megatron.logs.iteration_lines import IterationRecord as IterationRecord
from airflow_megatron.megatron.logs.line_hits import LineHits
from airflow_megatron.megatron.logs.line_lengths import cut_line, cut_lines
from airflow_megatron.megatron.logs.line_places import LineStarts, line_numbers
from airflow_megatron.spec.model.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

RECORD_LINES_ERE: Final = "|".join(
    (
        r"\| consumed samples:|consumed_samples",
        r"validation[^|]* loss at ",
        r"\] [^ ]*datetime",
        r"(saving|saved|scheduled an async|loading|loaded|deleted) .*checkpoint",
        r"successfully (saved|loaded|deleted) ",
        r"missing-checkpoint' (is )?set",
        r"could not find the metadata file",
        r"will not load any checkpoints",
        r"\) memory \(MB\) \|",
        r"[Nn]umber of (active )?parameters (in|on) ",
        r"(^|[] :.])[A-Za-z_.]*(Error|Exception|Interrupt)(:|$)",
        r": error: ",
        r"out of memory",
        r"oom[-_]kill",
        r"Traceback \(most recent call last\)",
    )
)
"""POSIX extended regular expression (``grep -aE``) of every line that can contain a record."""

_LONGEST_MESSAGE: Final = 2000
_LONGEST_TRACEBACK: Final = 2000
"""Number of lines without an error after which a traceback has ended."""


class MarkerKind(StrEnum):
    """The points of a run at which Megatron prints ``[<text>] datetime: …``."""

    INITIALIZED = "initialized"
    MODEL_BUILT = "model_built"
    DATALOADERS_BUILT = "dataloaders_built"
    BEFORE_TRAINING = "before_training"
    TRAINING_DONE = "training_done"
    EXITING_SIGNAL = "exiting_sigterm"
    EXITING_DURATION = "exiting_duration"
    EXITING_INTERVAL = "exiting_interval"
    EXITING_MISSING_CHECKPOINT = "exiting_missing_checkpoint"
    OTHER = "other"


class ErrorKind(StrEnum):
    """The source of an error line."""

    EXCEPTION = "exception"
    CUDA_OUT_OF_MEMORY = "cuda_oom"
    HOST_OUT_OF_MEMORY = "host_oom"
    USAGE = "usage"
    SLURM = "slurm"


class ValidationRecord(NamedTuple):
    """One ``validation loss at …`` line: during training, or for the final validation or test set."""

    iteration: int | None
    """The iteration; None for the wording of older releases, ``validation loss at the end of training for …``."""
    split: str
    """``validation`` or ``test``."""
    dataset: str | None
    """Name or index of the set if there are several (``--multiple-validation-sets``)."""
    final: bool
    losses: dict[str, float]
    perplexities: dict[str, float]

    @property
    def loss(self) -> float | None:
        """The language-model loss (nats per token), else the first loss of the line."""
        return self.losses.get("lm loss", next(iter(self.losses.values()), None))


class MarkerRecord(NamedTuple):
    """One ``[<text>] datetime: <time>`` line; ``iteration`` and ``minutes`` if the text has them."""

    kind: MarkerKind
    text: str
    time: datetime | None = None
    iteration: int | None = None
    minutes: float | None = None


class MemoryRecord(NamedTuple):
    """One ``[Rank R] (<when>) memory (MB) | …`` line; sizes in MB, as in the line."""

    rank: int
    when: str
    allocated: float | None
    max_allocated: float | None
    reserved: float | None
    max_reserved: float | None


class ParameterCount(NamedTuple):
    """One line with a number of parameters.

    ``scope`` is ``rank`` (exact count on one model-parallel rank, ``ranks`` its coordinates), ``total``, ``active``,
    ``transformer block``, ``embedding layers`` or ``most loaded shard`` (rounded, because they are printed in
    billions).
    """

    scope: str
    parameters: int
    ranks: tuple[int, ...] = ()


class ErrorRecord(NamedTuple):
    """One line about an error: the last line of an exception, a usage error, a message from Slurm."""

    kind: ErrorKind
    exception: str | None
    message: str


Record: TypeAlias = (
    IterationRecord
    | ValidationRecord
    | MarkerRecord
    | CheckpointRecord
    | MemoryRecord
    | ParameterCount
    | ErrorRecord
)

# A log may contain any text. The time of every expression here is therefore proportional to the searched text:
# repetitions are bounded, or cannot match in two ways, and the text is a window around the found words.
_VALIDATION_HEAD = re.compile(
    rb"validation(?:-(?P<dataset>[^|\n]{1,256}?))? loss at "
    rb"(?:iteration\s{1,16}(?P<iteration>\d{1,18})|the end of training)"
    rb"(?: on (?P<set>validation|test) set| for (?P<data>val|validation|test) data)? \|"
)
_LONGEST_VALIDATION_HEAD: Final = 96
"""Number of bytes of such a line from `` loss at `` on."""
_MARKER = re.compile(rb"\[([^\[\]\n]*)\Z")
_MARKER_TIME = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)")
_RANDOM_START = b"will not load any checkpoints and will start from random"
_NO_TRACKER = b"could not find the metadata file "
_MISSING_CHECKPOINT = (
    b"'--exit-on-missing-checkpoint' set",
    b"'--exit-on-missing-checkpoint' is set",  # 0.20
)
_MEMORY = re.compile(rb"\[Rank (\d{1,9})\] \(([^()\n]*)\)\Z")
_MEMORY_SIZE = re.compile(rb"([^:]*):\s{0,16}(\d{1,18}\.?\d{0,18}|\.\d{1,18})")
_MOST_SIZES: Final = 32
_RANK_PARAMETERS = re.compile(
    rb"number of parameters on \([^)\n]{0,64}\) model parallel rank "
    rb"\( ?(\d{1,9}(?: ?, ?\d{1,9}){0,7}) ?\): (\d{1,18})"
)
_BILLION_PARAMETERS = re.compile(
    rb"(Total n|N)umber of (active )?parameters in "
    rb"(?:(transformer block|embedding layers|most loaded shard) in )?billions:\s{1,16}(\d{1,9}\.\d{1,18})"
)
_EXCEPTION = re.compile(rb"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (.*))?\Z")
_ANY_EXCEPTION = re.compile(rb"((?:[a-z_]\w*\.)*[A-Z][a-z]\w*)(?:: (.*))?\Z")
_ERROR_WORD = re.compile(rb"([\w./-]+): error: (.*)")
_TRACEBACK = b"Traceback (most recent call last)"
_BLANK: Final = (b" ", b"\t", b"\r")
_ERROR_NEEDLES: Final = (b"rror", b"Exception", b"Interrupt", b"out of memory", _TRACEBACK)

_MARKER_KINDS: Final = {
    "after megatron is initialized": MarkerKind.INITIALIZED,
    "after model, optimizer, and learning rate scheduler are built": MarkerKind.MODEL_BUILT,
    "after dataloaders are built": MarkerKind.DATALOADERS_BUILT,
    "before the start of training step": MarkerKind.BEFORE_TRAINING,
    "after training is done": MarkerKind.TRAINING_DONE,
}
_EXIT_MARKERS: Final = (
    (MarkerKind.EXITING_SIGNAL, re.compile(r"exiting program after receiving ")),
    (
        MarkerKind.EXITING_DURATION,
        re.compile(r"exiting program after (?P<minutes>\d{1,9}(?:\.\d{1,18})?) minutes"),
    ),
    (MarkerKind.EXITING_INTERVAL, re.compile(r"exiting program at iteration (?P<iteration>\d{1,18})")),
)


class LogParser:
    """Parser of one log, fed in chunks of any size.

    Records are returned in the order of the log, as soon as their lines are complete.
    """

    def __init__(self, begin: int = 0) -> None:
        """Initialize at the beginning of a log, or at any line of it.

        :param begin: position of the first chunk in the log, in bytes
        """
        self._pending = b""
        self._line_at = self._chunk_at = begin
        self._open_tracebacks: set[bytes] = set()
        self._traceback_lines = 0
        self._iterations = IterationReader()
        self._worded = self._rest = b""
        self._dialects = list(TRAINERS)

    @property
    def unread_lines(self) -> int:
        """Number of iteration lines so far that could not be parsed completely."""
        return self._iterations.unread_lines

    def feed(self, chunk: bytes) -> list[Record]:
        """Parse the next bytes of the log.

        :param chunk: any number of bytes, cut at any position.
        :returns: the records of the lines that are now complete.
        """
        return [record for _, record in self._scan(self._block(chunk))]

    def feed_placed(self, chunk: bytes) -> list[tuple[int, Record]]:
        """Parse the next bytes of the log; return each record with the position of its line in the log, in bytes.

        The position of a record in a line of more than :data:`.line_lengths.LONGEST_LINE` bytes, or after such a line
        in the same chunk, may be that of another line.
        """
        first, chunk_at = self._line_at, self._chunk_at
        block = self._block(chunk)
        found = self._scan(block)
        if not found:
            return []
        starts = LineStarts(first, chunk_at, chunk)
        lines = line_numbers([at for at, _ in found], self._rest, self._worded, self._iterations.runs)
        return [(starts[line], record) for line, (_, record) in zip(lines, found, strict=True)]

    def finish(self) -> list[Record]:
        """Parse the end of the log; return the records of a last line without a newline."""
        return [record for _, record in self.finish_placed()]

    def finish_placed(self) -> list[tuple[int, Record]]:
        """Parse the end of the log; return records like :meth:`feed_placed`."""
        block, self._pending = self._pending, b""
        return [(self._line_at, record) for _, record in self._scan(block)]

    def _block(self, chunk: bytes) -> bytes:
        """Return the lines that the next bytes complete; keep the rest."""
        end = chunk.rfind(b"\n") + 1
        self._chunk_at += len(chunk)
        if not end:
            self._pending = cut_line(self._pending + chunk)
            return b""
        block = self._pending + memoryview(chunk)[:end]
        self._pending = cut_line(chunk[end:])
        self._line_at = self._chunk_at - len(chunk) + end
        return cut_lines(block)

    def _scan(self, block: bytes) -> list[tuple[int, Record]]:
        """Return the records of complete lines, each with its position in :attr:`_rest`."""
        if not block:
            return []
        for trainer in (*self._dialects,):
            worded = trainer.in_megatrons_words(block)
            # a log has only one of the wordings: searching the others in each block would take a tenth of the time
            if worded is block and NEEDLE in block:
                self._dialects.remove(trainer)
            block = worded
        # bytes.find runs at memory speed; a regular expression over every line does not.
        self._worded = block
        iterations, block = self._iterations.take(block)
        self._rest = block
        found: list[tuple[int, Record]] = [*iterations]
        for needle, read in _READERS:
            hits = LineHits(block, needle)
            at = hits.find(0)
            while at >= 0:
                record = read(block, at, hits.end)
                if record is not None:
                    found.append((at, record))
                at = hits.find(at + len(needle))
        found.extend(self._scan_errors(block))
        found.sort(key=itemgetter(0))
        return found

    def _scan_errors(self, block: bytes) -> list[tuple[int, Record]]:
        lines: dict[int, int] = {}
        for needle in _ERROR_NEEDLES:
            at = block.find(needle)
            while at >= 0:
                end = block.find(b"\n", at)
                end = end if end >= 0 else len(block)
                lines[block.rfind(b"\n", 0, at) + 1] = end
                at = block.find(needle, end)
        if self._open_tracebacks:
            lines.setdefault(0, block.find(b"\n") if b"\n" in block else len(block))
        found: list[tuple[int, Record]] = []
        start = 0
        for hit in sorted(lines):
            if hit < start:
                continue
            start, end = hit, lines[hit]
            record = self._read_error(block[start:end])
            if record is not None:
                found.append((start, record))
            # An exception of any name ends a traceback, so all lines of an open traceback are parsed.
            while self._open_tracebacks and end < len(block):
                start, end = end + 1, block.find(b"\n", end + 1)
                end = end if end >= 0 else len(block)
                if end == start or block.startswith(_BLANK, start):  # an exception's line is not indented
                    continue
                record = self._read_error(block[start:end])
                if record is not None:
                    found.append((start, record))
            start = end
        return found

    def _read_error(self, line: bytes) -> ErrorRecord | None:
        line = line.rstrip()
        self._traceback_lines += 1
        if self._traceback_lines > _LONGEST_TRACEBACK:
            self._open_tracebacks.clear()
        head = PREFIX.match(line)
        prefix = head.group().rstrip() if head else b""
        text = line[head.end() :] if head else line
        if text.startswith(_TRACEBACK):
            self._open_tracebacks.add(prefix)
            self._traceback_lines = 0
            return None
        match = _EXCEPTION.match(text)
        if match is None and prefix in self._open_tracebacks:
            match = _ANY_EXCEPTION.match(text)
        if match is not None:
            self._open_tracebacks.discard(prefix)
            self._traceback_lines = 0
            oom = b"CUDA out of memory" in text or b"OutOfMemoryError" in match.group(1)
            kind = ErrorKind.CUDA_OUT_OF_MEMORY if oom else ErrorKind.EXCEPTION
            return ErrorRecord(kind, _text(match.group(1)), _text(match.group(2) or b""))
        word = _ERROR_WORD.match(text)
        if word is not None:
            program, message = word.groups()
            if b"oom_kill" in message or b"oom-kill" in message or b"Out Of Memory" in message:
                kind = ErrorKind.HOST_OUT_OF_MEMORY
            elif program.endswith(b".py"):
                kind = ErrorKind.USAGE
            else:
                kind = ErrorKind.SLURM
            return ErrorRecord(kind, None, _text(text))
        if b"CUDA out of memory" in text and not text[:1].isspace():
            return ErrorRecord(ErrorKind.CUDA_OUT_OF_MEMORY, None, _text(text))
        return None


def parse_log(data: bytes) -> list[Record]:
    """Parse a whole log at once.

    :param data: the bytes of the log.
    :returns: its records in order.
    """
    parser = LogParser()
    return parser.feed(data) + parser.finish()


def merge_iterations(records: Iterable[Record]) -> list[IterationRecord]:
    """Collect the iterations of one training run from the records of all its attempts.

    A restarted run continues from its last checkpoint and logs the iterations after it again; the earlier records of
    these iterations are no longer part of the run. An iteration at or before the previous one therefore removes all
    records from there on, and a loaded checkpoint removes all records after its own iteration.

    :param records: records of the attempts' logs, oldest attempt first.
    :returns: at most one record per iteration, in ascending order.
    """
    kept: list[IterationRecord] = []
    restarts = Restarts()
    for record in records:
        limit = restarts.read(record)
        if isinstance(record, IterationRecord) and limit is not None:
            while kept and kept[-1].iteration > limit:
                kept.pop()
            kept.append(record)
    return kept


class Restarts:
    """Finds, in the records of one training run, the iterations that a restart or rollback has removed from it."""

    def __init__(self) -> None:
        self._resume_at: int | None = None

    def read(self, record: Record) -> int | None:
        """Return the last iteration before this record that belongs to the run; None if the record removes none.

        :param record: the next record of its attempts' logs
        """
        if isinstance(record, CheckpointRecord):
            if record.event is CheckpointEvent.LOADED and record.iteration is not None:
                self._resume_at = record.iteration
            elif record.event is CheckpointEvent.RANDOM_START:
                self._resume_at = 0
        if not isinstance(record, IterationRecord):
            return None
        limit = record.iteration - 1
        # Remove nothing before the first iteration after a load, which the attempt may never reach.
        if self._resume_at is not None:
            limit, self._resume_at = min(limit, self._resume_at), None
        return limit


def _read_validation(block: bytes, at: int, end: int) -> ValidationRecord | None:
    line_start = max(block.rfind(b"\n", 0, at) + 1, at - 256)
    head = _VALIDATION_HEAD.search(block, line_start, min(end, at + _LONGEST_VALIDATION_HEAD))
    if head is None or head.end() <= at:
        return None
    losses: dict[str, float] = {}
    perplexities: dict[str, float] = {}
    for name, text in read_fields(block, head.end(), end):
        if name.endswith(b" value"):
            losses[_text(name[: -len(b" value")])] = float(text)
        elif name.endswith(b" PPL"):
            perplexities[_text(name[: -len(b" PPL")])] = float(text)
    if not losses:
        return None
    iteration, dataset = head["iteration"], head["dataset"]
    last = head["set"] or head["data"]
    return ValidationRecord(
        iteration=int(iteration) if iteration else None,
        split="test" if last == b"test" else "validation",
        dataset=_text(dataset) if dataset else None,
        final=last is not None or iteration is None,
        losses=losses,
        perplexities=perplexities,
    )


def _read_marker(block: bytes, at: int, end: int) -> MarkerRecord | None:
    head = _MARKER.search(block, max(0, at - 200), at)
    if head is None:
        return None
    text = _text(head.group(1))
    stamp = _MARKER_TIME.search(block, at, min(end, at + 64))
    time = read_time(stamp.group(1)) if stamp else None
    kind = _MARKER_KINDS.get(text)
    if kind is not None:
        return MarkerRecord(kind, text, time)
    for kind, pattern in _EXIT_MARKERS:
        match = pattern.match(text)
        if match is not None:
            groups = match.groupdict()
            return MarkerRecord(
                kind,
                text,
                time,
                int(groups["iteration"]) if "iteration" in groups else None,
                float(groups["minutes"]) if "minutes" in groups else None,
            )
    return MarkerRecord(MarkerKind.OTHER, text, time)


def _read_random_start(block: bytes, at: int, end: int) -> CheckpointRecord:
    del end
    named = block.rfind(_NO_TRACKER, max(0, at - 4096), at)
    path = None
    if named >= 0:
        path = _text(block[named + len(_NO_TRACKER) : block.find(b"\n", named, at)])
    return CheckpointRecord(CheckpointEvent.RANDOM_START, None, path)


def _read_missing_checkpoint(block: bytes, at: int, end: int) -> MarkerRecord:
    return MarkerRecord(MarkerKind.EXITING_MISSING_CHECKPOINT, _text(block[at:end]).rstrip("< "))


def _read_memory(block: bytes, at: int, end: int) -> MemoryRecord | None:
    head = _MEMORY.search(block, max(0, at - 200), at + 1)
    if head is None:
        return None
    sizes: dict[str, float] = {}
    for part in block[at:end].split(b"|", _MOST_SIZES)[1:_MOST_SIZES]:
        size = _MEMORY_SIZE.match(part)
        if size is None:
            break
        sizes[_text(size[1])] = float(size[2])
    return MemoryRecord(
        int(head.group(1)),
        _text(head.group(2)),
        sizes.get("allocated"),
        sizes.get("max allocated"),
        sizes.get("reserved"),
        sizes.get("max reserved"),
    )


def _read_parameters(block: bytes, at: int, end: int) -> ParameterCount | None:
    # the needle lacks the first letter, which some releases capitalise
    match = _RANK_PARAMETERS.match(block, max(0, at - 1), end)
    if match is not None:
        ranks = tuple(int(rank) for rank in match.group(1).split(b","))
        return ParameterCount("rank", int(match.group(2)), ranks)
    begin = at - len(b"Total n")
    match = _BILLION_PARAMETERS.match(block, begin if begin >= 0 else 0, end) or _BILLION_PARAMETERS.match(
        block, max(0, at - 1), end
    )
    if match is None:
        return None
    total, active, part, billions = match.groups()
    scope = _text(part) if part else "active" if active else "total" if total != b"N" else "shown"
    return ParameterCount(scope, round(float(billions) * 1e9))


_READERS: Final[tuple[tuple[bytes, Callable[[bytes, int, int], Record | None]], ...]] = (
    (b" loss at ", _read_validation),
    (b"] datetime: ", _read_marker),
    (b" checkpoint ", read_checkpoint),
    (_RANDOM_START, _read_random_start),
    *((words, _read_missing_checkpoint) for words in _MISSING_CHECKPOINT),
    (b") memory (MB) |", _read_memory),
    (b"umber of parameters ", _read_parameters),
    (b"umber of active parameters ", _read_parameters),
)


def _text(raw: bytes) -> str:
    return raw[:_LONGEST_MESSAGE].decode("utf-8", "replace").strip()
