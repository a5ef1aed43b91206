"""Serialization of triggers to Airflow's database."""

from __future__ import annotations

import inspect
from typing import Any

from airflow.triggers.base import BaseTrigger


class StoredArgumentsTrigger(BaseTrigger):
    """A trigger that keeps every keyword argument of its constructor, and its bases', in an attribute of that name."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and every argument."""
        names = [
            name
            for base in reversed(type(self).__mro__)
            if issubclass(base, StoredArgumentsTrigger) and "__init__" in vars(base)
            for name, parameter in inspect.signature(base.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}
