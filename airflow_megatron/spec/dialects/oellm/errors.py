"""Errors of the points of an oellm-autoexp sweep, and their places in the file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.quantities import list_index
from airflow_megatron.spec.documents.yaml_document import MAX_NODES, leaves, value_at
from airflow_megatron.spec.foreign.interpolation.configuration import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_megatron.spec.dialects.oellm.sweep import SweepPoint
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument


class JobError(AirflowMegatronError, ValueError):
    """A point that cannot become a job.

    :param message: what is wrong
    :param key: dotted configuration key at fault
    :param hint: what to write instead
    """

    def __init__(self, message: str, key: str, hint: str = "") -> None:
        self.key, self.hint = key, hint
        self.parameters: Mapping[str, Any] = {}
        """Parameters of the point."""
        super().__init__(message)


class SiblingError(AirflowMegatronError, ValueError):
    """A sibling that does not exist, or siblings that wait for each other.

    :param message: what is wrong
    :param point: the point that refers to it
    :param hint: what to write instead
    :param stage: as the reference at fault names it
    """

    def __init__(self, message: str, point: SweepPoint, hint: str = "", stage: str = "") -> None:
        self.point, self.hint = point, hint
        self.reference = f"sibling.{stage}." if stage else ""
        super().__init__(message)


class FilePlaces:
    """Places of keys and texts in a configuration.

    :param document: the YAML behind it
    :param sections: its keys at the top
    """

    def __init__(self, document: YamlDocument, sections: Collection[str]) -> None:
        self._document, self._sections = document, sections

    def problem(self, error: ConfigurationError | JobError | SiblingError, point: str = "") -> Problem:
        """Return an error with its place in the document."""
        message = f"point {point}: {error}" if point else str(error)
        if isinstance(error, ConfigurationError):
            path = self._of_text(error.text)
            if error.text and error.text not in message:
                message = f"{message}, in {error.text[:200]!r}"
            return self._document.problem(path, message, error.hint)
        if isinstance(error, JobError):
            path = self.of_value(error.key, error.parameters) or self.of_key(error.key)
        else:
            path = self._holding(error.reference) if error.reference else ()
        return self._document.problem(path or ("sweep",), message, error.hint)

    def warning(self, text: str) -> Problem:
        """Return a warning with the place of the dotted key or the value that it begins with, or that of ``job``."""
        key = re.split(r"[:,] ", text, maxsplit=1)[0]
        known = key.partition(".")[0] in self._sections and re.fullmatch(r"[\w.]+", key)
        held = (path for path, value in leaves(self._document.data) if value == key)
        return self._document.problem(self.of_key(key) if known else next(held, ("job",)), text)

    def warning_at(self, key: str, text: str) -> Problem:
        """Return a warning with the place of a dotted key."""
        return self._document.problem(self.of_key(key), text)

    def warning_beside(self, held: str, text: str) -> Problem:
        """Return a warning with the place of the first value that holds a text."""
        return self._document.problem(self._holding(held), text)

    def _holding(self, text: str) -> KeyPath:
        held = leaves(self._document.data)
        return next((path for path, value in held if isinstance(value, str) and text in value), ())

    def _of_text(self, text: str) -> KeyPath:
        if text:
            for path, value in leaves(self._document.data):
                if value == text or (isinstance(value, str) and value.replace("\\${", "${") == text):
                    return path
        return ("sweep",)

    def of_value(self, key: str, parameters: Mapping[str, Any]) -> KeyPath:
        """Return the place of the value that a point gets for a dotted key; empty if the file gives it none.

        A value of the sweep is one of a mapping whose other values the point has too, its stage among them.

        :param parameters: of the point
        """
        path = tuple(key.split("."))
        if key not in parameters:
            return path if path in self._document.positions else ()
        places = [
            (place, value_at(self._document.data, place[:-1]))
            for place in self._document.positions
            if place and place[0] == "sweep" and place[-1] == key
        ]
        found = [
            (place, around)
            for place, around in places
            if isinstance(around, dict) and _gives(around.get(key), parameters[key])
        ]
        of_point = (
            place
            for place, around in found
            if all(_gives(value, parameters[name]) for name, value in around.items() if name in parameters)
        )
        return next(of_point, found[0][0] if found else ())

    def of_key(self, key: str) -> KeyPath:
        """Return the place of a dotted key, of a swept value of it, or else of the section that would hold it."""
        whole: KeyPath = tuple(
            part if (index := list_index(part, MAX_NODES)) is None else index for part in key.split(".")
        )
        for length in range(len(whole), 0, -1):
            path = whole[:length]
            dotted = ".".join(map(str, path))
            for swept in self._document.positions:
                if swept and swept[0] == "sweep" and f"{swept[-1]}.".startswith(f"{dotted}."):
                    return swept
            if path in self._document.positions:
                return path
        return ()


def _gives(given: Any, value: Any) -> bool:
    """Return whether what a sweep gives a key, one value or a list of values, is or has the value of a point."""
    return bool(given == value) or (isinstance(given, list) and value in given)
