r"""Regular expressions of users, matched in time that grows with the line only: by RE2, written as for Python's ``re``.

The time of Python's ``re`` for a line depends on the pattern (``(a+)+$``: forever), and would block the process that
waits for all jobs of all sweeps. A pattern is therefore parsed with Python's own parser and rewritten for RE2, whose
time is bounded (https://github.com/google/re2/wiki/WhyRE2). The meaning stays Python's: groups and their names, lazy
and greedy repetition, flags, ``\Z``, ``\s``. There are three differences: ``\d`` is a digit from 0 to 9, ``\w``
includes every character beyond ASCII, ``\b`` is a boundary of ASCII characters. Features that RE2 lacks are refused:
look-ahead, look-behind, back references, conditional, atomic and possessive groups.
"""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_PATTERN: Final = 2000
"""Maximum number of characters of a pattern."""
MAX_PROGRAM: Final = 1000
"""Maximum number of steps of a compiled pattern; the time of matching is proportional to them."""
_LINE_END: Final = re.compile(rb"\r?\n|\r")
LONGEST_LINE: Final = 65_536
"""Maximum number of characters of a line that are searched."""
_CAPTURED: Final = 4096
"""Maximum number of characters of a match from which groups are extracted."""

_parser: Any = re._parser  # type: ignore[attr-defined]  # the only parser that knows what Python's patterns mean
_constants: Any = re._constants  # type: ignore[attr-defined]


class PatternError(AirflowMegatronError, ValueError):
    """A pattern is invalid, or cannot be matched in bounded time.

    :param message: the problem
    :param hint: what to write instead
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class LinePattern:
    """A pattern that is searched in lines.

    :param source: as written
    :param capturing: compiled, for the groups
    :param testing: compiled without groups: whether and where there is a match
    """

    source: str
    capturing: Any
    testing: Any

    def search(self, line: str) -> Mapping[str, str] | None:
        """Return the named groups of the first match in a line (those without a match are empty), None without any."""
        line = line[:LONGEST_LINE]
        try:
            found = self.testing.search(line)
            if found is None:
                return None
            if not self.capturing.groupindex:
                return {}
            match = self.capturing.search(line, found.start(), found.start() + _CAPTURED)
        except UnicodeEncodeError:  # half a surrogate pair, which decoded logs never contain
            return None
        return {name: value or "" for name, value in match.groupdict().items()} if match else {}


@functools.lru_cache(maxsize=4096)
def line_pattern(source: str, *, at_beginning: bool = False) -> LinePattern:
    """Return a pattern for lines of text.

    :param at_beginning: whether a match must begin at the start of the line
    :raises PatternError: if it is not a regular expression, or needs features that RE2 lacks
    """
    text = rf"\A(?:{_rewritten(source)})" if at_beginning else _rewritten(source)
    return LinePattern(source, _compiled(text, source), _compiled(text, source, never_capture=True))


def log_lines(data: bytes) -> list[bytes]:
    """Return the lines of a log; the last one may be incomplete.

    A carriage return ends a line too, as on a terminal: progress bars and programs with a terminal write them.
    """
    return _LINE_END.split(data) if b"\r" in data else data.split(b"\n")


@functools.lru_cache(maxsize=4096)
def nested_repetition(source: str) -> bool:
    """Return whether a pattern repeats a repetition, ``(a+)+``: valid in RE2, but always a mistake."""
    try:
        return any(_repeats_repetition(item) for item in _items(_parsed(source)))
    except PatternError:
        return False


@functools.lru_cache(maxsize=4096)
def needs_line_end(source: str) -> bool:
    """Return whether a pattern matches only where a line ends and another begins, so never within one line."""
    try:
        return _holds_line_end(_parsed(source))
    except PatternError:
        return False


def _holds_line_end(tree: Any) -> bool:
    for code, argument in tree:
        if code is _constants.BRANCH:
            found = all(_holds_line_end(part) for part in argument[1])
        elif code in _REPEATS:
            found = argument[0] > 0 and _holds_line_end(argument[2])
        elif code is _constants.LITERAL:
            found = argument == _LINE_FEED
        else:
            found = any(_holds_line_end(part) for part in _inner((code, argument)))
        if found:
            return True
    return False


_LINE_FEED: Final = ord("\n")


def _compiled(text: str, source: str, *, never_capture: bool = False) -> Any:
    import re2  # takes longer to import than most commands run

    options = re2.Options()
    options.log_errors = False
    options.never_capture = never_capture
    try:
        pattern = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        if "repetition size" in reason or "too large" in reason:
            raise PatternError(f"{_shown(source)} repeats too often", "repeat at most 1,000 times") from None
        raise PatternError(f"{_shown(source)} cannot be matched: {reason.partition(':')[0]}") from None
    except UnicodeEncodeError:
        raise PatternError(f"{_shown(source)} holds half a character") from None
    if pattern.programsize > MAX_PROGRAM:
        raise PatternError(
            f"{_shown(source)} is too large to match in bounded time", "write fewer and smaller repetitions"
        )
    return pattern


def _parsed(source: str) -> Any:
    if len(source) > MAX_PATTERN:
        raise PatternError(f"a pattern of {len(source):,} characters; at most {MAX_PATTERN:,} are taken")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _parser.parse(source)
    except re.error as error:
        raise PatternError(f"{_shown(source)} is not a regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise PatternError(f"{_shown(source)} is not a regular expression: it is nested too deeply") from None


def _rewritten(source: str) -> str:
    tree = _parsed(source)
    try:
        return _Writer(source, tree.state).sequence(tree, tree.state.flags)
    except RecursionError:
        raise PatternError(f"{_shown(source)} is nested too deeply") from None


def _shown(source: str) -> str:
    return repr(source if len(source) <= 200 else source[:200] + "…")


def _items(tree: Any) -> Iterator[Any]:
    """Yield every node of a parsed pattern."""
    for node in tree:
        yield node
        for part in _inner(node):
            yield from _items(part)


def _inner(node: Any) -> list[Any]:
    """Return the sequences inside a node."""
    code, argument = node
    if code is _constants.BRANCH:
        return list(argument[1])
    if code is _constants.SUBPATTERN:
        return [argument[3]]
    if code in _REPEATS:
        return [argument[2]]
    return [argument] if code is _constants.ATOMIC_GROUP else []


_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def _repeats_repetition(node: Any) -> bool:
    """Return whether a node is an unbounded repetition of only another unbounded repetition."""
    if not _is_endless(node):
        return False
    only = list(node[1][2])
    while len(only) == 1:
        if _is_endless(only[0]):
            return True
        if only[0][0] is _constants.BRANCH:
            return any(len(part) == 1 and _is_endless(part[0]) for part in only[0][1][1])
        if only[0][0] is not _constants.SUBPATTERN:
            return False
        only = list(only[0][1][3])
    return False


def _is_endless(node: Any) -> bool:
    return node[0] in _REPEATS and node[1][1] is _constants.MAXREPEAT


_BLANKS: Final = (
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_ASCII_BLANKS: Final = ((0x09, 0x0D), (0x20, 0x20))
_DIGITS: Final = ((0x30, 0x39),)
_ASCII_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_LAST: Final = 0x10FFFF
_WORD: Final = (*_ASCII_WORD, (0x80, _LAST))


class _Writer:
    """Writer of a parsed pattern for RE2.

    :param source: the pattern, for messages
    :param state: state of the parser, with the names of its groups
    """

    def __init__(self, source: str, state: Any) -> None:
        self.source = source
        self.names = {number: name for name, number in state.groupdict.items()}

    def sequence(self, tree: Any, flags: int) -> str:
        """Return the RE2 text for a sequence of nodes."""
        return "".join(self._node(code, argument, flags) for code, argument in tree)

    def _node(self, code: Any, argument: Any, flags: int) -> str:
        match str(code):
            case "LITERAL":
                return self._folded(_character(argument), flags)
            case "NOT_LITERAL":
                return self._folded(f"[^{_character(argument)}]", flags)
            case "ANY":
                return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
            case "IN":
                return self._folded(self._set(argument, flags), flags)
            case "BRANCH":
                return f"(?:{'|'.join(self.sequence(part, flags) for part in argument[1])})"
            case "SUBPATTERN":
                number, added, removed, part = argument
                inner = self.sequence(part, (flags | added) & ~removed)
                name = self.names.get(number)
                return f"(?P<{name}>{inner})" if name else f"(?:{inner})" if number is None else f"({inner})"
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, part = argument
                lazy = "?" if str(code) == "MIN_REPEAT" else ""
                return f"(?:{self.sequence(part, flags)}){_count(least, most)}{lazy}"
            case "AT":
                return self._place(str(argument), flags)
        raise PatternError(f"{_shown(self.source)} needs {_NAMES.get(str(code), str(code))}", _INSTEAD)

    @staticmethod
    def _folded(text: str, flags: int) -> str:
        return f"(?i:{text})" if flags & re.IGNORECASE else text

    @staticmethod
    def _place(name: str, flags: int) -> str:
        match name:
            case "AT_BEGINNING":
                return "(?m:^)" if flags & re.MULTILINE else r"\A"
            case "AT_END":
                return "(?m:$)" if flags & re.MULTILINE else r"\z"
            case "AT_BEGINNING_STRING":
                return r"\A"
            case "AT_END_STRING":
                return r"\z"
            case "AT_BOUNDARY":
                return r"\b"
        return r"\B"

    def _set(self, items: Iterable[Any], flags: int) -> str:
        ranges: list[tuple[int, int]] = []
        negated = False
        for code, argument in items:
            match str(code):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    ranges.append((argument, argument))
                case "RANGE":
                    ranges.append(argument)
                case _:
                    ranges += self._category(str(argument), flags)
        written = "".join(f"{_character(low)}-{_character(high)}" for low, high in ranges)
        return f"[{'^' if negated else ''}{written}]"

    def _category(self, name: str, flags: int) -> Iterable[tuple[int, int]]:
        ascii_only = flags & re.ASCII
        kind = name.rpartition("_")[2]
        ranges: tuple[tuple[int, int], ...] = {
            "DIGIT": _DIGITS,
            "SPACE": _ASCII_BLANKS if ascii_only else _BLANKS,
            "WORD": _ASCII_WORD if ascii_only else _WORD,
        }[kind]
        return _others(ranges) if "NOT" in name else ranges


def _others(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of all characters that are not in the given, ascending ones."""
    begin = 0
    for low, high in ranges:
        if low > begin:
            yield begin, low - 1
        begin = high + 1
    if begin <= _LAST:
        yield begin, _LAST


_NAMES: Final = {
    "ASSERT": "look-ahead or look-behind",
    "ASSERT_NOT": "negative look-ahead or look-behind",
    "ATOMIC_GROUP": "an atomic group",
    "FAILURE": "a group that never matches",
    "GROUPREF": "a back reference",
    "GROUPREF_EXISTS": "a conditional group",
    "POSSESSIVE_REPEAT": "possessive repetition",
}
_INSTEAD: Final = (
    "patterns are matched in linear time by RE2, which has no such thing; write the alternatives out, or use two "
    "conditions, one of them under not:"
)


def _character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


def _count(least: Any, most: Any) -> str:
    if most is _constants.MAXREPEAT:
        return {0: "*", 1: "+"}.get(int(least), f"{{{int(least)},}}")
    return "?" if (least, most) == (0, 1) else f"{{{int(least)},{int(most)}}}"
