"""YAML documents with YAML 1.2 scalars and the position of every node.

PyYAML's C parser reads the text; this module composes its events, because PyYAML's composer resolves unwanted YAML 1.1
tags (0.3 s for 5,000 explicit points) and overflows the C stack on deep nesting. The scalars are resolved by the YAML
1.2 core schema, so ``1e-4`` is a float, ``on`` a string, ``06:00:00`` a string; underscores are allowed in numbers
(``2_000_000_000``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_named_file, read_spec_file

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which also reads text that PyYAML's own parser does not, such as ``[http://a/b?c]``."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_DECIMAL = re.compile(r"[-+]?[0-9][0-9_]*\Z")
_BASED = re.compile(r"0(?:x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_MAX_BITS: Final = 14_000
"""Maximum number of digits of a number, because Python prints at most 4,300."""

KeyPath = tuple[str | int, ...]

YAML_ENDINGS: Final = (".yaml", ".yml")
NO_SUCH_FILE: Final = "no such file"
"""Message about a spec that is not there."""
MAX_TEXT: Final = 32_000_000
"""Maximum number of characters of one document."""
MAX_NODES: Final = 1_000_000
"""Maximum number of scalars, lists and mappings that the documents of one spec hold, without those of aliases."""
MAX_REPEATED: Final = 300_000
"""Maximum number of scalars, lists and mappings that aliases repeat in the documents of one spec."""
_LEVELS_OF_A_VALUE: Final = 8
"""A value counts once for so many levels above it, because its key path takes time and memory."""
_SHORT_VALUE: Final = 8
MAX_DEPTH: Final = 64
"""Maximum nesting of lists and mappings."""
TOO_DEEP: Final = f"more than {MAX_DEPTH} levels of nesting"
_DEPTH_ERROR: Final = "maximum nesting depth"
"""What libyaml says where its own limit is exceeded, which it checks further ahead (PyYAML 6.0.4)."""


@dataclass
class ValueCount:
    """The values of the documents of one spec.

    :param written: those that the texts hold
    :param repeated: those that aliases repeat
    """

    written: int = 0
    repeated: int = 0


@dataclass
class YamlDocument:
    """A parsed YAML file.

    :param file: the path as given, used in messages
    :param data: plain dicts, lists and scalars
    :param positions: (line, column), 1-based, of the node at each key path; for a mapping entry, of its key
    :param text: the YAML text, for dialects that parse scalars by other rules
    :param files: the file of those positions that are not in ``file``
    :param sources: path → content of the other files that the document includes; a pinned sweep contains them
    :param withheld: value of an environment variable → its replacement in messages
    :param origin: the spec that includes this file; empty for a spec itself
    :param count: the number of its values, with those of the documents read before for the same spec
    """

    file: str
    data: Any
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    text: str = ""
    files: dict[KeyPath, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    count: ValueCount = field(default_factory=ValueCount)
    _last: dict[tuple[type, Any], KeyPath] = field(default_factory=dict, repr=False, compare=False)
    _indexed: int = field(default=0, repr=False, compare=False)

    def last_place(self, key: Any) -> KeyPath:
        """Return the place of the last node whose key is ``key``, empty if there is none."""
        if self._indexed != len(self.positions):
            self._last = {(type(path[-1]), path[-1]): path for path in self.positions if path}
            self._indexed = len(self.positions)
        return self._last.get((type(key), key), ())

    def problem(self, path: KeyPath, message: str, hint: str = "") -> Problem:
        """Return a problem at ``path``, or at the nearest enclosing node that has a position."""
        for value in sorted(self.withheld, key=len, reverse=True):
            message = _without(message, value, self.withheld[value])
            hint = _without(hint, value, self.withheld[value])
        for length in range(len(path), -1, -1):
            position = self.positions.get(path[:length])
            if position is not None:
                return Problem(self.files.get(path[:length], self.file), *position, message, hint)
        return Problem(self.file, 0, 0, message, hint)

    def read(self, path: str) -> str:
        """Return the text of another file, named relative to this document's folder.

        :raises OSError: if it cannot be read
        :raises NamedFileError: if the document may not name it
        """
        full = str(Path(self.file).parent / path)
        if full not in self.sources:
            self.sources[full] = read_named_file(path, self.file, self.origin)
        return self.sources[full]

    def withhold(self, name: str, value: str) -> None:
        """Keep the value of an environment variable out of messages."""
        if len(value) > 2:  # shorter values would occur in every word
            for form in (value, repr(value)[1:-1]):
                self.withheld[form] = f"${{oc.env:{name}}}"


def _without(text: str, value: str, replacement: str) -> str:
    """Return a text in which a value is replaced; a short one (``gpu``) only where it is no part of a word."""
    if len(value) >= _SHORT_VALUE or value not in text:
        return text.replace(value, replacement)
    return re.sub(rf"(?<![A-Za-z]){re.escape(value)}(?![A-Za-z])", lambda _: replacement, text)


def leaves(node: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values of a document that are neither mappings nor lists, with their places."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, (*path, index))
    else:
        yield path, node


def value_at(data: Any, path: KeyPath) -> Any:
    """Return the value at a place of a document; None without one."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def plain_scalar(text: str) -> Any:
    """Resolve an unquoted scalar by the YAML 1.2 core schema, with underscores allowed in numbers.

    :raises ValueError: for a number that is malformed, or has more digits than Python prints
    """
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] not in "+-.0123456789":
        return text
    if _DECIMAL.match(text):
        return int(text.replace("_", ""))
    if _BASED.match(text):
        number = int(text.replace("_", ""), 0)
        if number.bit_length() > _MAX_BITS:
            raise ValueError("a number of too many digits")
        return number
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    if _INFINITE.match(text):
        return float(text.replace(".", "", 1))
    if text in _NAN:
        return float("nan")
    return text


def load_yaml_text(text: str, file: str, count: ValueCount | None = None) -> YamlDocument:
    """Parse one YAML document.

    :param count: values of the documents read before for the same spec; those of this one are added
    :raises SpecError: if the text is not YAML, is empty, repeats a key, has a key that is not a plain scalar, or is
        too large or too deep
    """
    if len(text) > MAX_TEXT:
        raise SpecError(Problem(file, 0, 0, f"the file is longer than {MAX_TEXT} characters"))
    try:
        count = ValueCount() if count is None else count
        root = _composed(text, file, count)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise SpecError(yaml_problem(error, file, text)) from error
    if root is None:
        raise SpecError(Problem(file, 1, 1, "the file is empty"))
    document = YamlDocument(file, None, text=text, count=count)
    construction = _Construction(document)
    document.data = construction.value(root, ())
    if construction.problems:
        raise SpecError(construction.problems)
    return document


def yaml_problem(error: yaml.YAMLError | UnicodeEncodeError, file: str, text: str) -> Problem:
    """Return the problem that PyYAML has with a text: its place, and what to write instead."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return _unreadable(file, text) or Problem(file, 1, 1, f"not valid YAML: {error}")
    what = " ".join(part for part in (error.context, error.problem) if part)
    begun = error.context_mark is not None and any(of in what for of in _UNFINISHED)
    mark = error.context_mark if begun else error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    if _DEPTH_ERROR in what:
        return Problem(file, line, column, TOO_DEEP)
    lines = text.split("\n")
    wrong = lines[line - 1] if 0 < line <= len(lines) else ""
    return Problem(file, line, column, f"not valid YAML: {what}", _yaml_hint(what, wrong, column - 1))


def _unreadable(file: str, text: str) -> Problem | None:
    """Return the problem of the first character that no YAML file may contain (YAML 1.2, ``c-printable``)."""
    found = _UNPRINTABLE.search(text)
    if found is None:
        return None
    before = text[: found.start()]
    line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
    escape = found[0].encode("unicode_escape").decode("ascii")
    message = f"not valid YAML: a character that cannot stand in a file: {escape}"
    hint = (
        "remove it"
        if "\ud800" <= found[0] <= "\udfff"
        else f'remove it, or write "{escape}" in double quotes'
    )
    return Problem(file, line, column, message, hint)


@dataclass(slots=True, eq=False)
class _Node:
    """A scalar, a sequence (``items``) or a mapping (``items``: key, value, key, value, …)."""

    line: int
    column: int
    kind: Literal["scalar", "sequence", "mapping"]
    text: str = ""
    plain: bool = False
    items: list[_Node] = field(default_factory=list)
    constructed: bool = False


def _weight(level: int) -> int:
    return 1 + level // _LEVELS_OF_A_VALUE


def _too_many(file: str, line: int, column: int, what: str, most: int) -> SpecError:
    hint = (
        f"a value below {_LEVELS_OF_A_VALUE} levels counts twice, below {2 * _LEVELS_OF_A_VALUE} three times"
    )
    return SpecError(Problem(file, line, column, f"{what} more than {most} values", hint))


def _composed(text: str, file: str, count: ValueCount) -> _Node | None:
    """Return the root node of a document, None if it is empty; aliases are replaced by the nodes to which they
    refer.
    """
    root: _Node | None = None
    open_nodes: list[_Node] = []
    anchors: dict[str, _Node] = {}
    event: Any
    for event in yaml.parse(text, Loader=LOADER):
        kind = type(event)
        if kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
            open_nodes.pop()
            continue
        mark = event.start_mark
        place = (mark.line + 1, mark.column + 1)
        if kind is yaml.ScalarEvent:
            node = _Node(*place, "scalar", event.value, not event.style)
        elif kind is yaml.SequenceStartEvent:
            node = _Node(*place, "sequence")
        elif kind is yaml.MappingStartEvent:
            node = _Node(*place, "mapping")
        elif kind is yaml.AliasEvent:
            if event.anchor not in anchors:
                raise SpecError(Problem(file, *place, f"not valid YAML: there is no anchor &{event.anchor}"))
            node = anchors[event.anchor]
        elif kind is yaml.DocumentStartEvent and root is not None:
            raise SpecError(Problem(file, *place, "not valid YAML: more than one document", "keep one"))
        else:
            continue
        if kind is not yaml.AliasEvent and event.anchor is not None:
            anchors[event.anchor] = node
        is_key = bool(open_nodes) and open_nodes[-1].kind == "mapping" and not len(open_nodes[-1].items) % 2
        if kind is not yaml.AliasEvent and not is_key:
            count.written += _weight(len(open_nodes))
            if count.written > MAX_NODES:
                raise _too_many(file, *place, "the document holds", MAX_NODES)
        if open_nodes:
            open_nodes[-1].items.append(node)
        else:
            root = node
        if kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
            open_nodes.append(node)
            if len(open_nodes) > MAX_DEPTH:
                raise SpecError(Problem(file, *place, TOO_DEEP))
    return root


def load_yaml_file(path: Path | str) -> YamlDocument:
    """Read and parse a YAML file.

    :raises SpecError: if the file cannot be read or parsed
    """
    try:
        text = read_spec_file(path)
    except FileNotFoundError as error:
        raise SpecError(Problem(str(path), 0, 0, NO_SUCH_FILE)) from error
    except NamedFileError as error:
        raise SpecError(Problem(str(path), 0, 0, f"cannot be read: {error}", error.hint)) from error
    except OSError as error:
        raise SpecError(Problem(str(path), 0, 0, f"cannot be read: {error.strerror}")) from error
    except ValueError as error:  # a NUL in the name
        raise SpecError(Problem(str(path), 0, 0, f"cannot be read: {error}")) from error
    return load_yaml_text(text, str(path))


_UNFINISHED: Final = ("simple key", "quoted scalar", "flow mapping", "flow sequence")
"""What PyYAML finds wrong where something else begins: the error is where it began."""


def _yaml_hint(what: str, line: str, column: int) -> str:
    """Return what to write instead.

    :param line: the line of the error
    :param column: its column in it, from 0
    """
    if "\\t" in what or "tab" in what or "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces"
    if "{{" in line and "quoted scalar" not in what:
        return 'quote expressions: "{{ … }}"'
    if "mapping values are not allowed" in what:
        if ":" in line[:column]:
            return "quote values that contain ': '"
        return (
            "indent the keys of one section equally; the line above must have ': ' (colon, space) after its key, or end"
            " with ':' if it begins a section"
        )
    if "simple key" in what:
        return "write key: value, with a space after the colon"
    if "quoted scalar" in what:
        return "close the quote"
    if "flow mapping" in what or "flow sequence" in what:
        return "close the bracket, and separate the items with commas"
    if "cannot start any token" in what:
        return "quote the value"
    if "block mapping" in what:
        return "indent the keys of one section equally, and quote a value as a whole"
    return ""


class _Construction:
    """Constructor of plain values from nodes, which records the position of each."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.positions = document.positions
        self.problems: list[Problem] = []
        self.within: list[_Node] = []

    def value(self, node: _Node, path: KeyPath) -> Any:
        """Return the value of a node.

        :raises SpecError: if aliases make the document too large or too deep
        """
        if node.constructed:
            self.document.count.repeated += _weight(len(path))
            if self.document.count.repeated > MAX_REPEATED:
                raise _too_many(self.document.file, node.line, node.column, "aliases repeat", MAX_REPEATED)
        node.constructed = True
        if path not in self.positions:
            self.positions[path] = (node.line, node.column)
        if "\0" in node.text:
            self.problems.append(self._problem(node, "text cannot hold a NUL character", "remove it"))
        if node.kind == "scalar":
            return self._scalar(node) if node.plain else node.text
        if node in self.within:
            raise SpecError(self._problem(node, "an alias is inside the node to which it refers"))
        if len(self.within) >= MAX_DEPTH:
            raise SpecError(self._problem(node, TOO_DEEP))
        self.within.append(node)
        value = (
            [self.value(item, (*path, index)) for index, item in enumerate(node.items)]
            if node.kind == "sequence"
            else self._mapping(node, path)
        )
        self.within.pop()
        return value

    def _mapping(self, node: _Node, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in zip(node.items[::2], node.items[1::2], strict=True):
            if key_node.kind != "scalar":
                hint = 'quote expressions: "{{ … }}"' if key_node.kind == "mapping" else ""
                self.problems.append(self._problem(key_node, "a key must be a plain word", hint))
                continue
            key = key_node.text
            if key == "<<" and key_node.plain:
                merged |= self._merged(value_node, path)
                continue
            if key in result:
                self.problems.append(self._problem(key_node, f"key {key!r} is given twice", "remove one"))
                continue
            self.positions[(*path, key)] = (key_node.line, key_node.column)
            result[key] = self.value(value_node, (*path, key))
        return {**merged, **result} if merged else result

    def _merged(self, node: _Node, path: KeyPath) -> dict[str, Any]:
        """Return the entries of a ``<<`` merge key; earlier mappings of a list have precedence (YAML merge type)."""
        entries: dict[str, Any] = {}
        for item in reversed(node.items if node.kind == "sequence" else [node]):
            value = self.value(item, path)
            if isinstance(value, dict):
                entries |= value
            else:
                self.problems.append(self._problem(item, "'<<' takes a mapping"))
        return entries

    def _scalar(self, node: _Node) -> Any:
        try:
            return plain_scalar(node.text)
        except ValueError:
            self.problems.append(self._problem(node, "the number is malformed or too long", "quote text"))
            return None

    def _problem(self, node: _Node, message: str, hint: str = "") -> Problem:
        return Problem(self.document.file, node.line, node.column, message, hint)
