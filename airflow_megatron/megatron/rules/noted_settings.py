"""Settings that note which of them a rule reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.rules.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_megatron.megatron.rules.settings import Machine

#: read while settings are made, before anything is noted
_READ_BEFORE: Final = ("global_batch_size",)


class NotedSettings(Settings):
    """Settings that note which of them are read; :func:`reads_of` returns them."""

    def __init__(self, release: str, values: Mapping[str, Any], world_size: int, machine: Machine) -> None:
        super().__init__(release, values, world_size, machine)
        object.__setattr__(self, "_reads", dict.fromkeys(_READ_BEFORE))

    def __getattribute__(self, name: str) -> Any:
        content = object.__getattribute__(self, "__dict__")
        if "_reads" not in content:
            return object.__getattribute__(self, name)
        if name == "__dict__":
            return _NotedValues(content)
        content["_reads"][name] = None
        return object.__getattribute__(self, name)


class _NotedValues(Mapping[str, Any]):
    """What ``vars`` gives of noted settings."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def __getitem__(self, name: str) -> Any:
        self._content["_reads"][name] = None
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        self._content["_reads"].update(dict.fromkeys(self._content))
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


def reads_of(settings: Settings) -> Collection[str]:
    """Return what has been read of noted settings, in the order of the first reads."""
    reads: dict[str, None] = object.__getattribute__(settings, "__dict__")["_reads"]
    return reads.keys()


def read_by(call: Callable[[Settings], object], settings: Settings) -> tuple[str, ...]:
    """Return the names of the settings that a function reads, up to a failing calculation, in the order of the first
    reads.
    """
    noted = object.__new__(NotedSettings)
    content = object.__getattribute__(noted, "__dict__")
    content.update(object.__getattribute__(settings, "__dict__"), _reads={})
    with contextlib.suppress(ArithmeticError):
        call(noted)
    return tuple(reads_of(noted))
