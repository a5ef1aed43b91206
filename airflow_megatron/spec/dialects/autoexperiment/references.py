r"""References of OmegaConf in AutoExperiment files: ``${key}``, ``${a.b}``, ``${.sibling}``, ``${oc.env:NAME}``.

A value that is one whole reference takes the referenced value, mappings and lists included; a reference inside text
is replaced by its text. ``\${`` is a literal ``${``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.trust.permitted_variables import (
    SETTING,
    PermittedVariables,
    only_for_person,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

_MAX_CHAIN = 64
_MAX_VALUES = 300_000
_MAX_TEXT = 262_144
_ENVIRONMENT = re.compile(r"oc\.env\s*:\s*(?P<name>[^,\s]+)\s*(?:,(?P<default>.*))?\Z", re.DOTALL)
_NODE = re.compile(r"(?P<up>\.*)(?P<path>[^.\[\]\s]+(?:\.[^.\[\]\s]+|\[[^.\[\]\s]+\])*)\Z")
_MISSING = "???"


def resolve_references(document: YamlDocument, environment: Mapping[str, str]) -> tuple[Any, list[Problem]]:
    """Return the document's data with every reference replaced, and warnings about the environment.

    :raises SpecError: on a reference to nothing, a malformed or circular one, and on ``???``
    """
    references = _References(document, environment)
    return references.value(document.data, (), ()), references.warnings


class _References:
    """Resolves the references of one document."""

    def __init__(self, document: YamlDocument, environment: Mapping[str, str]) -> None:
        self.document, self.environment = document, environment
        self.count = self.depth = 0
        self.warnings: list[Problem] = []

    def value(self, raw: Any, path: KeyPath, chain: tuple[KeyPath, ...]) -> Any:
        self.count += 1
        if self.count > _MAX_VALUES:
            raise self._error(path, f"references make more than {_MAX_VALUES:,} values", "write them out")
        if isinstance(raw, dict):
            return {key: self.value(item, (*path, key), chain) for key, item in raw.items()}
        if isinstance(raw, list):
            return [self.value(item, (*path, index), chain) for index, item in enumerate(raw)]
        if not isinstance(raw, str):
            return raw
        if raw == _MISSING:
            raise self._error(path, "??? stands for a value that has to be given", "write the value")
        return self._text(raw, path, chain) if "${" in raw else raw

    def _text(self, raw: str, path: KeyPath, chain: tuple[KeyPath, ...]) -> Any:
        parts: list[Any] = []
        position = 0
        while (start := raw.find("${", position)) >= 0:
            slashes = start - len(raw[position:start].rstrip("\\")) - position
            literal = raw[position : start - slashes] + "\\" * (slashes // 2)
            if slashes % 2:
                parts.append(literal + "${")
                position = start + 2
                continue
            end = self._closing(raw, start + 2, path)
            if literal:
                parts.append(literal)
            found = self._reference(raw[start + 2 : end].strip(), path, chain)
            if start == 0 and end == len(raw) - 1:
                return found
            parts.append(found)
            position = end + 1
        parts.append(raw[position:])
        text = "".join(str(part) for part in parts)
        if len(text) > _MAX_TEXT:
            raise self._error(path, "references make a text that is too long", "shorten it")
        return text

    def _closing(self, raw: str, start: int, path: KeyPath) -> int:
        depth = 1
        for position in range(start, len(raw)):
            if raw[position] == "}":
                depth -= 1
                if depth == 0:
                    return position
            elif raw[position] == "{":
                depth += 1
        raise self._error(
            path, f"{raw[start - 2 :][:40]!r} has no closing brace", "write ${key}, or \\${ for text"
        )

    def _reference(self, body: str, path: KeyPath, chain: tuple[KeyPath, ...]) -> Any:
        if "${" in body:
            if self.depth >= _MAX_CHAIN:
                raise self._error(path, "references are nested too deeply", "refer to the value itself")
            self.depth += 1
            body = str(self._text(body, path, chain))
            self.depth -= 1
        variable = _ENVIRONMENT.match(body)
        if variable:
            return self._variable(variable["name"], variable["default"], path)
        if ":" in body:
            resolver = body.split(":", 1)[0]
            raise self._error(
                path, f"unknown resolver ${{{resolver}:…}}", "oc.env is the one that is read here"
            )
        match = _NODE.match(body)
        if not match:
            raise self._error(path, f"${{{body}}} is not a reference", "write ${key}, or \\${ for text")
        levels = len(match["up"])
        base: KeyPath = path[: len(path) - levels] if levels else ()
        target: KeyPath = base
        node: Any = self._at(base)
        for part in re.split(r"[.\[\]]+", match["path"].rstrip("]")):
            key, found = _child(node, part)
            if not found:
                known = [str(name) for name in node] if isinstance(node, dict) else []
                hint = did_you_mean(part, known) or "a shell variable is written \\${NAME}"
                raise self._error(path, f"${{{body}}} refers to nothing", hint)
            target = (*target, key)
            node = node[key]
        if target in chain or target == path[: len(target)]:
            ring = " → ".join(".".join(map(str, place)) for place in (*chain, path, target))
            raise self._error(path, f"references go in a circle: {ring}", "break the circle")
        if len(chain) > _MAX_CHAIN:
            raise self._error(path, "a chain of references is too long", "refer to the value itself")
        return self.value(node, target, (*chain, path))

    def _at(self, path: KeyPath) -> Any:
        node = self.document.data
        for part in path:
            node = node[part]
        return node

    def _variable(self, name: str, default: str | None, path: KeyPath) -> str | None:
        value = self.environment.get(name)
        if value is not None:
            self.document.withhold(name, value)
            if only_for_person(name):
                self._warn(
                    path, f"{name} is read from your environment; Airflow reads it where {SETTING} names it"
                )
            return value
        if default is None:
            raise self._error(path, *refusal(self.environment, name))
        if isinstance(self.environment, PermittedVariables) and not self.environment.permits(name):
            self._warn(path, f"{name} may not be read, so its default stands; {SETTING} can permit it")
        text = default.strip()
        if text in ("null", "Null", "NULL"):
            return None
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text

    def _warn(self, path: KeyPath, message: str) -> None:
        self.warnings.append(self.document.problem(path, message))

    def _error(self, path: KeyPath, message: str, hint: str) -> SpecError:
        return SpecError(self.document.problem(path, message, hint))


def _child(node: Any, part: str) -> tuple[Any, bool]:
    if isinstance(node, dict):
        if part in node:
            return part, True
        # keys that YAML read as numbers are written as text in a reference
        return next(
            ((key, True) for key in node if not isinstance(key, str) and str(key) == part), (part, False)
        )
    if isinstance(node, list) and re.fullmatch(r"-?[0-9]{1,9}", part):
        index = int(part)
        return index % len(node) if node else 0, -len(node) <= index < len(node)
    return part, False
