"""Checks of command lines that differ in a few values: values that no rule reads do not repeat the check.

Rules are functions of the settings only. Each check records the values that rules read. A command line that differs
only in other values, which the parser accepts, gives the same result and passes as well. Results of refused command
lines are not kept, because their problems contain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.noted_settings import NotedSettings, reads_of
from airflow_megatron.megatron.rules.settings import Settings
from airflow_megatron.megatron.validation.command_checks import first_iteration_problems, read_settings
from airflow_megatron.megatron.validation.value_ranges import is_in_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem
    from airflow_megatron.megatron.rules.command_line import CommandLineReader
    from airflow_megatron.megatron.rules.rule import RuleBook
    from airflow_megatron.megatron.rules.settings import Machine

_TRIALS: Final = 50
"""Notes that are taken although none has saved a check yet."""


class RepeatedChecks:
    """Checker of command lines of one release, on equal machines, with equal numbers of processes.

    :param flags: parser of the command lines
    :param first_iteration: see :func:`airflow_megatron.megatron.validation.command_checks.check`
    :param script: rules of another script than that for GPT, in place of those of the first iteration
    """

    def __init__(
        self,
        world_size: int,
        release: str,
        *,
        machine: Machine,
        first_iteration: bool,
        flags: CommandLineReader,
        script: RuleBook | None = None,
    ) -> None:
        self.world_size, self.release, self.machine = world_size, release, machine
        self.first_iteration, self.flags, self.script = first_iteration, flags, script
        self.notes = self.saved = 0
        # positions of values that no rule has read → the other words for which this is true
        self._passed: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
        self._taken: dict[tuple[str, str], bool] = {}

    def problems(self, words: Sequence[str]) -> list[ArgumentProblem]:
        """Return the result of :func:`airflow_megatron.megatron.validation.command_checks.check`."""
        for places in self._passed:
            if self._is_known(words, places):
                self.saved += 1
                return []
        takes_notes = self.notes - self.saved <= _TRIALS
        self.notes += takes_notes
        kind = NotedSettings if takes_notes else Settings
        problems, settings = read_settings(
            words, self.world_size, self.release, machine=self.machine, flags=self.flags, kind=kind
        )
        if settings is not None and not problems:
            problems = self._later_problems(settings)
        if isinstance(settings, NotedSettings) and not problems:
            places = tuple(self.flags.places_of_values(words, reads_of(settings)))
            self._passed.setdefault(places, set()).add(_without(words, places))
        return problems

    def _later_problems(self, settings: Settings) -> list[ArgumentProblem]:
        if self.script is not None:
            return self.script.broken_by(settings)
        return first_iteration_problems(settings) if self.first_iteration else []

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
    """Return the words with empty words at some positions."""
    kept = list(words)
    for place in places:
        kept[place] = ""
    return tuple(kept)
