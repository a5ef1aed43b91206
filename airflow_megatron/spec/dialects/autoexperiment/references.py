r"""References of OmegaConf in AutoExperiment files: ``${key}``, ``${a.b}``, ``${.sibling}``, ``${oc.env:NAME}``.

A value that is one whole reference takes the referenced value, mappings and lists included; a reference inside text
is replaced by its text. ``\${`` is a literal ``${``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.foreign.interpolation.configuration import (
    MISSING,
    Configuration,
    ConfigurationError,
    MissingNameError,
    ResolutionContext,
)
from airflow_megatron.spec.foreign.omegaconf_yaml import load_omegaconf_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

_MAX_VALUES: Final = 300_000
_MAX_TEXT: Final = 262_144


def load_autoexperiment_yaml(
    text: str, file: str, environment: Mapping[str, str]
) -> tuple[YamlDocument, list[Problem]]:
    """Read a document as AutoExperiment does.

    :param text: the YAML
    :param file: its name in messages
    :param environment: what ``${oc.env:NAME}`` reads
    :return: the document with its references resolved, and warnings about what is easily misread
    :raises SpecError: if it is not YAML, too deep, too large, or a reference cannot be resolved
    """
    document, warnings = load_omegaconf_yaml(text, file)
    references = _References(document, environment)
    document.data = references.value(document.data, ())
    return document, [*warnings, *references.warnings]


class _References:
    """Resolves the references of one document."""

    def __init__(self, document: YamlDocument, environment: Mapping[str, str]) -> None:
        self.document = document
        self.context = ResolutionContext(environment, document=document, is_plain=True)
        self.configuration = Configuration(document.data, self.context)
        self.warnings: dict[Problem, None] = {}
        self.count = 0

    def value(self, raw: Any, path: KeyPath) -> Any:
        """Return the value at a place, with every reference in it replaced.

        :raises SpecError: on a reference to nothing, a malformed or circular one, and on ``???``
        """
        if isinstance(raw, dict):
            # a key that is no text is refused later
            return {
                key: self.value(item, (*path, key)) if isinstance(key, str) else item
                for key, item in raw.items()
            }
        if isinstance(raw, list):
            return [self.value(item, (*path, index)) for index, item in enumerate(raw)]
        if not isinstance(raw, str):
            return raw
        if raw == MISSING:
            raise self._error(path, "??? stands for a value that has to be given", "write the value")
        return self._resolved(path) if "${" in raw else raw

    def _resolved(self, path: KeyPath) -> Any:
        self.context.warnings.clear()
        try:
            value = self.configuration.value(tuple(map(str, path)))
        except MissingNameError as error:
            raise self._error(
                path, str(error), error.hint or "a shell variable is written \\${NAME}"
            ) from error
        except ConfigurationError as error:
            raise self._error(path, str(error), error.hint) from error
        for text in self.context.warnings:
            self.warnings[self.document.problem(path, text)] = None
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise self._error(path, "references make a text that is too long", "shorten it")
        self._count(value, path)
        return value

    def _count(self, value: Any, path: KeyPath) -> None:
        self.count += 1
        if self.count > _MAX_VALUES:
            raise self._error(path, f"references make more than {_MAX_VALUES:,} values", "write them out")
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._count(item, path)

    def _error(self, path: KeyPath, message: str, hint: str) -> SpecError:
        return SpecError(self.document.problem(path, message, hint))
