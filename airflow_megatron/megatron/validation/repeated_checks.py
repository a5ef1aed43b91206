"""Checks of command lines that differ in a few values: values that no rule reads do not repeat the check.

Rules are functions of the settings and nothing else. What a check read is noted; a command line whose other words are
the same, and whose own values the parser takes, would be read in the same way, and passes as well. Nothing is kept of
a command line that is refused: its problems name values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.rules.settings import Settings
from airflow_megatron.megatron.validation.command_checks import FIRST_ITERATION, check, read_settings
from airflow_megatron.megatron.validation.value_ranges import is_in_range, range_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem
    from airflow_megatron.megatron.rules.command_line import CommandLineReader
    from airflow_megatron.megatron.rules.settings import Machine

_TRIALS: Final = 50
"""Notes that are taken although none has saved a check yet."""
#: read while settings are made, before anything is noted
_READ_BEFORE: Final = frozenset({"global_batch_size"})


class _NotedSettings(Settings):
    """Settings that note which of them are read."""

    def __init__(self, release: str, values: Mapping[str, Any], world_size: int, machine: Machine) -> None:
        super().__init__(release, values, world_size, machine)
        object.__setattr__(self, "_reads", set(_READ_BEFORE))

    def __getattribute__(self, name: str) -> Any:
        content = object.__getattribute__(self, "__dict__")
        if "_reads" not in content:
            return object.__getattribute__(self, name)
        if name == "__dict__":
            return _NotedValues(content)
        content["_reads"].add(name)
        return object.__getattribute__(self, name)


class _NotedValues(Mapping[str, Any]):
    """What ``vars`` gives of noted settings."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def __getitem__(self, name: str) -> Any:
        self._content["_reads"].add(name)
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        self._content["_reads"].update(self._content)
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


class RepeatedChecks:
    """Checks command lines of one release, on equal machines, with equal numbers of processes.

    :param flags: reads the command lines
    :param first_iteration: see :func:`airflow_megatron.megatron.validation.check`
    """

    def __init__(
        self,
        world_size: int,
        release: str,
        *,
        machine: Machine,
        first_iteration: bool,
        flags: CommandLineReader,
    ) -> None:
        self.world_size, self.release, self.machine = world_size, release, machine
        self.first_iteration, self.flags = first_iteration, flags
        self.notes = self.saved = 0
        # places of values that no rule has read → the other words, with which that holds
        self._passed: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
        self._taken: dict[tuple[str, str], bool] = {}

    def problems(self, words: Sequence[str]) -> list[ArgumentProblem]:
        """Return what :func:`airflow_megatron.megatron.validation.check` does."""
        for places in self._passed:
            if self._is_known(words, places):
                self.saved += 1
                return []
        if self.notes - self.saved > _TRIALS:
            return check(
                words,
                self.world_size,
                self.release,
                machine=self.machine,
                first_iteration=self.first_iteration,
                flags=self.flags,
            )
        self.notes += 1
        problems, settings = read_settings(
            words, self.world_size, self.release, machine=self.machine, flags=self.flags, kind=_NotedSettings
        )
        if self.first_iteration and settings is not None and not problems:
            problems = FIRST_ITERATION.broken_by(settings) or range_problems(settings)
        if settings is not None and not problems:
            reads = object.__getattribute__(settings, "__dict__")["_reads"]
            places = tuple(self.flags.places_of_values(words, reads))
            self._passed.setdefault(places, set()).add(_without(words, places))
        return problems

    def _is_known(self, words: Sequence[str], places: tuple[int, ...]) -> bool:
        if places and places[-1] >= len(words):
            return False
        if _without(words, places) not in self._passed[places]:
            return False
        taken = self._taken
        for place in places:
            pair = words[place - 1], words[place]
            if not (taken[pair] if pair in taken else self._takes(*pair)):
                return False
        return True

    def _takes(self, flag: str, word: str) -> bool:
        taken = self.flags.takes(flag, word) and (not self.first_iteration or is_in_range(flag, word))
        self._taken[flag, word] = taken
        return taken


def _without(words: Sequence[str], places: tuple[int, ...]) -> tuple[str, ...]:
    """Return the words with those at some places left empty."""
    kept = list(words)
    for place in places:
        kept[place] = ""
    return tuple(kept)
