"""Parser of the ``iteration N/M | consumed samples: …`` lines of a log.

Most lines of a long log are of this kind, and all of one training are similar. From the second line of a kind on,
lines are matched completely, with one regular expression of mostly fixed text, and are not searched for other records.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from airflow_megatron.megatron.logs.line_hits import LineHits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEEDLE: Final = b"| consumed samples:"
_HEAD = re.compile(
    rb"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\]\s{0,16})?"
    rb"iteration\s{1,24}(\d{1,18})/\s{0,24}(\d{1,18}) \|\Z"
)
_LONGEST_HEAD: Final = 160
_OTHER_LINE: Final = re.compile(rb"\biteration\s{1,24}\d{1,18}/|consumed.samples")
"""Matches within a field where another process's line begins."""
# Prefixes of launchers: "[default0]:", "[node07:0]:", "[rank3]: ", "12: " (srun --label).
PREFIX: Final = re.compile(rb"(?:\s{0,64}(?:\[[^\]\s]{1,128}(?<=\d)\]:|\d{1,9}:))*\s?")
# Other values of forks: "1.049B", "40.7TFLOPS", "1 day, 2:03:04" (swiss-ai/Megatron-LM, tokens and eta).
_WORD: Final = (
    rb"(?:-?\d[\d.,]{0,32}[A-Za-z%]{1,8}(?:/[A-Za-z]{1,8}){0,3}"
    rb"|(?:\d{1,6} days?, )?\d{1,6}(?::\d\d){1,2}(?:\.\d{1,9})?)"
)
# several of them: "123.4GB/68.6GB/191.98GB/64.25%" (AMD-AGI/Primus)
_WORDS: Final = _WORD + rb"(?:/" + _WORD + rb"){0,7}"
_WORDED = re.compile(rb" ([A-Za-z][^:|\[\]]{0,200}): {0,32}" + _WORDS + rb" ")
# AMD's Primus prints a value of this iteration and the mean of those before it: "729.5/730.1".
_PAIR = re.compile(rb"(-?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,4})?)/-?\d[\d.eE+-]{0,40}")
_NAMED = re.compile(rb" ?([A-Za-z][^:|\[\]]{0,200}):")
_KNOWN: Final = {
    b"consumed samples": "consumed_samples",
    b"elapsed time per iteration (ms)": "elapsed_ms",
    b"throughput per GPU (TFLOP/s/GPU)": "throughput",
    b"TFLOPs": "throughput",
    b"learning rate": "learning_rate",
    b"global batch size": "global_batch_size",
    b"loss scale": "loss_scale",
    b"grad norm": "grad_norm",
    b"number of skipped iterations": "skipped_iterations",
    b"number of nan iterations": "nan_iterations",
}
_COUNTS: Final = frozenset(
    (b"global batch size", b"number of skipped iterations", b"number of nan iterations")
)
"""Fields whose value is a whole number."""
_BAR: Final = ord("|")
_REPEATED: Final = frozenset(
    (b"global batch size", b"loss scale", b"number of skipped iterations", b"number of nan iterations")
)
"""Fields whose value usually equals that of the previous line."""

LARGEST_LOSS: Final = 3.5e38
"""Limit of the numbers that Megatron's losses, which have 32 bits, can be; it prints a larger one as ``inf``."""

_MOST_FIELDS: Final = 200
_LONGEST_NUMBER: Final = 64
_SAMPLES: Final = b"consumed samples"
_MOST_DIGITS: Final = 18
"""Maximum number of digits of a whole number: a larger one would not fit into the columns of tables."""
_MOST_SAMPLES: Final = 10**_MOST_DIGITS
_MOST_NUMBERS: Final = 4096
_MOST_LAYOUTS: Final = 64

# Losses that accompany the language-model loss (megatron/core/transformer/moe/moe_logging.py, multi-token
# prediction).
_AUXILIARY_LOSSES: Final = frozenset(
    ("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss", "indexer loss")
)


class IterationRecord(NamedTuple):
    """One ``iteration N/M | consumed samples: …`` line.

    A field that the line lacks is None. ``losses`` contains the fields whose name ends in ``loss``. A NaN loss is
    *absent* from the line, because ``training_log`` prints only averages greater than zero; hence :attr:`is_nan`.
    ``extra`` contains every other number, under its name in the line.
    """

    iteration: int
    train_iters: int
    consumed_samples: int
    """If the line's number is unreadable: the iteration times the global batch size."""
    time: datetime | None = None
    elapsed_ms: float | None = None
    throughput: float | None = None
    """TFLOP/s per GPU."""
    learning_rate: float | None = None
    global_batch_size: int | None = None
    losses: dict[str, float] = {}  # noqa: RUF012 - a NamedTuple default that nothing changes
    loss_scale: float | None = None
    grad_norm: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    extra: dict[str, float] = {}  # noqa: RUF012
    torn: bool = False
    """Whether the line ends before its last field, or has unreadable fields: another process wrote into it, or the log
    was cut."""
    unread: tuple[str, ...] = ()
    """Names of the fields without a readable number."""

    @property
    def loss(self) -> float | None:
        """The language-model loss (nats per token), else the first loss of the line, else None."""
        if "lm loss" in self.losses:
            return self.losses["lm loss"]
        return next((value for name, value in self.losses.items() if name not in _AUXILIARY_LOSSES), None)

    @property
    def is_nan(self) -> bool:
        """Whether the loss of the reported iterations was not a finite number."""
        if self.nan_iterations:
            return True
        if self.loss is not None:
            return not abs(self.loss) <= LARGEST_LOSS  # also of NaN
        # Iterations skipped by the loss scaler have no loss either, which does not mean NaN.
        return not self.torn and not self.skipped_iterations


_Kind: TypeAlias = tuple[bool, tuple[bytes, ...], frozenset[bytes]]
"""Whether a line has a time, the names of its fields, and those whose values are not numbers."""

_Texts: TypeAlias = tuple[bytes, ...]
"""Matches of the groups of a layout's expression in a line."""


class IterationReader:
    """Extracts the iteration lines from the blocks of one log, in order."""

    def __init__(self) -> None:
        """Initialize for a line of any kind."""
        self.unread_lines = 0
        """Number of lines that have the words of an iteration line but gave no record, or an incomplete one."""
        self.runs: list[tuple[int, int, int]] = []
        """For the last block and each group of lines that was matched completely: its position in the rest, its first
        byte in the block, and the byte after its last."""
        self._before: _Kind | None = None
        self._layout: _Layout | None = None
        self._layouts: dict[_Kind, _Layout] = {}

    def take(self, block: bytes) -> tuple[list[tuple[int, IterationRecord]], bytes]:
        """Parse a block of complete lines.

        :param block: the lines.
        :returns: the records, each with its position in the rest; and the rest: the block without the completely
            matched text.
        """
        learnt = self._before, self._layout, self._layouts.copy(), self.unread_lines
        try:
            return self._take(block, checked=False)
        except ValueError:
            # a line has a text instead of a number: find it, and parse it field by field
            self._before, self._layout, self._layouts, self.unread_lines = learnt
            return self._take(block, checked=True)

    def _take(self, block: bytes, *, checked: bool) -> tuple[list[tuple[int, IterationRecord]], bytes]:
        found: list[tuple[int, IterationRecord]] = []
        places: dict[_Layout, list[int]] = defaultdict(list)
        lines: dict[_Layout, list[_Texts]] = defaultdict(list)
        rest: list[bytes | memoryview] = []
        self.runs = []
        view = memoryview(block)
        begin = length = 0
        hits = LineHits(block, NEEDLE)
        at = hits.find(0)
        while at >= 0:
            layout = self._layout
            if layout is not None and at - layout.head >= begin:
                start = at - layout.head
                matched, end = layout.lines(block, start, checked=checked)
                if matched:
                    length += start - begin
                    places[layout] += [length] * len(matched)
                    lines[layout] += matched
                    self.runs.append((length, start, end))
                    rest.append(view[begin:start])
                    # keep the start of a line, and do not join words
                    rest.append(b"\0" if block[end - 1] == _BAR else b"\n")
                    begin, length = end, length + 1
                    at = hits.find(end)
                    continue
            line = _Line.read(block, at, hits.end)
            self.unread_lines += line is None or bool(line.unread)
            if line is not None:
                found.append((length + at - begin, line.record()))
                self._choose_layout(line)
            at = hits.find(at + len(NEEDLE))
        rest.append(view[begin:])
        for layout, texts in lines.items():
            found.extend(zip(places[layout], layout.records(texts), strict=True))
        return found, b"".join(rest)

    def _choose_layout(self, line: _Line) -> None:
        """Choose the layout for the following lines; the second line with the same fields creates one."""
        if line.is_torn:
            return
        kind = (line.has_time, line.names, line.worded)
        layout = self._layouts.get(kind)
        if layout is not None or kind == self._before:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            repeated = line.repeated(layout.repeated if layout else None)
            layout = _layout(line.prefix, line.has_time, line.head, line.names, line.worded, repeated)
            self._layouts[kind] = layout
        self._before, self._layout = kind, layout


class _Line(NamedTuple):
    """A line parsed field by field.

    :param prefix: prefix of a launcher
    :param head: bytes from its time, or without one from its iteration, to the first field
    :param fields: names and numbers as text, in the line's order (see :func:`read_fields`)
    """

    prefix: bytes
    time: bytes | None
    iteration: bytes
    train_iters: bytes
    head: int
    fields: list[tuple[bytes, bytes]]
    unread: tuple[bytes, ...]
    samples: int

    @classmethod
    def read(cls, block: bytes, at: int, end: int) -> _Line | None:
        """Parse the line whose fields begin at *at*; None without an iteration before them.

        :param end: end of the line
        """
        begin = block.rfind(b"\n", 0, at) + 1
        word = block.rfind(b"iteration", max(begin, at - _LONGEST_HEAD), at)
        head = _HEAD.search(block, max(word - 48, begin), at + 1) if word >= 0 else None
        if head is None:
            return None
        unread: list[bytes] = []
        fields = read_fields(block, at + 1, end, unread)
        texts = dict(fields)
        time, iteration, train_iters = head.groups()
        samples = _count(texts.get(_SAMPLES, b""))
        if samples is None:
            batch = _count(texts.get(b"global batch size", b""))
            if batch is None:
                return None
            samples = min(int(iteration) * batch, _MOST_SAMPLES)
            if _SAMPLES not in unread:
                unread.append(_SAMPLES)
        prefix = PREFIX.fullmatch(block, begin, head.start())
        return cls(
            prefix.group() if prefix else b"",
            time,
            iteration,
            train_iters,
            at - head.start(),
            fields,
            tuple(unread),
            samples,
        )

    @property
    def names(self) -> tuple[bytes, ...]:
        return tuple(name for name, _ in self.fields)

    @property
    def worded(self) -> frozenset[bytes]:
        return frozenset(name for name, text in self.fields if not text)

    @property
    def has_time(self) -> bool:
        return self.time is not None

    @property
    def is_torn(self) -> bool:
        return bool(self.unread) or b"number of nan iterations" not in self.names

    def repeated(self, before: tuple[tuple[bytes, bytes], ...] | None) -> tuple[tuple[bytes, bytes], ...]:
        """Return the fields that may have the same value in the next line: those of *before* that still do."""
        now = tuple(field for field in self.fields if field[0] in _REPEATED)
        return now if before is None else tuple(field for field in now if field in before)

    def record(self) -> IterationRecord:
        known: dict[str, Any] = {}
        losses, extra = {}, {}
        for name, text in self.fields:
            if not text or name == _SAMPLES:
                continue
            if name in _KNOWN:
                known[_KNOWN[name]] = _cache(name)[text]
            elif name.endswith(b"loss"):
                losses[_name(name)] = float(text)
            else:
                extra[_name(name)] = _NUMBERS[text]
        return IterationRecord(
            int(self.iteration),
            int(self.train_iters),
            self.samples,
            time=read_time(self.time),
            losses=losses,
            extra=extra,
            torn=self.is_torn,
            unread=tuple(map(_name, self.unread)),
            **known,
        )


class _Numbers(dict[bytes, float]):
    """Cache of text → number, because many fields (times, rates, counts) repeat the value of a recent line."""

    def __missing__(self, text: bytes) -> float:
        if len(self) >= _MOST_NUMBERS:
            self.clear()
        number = self[text] = self._read(text)
        return number

    @staticmethod
    def _read(text: bytes) -> float:
        return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else float(text)


class _Counts(_Numbers):
    """Cache of text → whole number."""

    @staticmethod
    def _read(text: bytes) -> int:
        count = _count(text)
        if count is None:
            raise ValueError("not a whole number")
        return count


_NUMBERS: Final = _Numbers()
_COUNTED: Final = _Counts()
_number: Final = _NUMBERS.__getitem__


def _cache(name: bytes) -> _Numbers:
    """Return the cache that converts the text of a field."""
    return _COUNTED if name in _COUNTS else _NUMBERS


class _Layout:
    """The fields of iteration lines, in order, some of them with a repeated text.

    :param prefix: possible prefix of the next line
    :param head: bytes from a line's time, or without one from its iteration, to its first field
    :param worded: names of the fields whose values are not numbers; they are ignored
    """

    def __init__(
        self,
        prefix: bytes,
        has_time: bool,
        head: int,
        names: tuple[bytes, ...],
        worded: frozenset[bytes],
        repeated: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self.head = head
        self.repeated = repeated
        self._has_time = has_time
        same = {name: re.escape(text) for name, text in repeated} | dict.fromkeys(worded, _WORDS)
        varying = [name for name in names if name not in same]
        # possessive ++ and *+: no shorter match of a part could be followed by the next one
        value = {_SAMPLES: rb"(\d{1,18}+)"}
        fields = b"".join(
            rb" %s: *+%s \|" % (re.escape(name), same.get(name) or value.get(name, rb"([^ \n]{1,64}+)"))
            for name in names
        )
        time = rb"\[([^\]\n]{1,64}+)\]\s{0,16}" if has_time else rb"()(?<!\])(?<!\]\s)"
        # no further field; the end of the line, so that all of the next one can be matched where this one ends
        end = rb"(?! [^:|\n]++: *+[^ |:\n]++ ?\|)(?:[ \r]*\n)?"
        head_text = rb"(?:%s)?+%siteration ++(\d{1,18}+)/ *+(\d{1,18}+) \|" % (re.escape(prefix), time)
        self._match = re.compile(head_text + fields + end).match
        # positions in the groups of a match
        place = {name: number for number, name in enumerate(varying, start=3)}
        self._consumed = place.pop(_SAMPLES)
        self._numbers = [
            (_KNOWN[name], at, _cache(name).__getitem__) for name, at in place.items() if name in _KNOWN
        ]
        others = [(name, at) for name, at in place.items() if name not in _KNOWN]
        self._losses = [(_name(name), at) for name, at in others if name.endswith(b"loss")]
        self._extra = [(_name(name), at) for name, at in others if not name.endswith(b"loss")]
        # one for each field of a record, in order
        self._same: dict[str, Iterable[Any]] = {
            field: repeat(IterationRecord._field_defaults.get(field)) for field in IterationRecord._fields
        }
        self._same |= {_KNOWN[name]: repeat(_cache(name)[text]) for name, text in repeated}

    def lines(self, block: bytes, start: int, *, checked: bool) -> tuple[list[_Texts], int]:
        """Match the lines of this layout that follow one another from *start*.

        :param checked: end before a line with a text that :meth:`records` would reject
        :returns: the texts of each line, and the end of the last one
        """
        match = self._match
        found: list[_Texts] = []
        line = match(block, start)
        while line is not None:
            texts = line.groups()
            if checked and not self._are_numbers(texts):
                break
            found.append(texts)
            start = line.end()
            line = match(block, start)
        return found, start

    def _are_numbers(self, texts: _Texts) -> bool:
        try:
            next(self.records([texts]))
        except ValueError:
            return False
        return True

    def records(self, lines: list[_Texts]) -> Iterator[IterationRecord]:
        """Convert the texts of lines to records, field by field, which takes half the time of line by line.

        :raises ValueError: if a text is not a number.
        """
        texts = list(zip(*lines, strict=True))
        columns = self._same | {
            "iteration": map(int, texts[1]),
            "train_iters": map(_number, texts[2]),
            "consumed_samples": map(int, texts[self._consumed]),
        }
        for field, at, number in self._numbers:
            columns[field] = map(number, texts[at])
        if self._has_time:
            columns["time"] = map(datetime.fromisoformat, map(bytes.decode, texts[0]))
        if self._losses:
            columns["losses"] = ({name: float(line[at]) for name, at in self._losses} for line in lines)
        if self._extra:
            columns["extra"] = ({name: _number(line[at]) for name, at in self._extra} for line in lines)
        return map(IterationRecord._make, zip(*columns.values(), strict=False))


_layout: Final = lru_cache(maxsize=256)(_Layout)
"""Return a layout, cached because the logs of a sweep share it."""


def read_fields(
    block: bytes, start: int, end: int, unread: list[bytes] | None = None
) -> list[tuple[bytes, bytes]]:
    """Parse ``name: number |`` fields, up to the start of another process's line.

    :param unread: list to which the names of fields without a readable number are appended.
    :returns: names and numbers as text; the text is empty for a time or a number with a unit in a field
        that upstream does not have
    """
    fields: list[tuple[bytes, bytes]] = []
    # The text after the last bar is not a field, or an incomplete one.
    parts = block[start:end].split(b"|", _MOST_FIELDS)[:-1]
    last: int | None = None
    for place, part in enumerate(parts):
        name, _, text = part.partition(b":")
        text = text.strip()
        name = name.strip()
        if _is_number(text) and (name not in _COUNTS or _count(text) is not None):
            fields.append((name, text))
            continue
        worded = _WORDED.fullmatch(part)
        if worded is not None and not _is_upstreams(worded[1]):
            fields.append((worded[1], b""))
            continue
        named = _NAMED.match(part)
        if _OTHER_LINE.search(part, named.end() if named and not place else 0):
            break
        if named is None:
            # part of a value that holds a bar, if more of upstream's fields follow
            last = _last_upstreams(parts) if last is None else last
            if place > last:
                break
            continue
        pair = _PAIR.fullmatch(text)
        if pair is not None:
            fields.append((named[1].strip(), pair[1]))
        elif unread is not None:
            unread.append(named[1].strip())
    return fields


def _last_upstreams(parts: list[bytes]) -> int:
    """Return the position of the last of upstream's fields before another process's line, -1 without one."""
    found: dict[bytes, int] = {}
    for place, part in enumerate(parts):
        if _OTHER_LINE.search(part, 1 if place else len(part)):
            break
        name = part.partition(b":")[0].strip()
        if _is_upstreams(name) and found.setdefault(name, place) != place:
            break  # another process's line without its beginning
    return max(found.values(), default=-1)


def _is_upstreams(name: bytes) -> bool:
    return name in _KNOWN or name.endswith((b"loss", b" value", b" PPL"))


def read_time(raw: bytes | None) -> datetime | None:
    """Parse a time in Megatron's format; None for other text."""
    if raw is None:
        return None
    try:
        return datetime.fromisoformat(raw.decode("ascii"))
    except ValueError:
        return None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return len(text) <= _LONGEST_NUMBER


def _count(text: bytes) -> int | None:
    """Return a whole number, also if it is written ``800.0`` or ``8e2``; None for other text."""
    if text.isdigit():
        count = int(text)
    else:
        number = float(text or b"nan")
        if not number.is_integer():
            return None
        count = int(number)
    return count if 0 <= count < _MOST_SAMPLES else None


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()
