"""YAML read as OmegaConf reads it, which AutoExperiment and oellm-autoexp use; ``${…}`` stays as it is written.

Scalars follow YAML 1.1 as PyYAML resolves them (``yes``, ``on`` and ``off`` are booleans, ``010`` is octal, ``1:30`` is
base 60) with OmegaConf's two changes: ``1e-2`` is a float, and timestamps stay text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
import yaml.constructor
import yaml.resolver

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.yaml_document import MAX_DEPTH, TOO_DEEP, YamlDocument, yaml_problem

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.yaml_document import KeyPath

MAX_NUMBER = 1000
"""Characters of a number: one in base 60 takes time that grows with the square of them."""
MAX_NODES = 300_000
"""Nodes of a document after its aliases are expanded."""

_FLOAT = re.compile(
    r"""(?: [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
          | [-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
          | \.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
          | [-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
          | [-+]?\.(?:inf|Inf|INF)
          | \.(?:nan|NaN|NAN) )$""",
    re.VERBOSE,
)
_TAG = "tag:yaml.org,2002:"
_CBase: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_CBase):  # type: ignore[misc]  # PyYAML's C loader has no types
    """Composes nodes with OmegaConf's scalar rules."""


_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_KINDS = frozenset({"str", "int", "float", "bool", "null"})
_SCALARS: Any = yaml.constructor.SafeConstructor()


def load_omegaconf_yaml(
    text: str, file: str, *, text_keys: bool = False
) -> tuple[YamlDocument, list[Problem]]:
    """Read a document as OmegaConf does.

    :param text: the YAML
    :param file: its name in messages
    :param text_keys: whether every key is read as text, numbers and booleans too
    :return: the document, and warnings about scalars that are easily misread
    :raises SpecError: if it is not YAML, too deep or too large
    """
    reader = _Reader(file, text_keys=text_keys)
    root = reader.compose(text)
    document = YamlDocument(file, None, text=text)
    document.data = reader.construct(root, (), document)
    if reader.problems:
        raise SpecError(reader.problems)
    return document, reader.warnings


def take_over(own: YamlDocument, document: YamlDocument) -> None:
    """Give a document that was read again what is known of it: its files, and the places of ``--set`` values.

    :param own: as it was read here
    :param document: the same, as it was read first
    """
    own.sources, own.text = document.sources, document.text
    own.positions.update(document.positions)
    own.files.update(document.files)


class _Reader:
    """Builds plain data from nodes, collecting problems and warnings."""

    def __init__(self, file: str, *, text_keys: bool) -> None:
        self.file, self.text_keys = file, text_keys
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def compose(self, text: str) -> Any:
        try:
            self._check_depth(text)
            root = yaml.compose(text, Loader=_Loader)
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            raise SpecError(yaml_problem(error, self.file, text)) from error
        if root is None:
            raise SpecError(Problem(self.file, 1, 1, "the file is empty"))
        self._count(root, {})
        return root

    def _count(self, node: Any, counts: dict[int, int]) -> int:
        """Return the nodes below ``node`` with aliases expanded, each alias counted once.

        :raises SpecError: if they are too many, or an alias contains itself
        """
        known = counts.get(id(node))
        if known is None:
            counts[id(node)] = 0
            children = node.value if isinstance(node.value, list) else []
            known = 1
            for child in children:
                for part in child if isinstance(child, tuple) else (child,):
                    known += self._count(part, counts)
            counts[id(node)] = known
        if not 0 < known <= MAX_NODES:
            what = f"more than {MAX_NODES:,} values" if known else "an alias that contains itself"
            raise SpecError(self._problem(node, f"the document holds {what}", "write the values out"))
        return known

    def _check_depth(self, text: str) -> None:
        # the C composer recurses on the C stack; its event stream does not
        depth = 0
        for event in yaml.parse(text, Loader=_CBase):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise SpecError(self._problem(event, TOO_DEEP))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

    def construct(self, node: Any, path: KeyPath, document: YamlDocument) -> Any:
        """Return the plain value of ``node``; record the positions of its parts."""
        document.positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            if node.tag != f"{_TAG}seq":
                self.problems.append(self._problem(node, f"unknown YAML tag {node.tag}", "drop the tag"))
            return [self.construct(item, (*path, i), document) for i, item in enumerate(node.value)]
        if node.tag != f"{_TAG}map":
            self.problems.append(self._problem(node, f"unknown YAML tag {node.tag}", "drop the tag"))
        return self._mapping(node, path, document)

    def _mapping(self, node: Any, path: KeyPath, document: YamlDocument) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged |= self._merged(value_node, path, document)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(self._problem(key_node, "a key must be a plain word"))
                continue
            is_text = self.text_keys or key_node.tag in (f"{_TAG}str", f"{_TAG}value")
            key = key_node.value if is_text else self._scalar(key_node)
            if key in own:
                self.problems.append(self._problem(key_node, f"key {key!r} is given twice", "remove one"))
                continue
            document.positions[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            own[key] = self.construct(value_node, (*path, key), document)
        return {**merged, **own} if merged else own

    def _merged(self, node: Any, path: KeyPath, document: YamlDocument) -> dict[Any, Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        entries: dict[Any, Any] = {}
        for item in reversed(nodes):
            value = self.construct(item, path, document)
            if isinstance(value, dict):
                entries |= value
            else:
                self.problems.append(self._problem(item, "'<<' takes a mapping"))
        return entries

    def _scalar(self, node: Any) -> Any:
        text: str = node.value
        if len(text) > MAX_NUMBER and node.tag in (f"{_TAG}int", f"{_TAG}float"):
            self.problems.append(
                self._problem(node, f"a number of {len(text):,} characters", "quote it as text")
            )
            return text
        kind = node.tag.removeprefix(_TAG)
        if kind not in _KINDS:
            self.problems.append(
                self._problem(node, f"{node.tag} is not a YAML tag that is read", "drop the tag")
            )
            return text
        try:
            match kind:
                case "str":
                    return text
                case "int":
                    number = _SCALARS.construct_yaml_int(node)
                    self._warn_of_odd_number(node, number)
                    return number
                case "float":
                    return _SCALARS.construct_yaml_float(node)
                case "bool":
                    return _SCALARS.construct_yaml_bool(node)
                case "null":
                    return None
        except (ValueError, KeyError, IndexError, OverflowError):
            pass
        self.problems.append(self._problem(node, f"{text[:80]!r} is not a {node.tag}", "quote it"))
        return text

    def _warn_of_odd_number(self, node: Any, number: int) -> None:
        digits = node.value.lstrip("+-")
        if ":" in digits:
            what = "a number in base 60"
        elif len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB":
            what = "an octal number"
        else:
            return
        self.warnings.append(
            self._problem(node, f"{node.value} is read as {number}, {what}", "quote it to keep it as text")
        )

    def _problem(self, node: Any, message: str, hint: str = "") -> Problem:
        return Problem(self.file, node.start_mark.line + 1, node.start_mark.column + 1, message, hint)
