"""The values of a training's Megatron arguments, including the release's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable


class ArgumentValues:
    """Arguments by their names in Megatron's namespace.

    :param table: the trainer's arguments; other names are ignored
    :param given: values by ``dest`` or flag, None for one that is not given
    """

    def __init__(self, table: ArgumentTable, given: Mapping[str, Any]) -> None:
        self.table = table
        self._given: Mapping[str, Any] = {
            dest: value
            for dest, value in zip(table.dests(tuple(given)), given.values(), strict=True)
            if value is not None and dest
        }

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def changed(self, values: Mapping[str, Any]) -> ArgumentValues:
        """Return the arguments with other values for some of them.

        :param values: by ``dest`` or flag
        """
        return ArgumentValues(self.table, {**self._given, **ArgumentValues(self.table, values)._given})

    def value(self, name: str) -> Any:
        """Return the value of an argument, or the release's default if it is not given."""
        value = self._given.get(name)  # never None if it is given
        return self.table.default(name) if value is None else value

    def given(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Return the given values of some arguments; None for missing ones."""
        return tuple(map(self._given.get, names))

    def outside(self, groups: Collection[str]) -> dict[str, Any]:
        """Return the given values of the arguments that are in none of these groups of the parser's help."""
        return {
            name: value
            for name, value in self._given.items()
            if (argument := self.table.get(name)) and argument.group not in groups
        }

    def number(self, name: str) -> float | None:
        """Return the value of an argument as a number, None if there is none; whole numbers stay ``int``."""
        value = self.value(name)
        if value is None or type(value) is int:
            return value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return int(value) if value == value // 1 else value

    def count(self, name: str) -> int | None:
        """Return the value of an argument that is a count, None if it is missing, zero or not a whole number."""
        value = self.number(name)
        return value if isinstance(value, int) and value > 0 else None
