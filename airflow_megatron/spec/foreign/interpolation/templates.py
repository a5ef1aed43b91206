r"""The text of OmegaConf interpolations, parsed: ``${a.b}``, ``${.sibling}``, ``${oc.env:HOME,x}``, ``\${escaped}``.

Written after the grammar that OmegaConf 2.3 documents
(https://omegaconf.readthedocs.io/en/2.3_branch/grammar.html); parentheses need no escape here.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_megatron.errors import AirflowMegatronError

MAX_DEPTH = 60
MAX_DIGITS = 1000

_INTEGER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)\Z")
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9](?:_?[0-9])*)?\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*\.?)(?:[eE][+-]?[0-9](?:_?[0-9])*)?\Z"
)
_SPECIAL_FLOAT = re.compile(r"[+-]?(?:inf|nan)\Z", re.IGNORECASE)
_RESOLVER = re.compile(r"\s*([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)\s*:")
_KEY = re.compile(r"[^\s\\{}()\[\]:=.,'\"$]+")
_CONSTANTS = {"true": True, "false": False, "null": None}
_ESCAPED = frozenset("\\()[]{}:=, \t")


class TemplateError(AirflowMegatronError, ValueError):
    """Text with an interpolation that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Joined:
    """Text made of parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Another value of the configuration.

    :param level: number of leading dots: 0 from the root, 1 from the mapping that contains the text, 2 from its parent
    :param keys: the path, a key may be made by an interpolation
    """

    level: int
    keys: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A resolver with its arguments."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list written inside an argument."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping written inside an argument."""

    items: tuple[tuple[Node, Node], ...]


Node: TypeAlias = Literal | Joined | Reference | Call | Sequence | Mapping


def is_interpolated(value: object) -> bool:
    """Return whether ``value`` is text that holds an interpolation or an escaped one."""
    return isinstance(value, str) and "${" in value


@functools.lru_cache(maxsize=16384)
def parse(text: str) -> Node:
    """Parse a text of the configuration.

    :raises TemplateError: on an interpolation that is not closed or malformed
    """
    return _Parser(text).text()


@functools.lru_cache(maxsize=1024)
def parse_element(text: str) -> Node:
    """Parse a text as an argument of a resolver would be: ``1e-3`` is a number, ``[a,b]`` a list."""
    parser = _Parser(text)
    node = parser.element("")
    parser.skip_space()
    if parser.at != len(text):
        raise TemplateError(f"{text!r} has text after its value")
    return node


def plain_value(text: str) -> Any:
    """Return the value of an unquoted word of an argument: a number, true, false, null or text."""
    if _INTEGER.match(text):
        if len(text) > MAX_DIGITS:
            raise TemplateError(f"a number of {len(text):,} digits is too large")
        return int(text.replace("_", ""))
    if _FLOAT.match(text) or _SPECIAL_FLOAT.match(text):
        return float(text.replace("_", ""))
    return _CONSTANTS.get(text.lower(), text)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.depth = 0

    def text(self) -> Node:
        """Parse to the end: literal text with interpolations in it."""
        parts: list[Node] = []
        literal: list[str] = []
        while self.at < len(self.source):
            self._text_piece(parts, literal)
        return _joined(parts, literal)

    def _text_piece(self, parts: list[Node], literal: list[str]) -> None:
        """Read text up to and with the next interpolation; backslashes count only before ``${``."""
        begin = self.source.find("${", self.at)
        if begin < 0:
            literal.append(self.source[self.at :])
            self.at = len(self.source)
            return
        slashes = begin
        while slashes > self.at and self.source[slashes - 1] == "\\":
            slashes -= 1
        count = begin - slashes
        literal.append(self.source[self.at : slashes] + "\\" * (count // 2))
        self.at = begin
        if count % 2:
            literal.append("${")
            self.at += 2
        else:
            _close(parts, literal)
            parts.append(self.interpolation())

    def interpolation(self) -> Node:
        begin = self.at
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TemplateError("interpolations are nested too deeply")
        self.at += 2
        call = _RESOLVER.match(self.source, self.at)
        if call:
            self.at = call.end()
            node: Node = Call(call[1], self._arguments())
        else:
            node = self._reference()
        self.skip_space()
        if self._peek() != "}":
            raise TemplateError(f"{_short(self.source[begin:])} is not closed; a }} is missing, or a quote")
        self.at += 1
        self.depth -= 1
        return node

    def _reference(self) -> Node:
        self.skip_space()
        level = 0
        while self._peek() == ".":
            level += 1
            self.at += 1
        keys: list[Node] = []
        while True:
            if self._peek() == "[":
                self.at += 1
                keys.append(self._key())
                if self._peek() != "]":
                    raise TemplateError(f"{_short(self.source)}: a ] is missing")
                self.at += 1
            elif not keys or self._peek() == ".":
                self.at += bool(keys)
                keys.append(self._key())
            else:
                break
        return Reference(level, tuple(keys))

    def _key(self) -> Node:
        if self.source.startswith("${", self.at):
            return self.interpolation()
        word = _KEY.match(self.source, self.at)
        if not word:
            raise TemplateError(
                f"{_short(self.source)}: a name is missing after {self.source[: self.at][-20:]!r}"
            )
        self.at = word.end()
        return Literal(word[0])

    def _arguments(self) -> tuple[Node, ...]:
        self.skip_space()
        if self._peek() == "}":
            return ()
        arguments = [self.element(",}")]
        while self._peek() == ",":
            self.at += 1
            arguments.append(self.element(",}"))
        return tuple(arguments)

    def element(self, stops: str) -> Node:
        """Parse one argument, list item or mapping value, up to one of the characters ``stops``."""
        self.skip_space()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TemplateError("interpolations are nested too deeply")
        try:
            match self._peek():
                case "'" | '"':
                    return self._quoted()
                case "[":
                    return self._sequence()
                case "{":
                    return self._mapping()
                case _:
                    return self._word(stops)
        finally:
            self.depth -= 1

    def _quoted(self) -> Node:
        quote, begin = self._peek(), self.at
        self.at += 1
        parts: list[Node] = []
        literal: list[str] = []
        while True:
            character = self._peek()
            if not character:
                raise TemplateError(f"{_short(self.source[begin:])}: the quote {quote} is not closed")
            if character == "\\":
                slashes = len(self.source[self.at :]) - len(self.source[self.at :].lstrip("\\"))
                following = self.source[self.at + slashes : self.at + slashes + 2]
                special = following[:1] == quote or following == "${"
                literal.append("\\" * (slashes // 2 if special else slashes))
                self.at += slashes
                if special and slashes % 2:
                    escaped = quote if following[:1] == quote else "${"
                    literal.append(escaped)
                    self.at += len(escaped)
            elif character == quote:
                self.at += 1
                self.skip_space()
                return _joined(parts, literal, text=True)
            else:
                self._part(parts, literal)

    def _part(self, parts: list[Node], literal: list[str]) -> None:
        """Take an interpolation or one character of a text."""
        if self.source.startswith("${", self.at):
            _close(parts, literal)
            parts.append(self.interpolation())
        else:
            literal.append(self._peek())
            self.at += 1

    def _sequence(self) -> Node:
        self.at += 1
        items: list[Node] = []
        self.skip_space()
        while self._peek() != "]":
            items.append(self.element(",]"))
            if self._peek() == ",":
                self.at += 1
            elif self._peek() != "]":
                raise TemplateError(f"{_short(self.source)}: a ] is missing")
        self.at += 1
        self.skip_space()
        return Sequence(tuple(items))

    def _mapping(self) -> Node:
        self.at += 1
        items: list[tuple[Node, Node]] = []
        self.skip_space()
        while self._peek() != "}":
            key = self.element(":,}")
            if self._peek() != ":":
                raise TemplateError(f"{_short(self.source)}: a mapping takes key: value")
            self.at += 1
            items.append((key, self.element(",}")))
            if self._peek() == ",":
                self.at += 1
                self.skip_space()
            elif self._peek() != "}":
                raise TemplateError(f"{_short(self.source)}: a }} is missing")
        self.at += 1
        self.skip_space()
        return Mapping(tuple(items))

    def _word(self, stops: str) -> Node:
        parts: list[Node] = []
        literal: list[str] = []
        escaped = False
        while (character := self._peek()) and character not in stops:
            if character == "\\" and self.source[self.at + 1 : self.at + 2] in _ESCAPED:
                literal.append(self.source[self.at + 1 : self.at + 2])
                escaped = True
                self.at += 2
            elif self.source.startswith("\\${", self.at):
                literal.append("${")
                self.at += 3
            else:
                self._part(parts, literal)
        if not parts:
            word = "".join(literal)
            return Literal(word.rstrip(" \t") if escaped else plain_value(word.strip()))
        if not escaped:
            literal = ["".join(literal).rstrip()]
        return _joined(parts, literal)

    def skip_space(self) -> None:
        while self._peek() in (" ", "\t", "\n"):
            self.at += 1

    def _peek(self) -> str:
        return self.source[self.at : self.at + 1]


def _close(parts: list[Node], literal: list[str]) -> None:
    text = "".join(literal)
    if text:
        parts.append(Literal(text))
    literal.clear()


def _joined(parts: list[Node], literal: list[str], *, text: bool = False) -> Node:
    """Return one node; a single interpolation keeps its type unless ``text`` is wanted."""
    _close(parts, literal)
    if not parts:
        return Literal("")
    if len(parts) == 1 and (isinstance(parts[0], Literal) or not text):
        return parts[0]
    return Joined(tuple(parts))


def _short(source: str) -> str:
    return repr(source if len(source) <= 100 else source[:97] + "…")
