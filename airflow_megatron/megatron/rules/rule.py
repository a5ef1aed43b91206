"""Rules as data: the violated condition, the message, the hint, and the place where upstream refuses it."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem
from airflow_megatron.megatron.rules.noted_settings import read_by
from airflow_megatron.megatron.rules.settings import DERIVED
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_megatron.megatron.rules.settings import Settings

VALIDATE: Final = "megatron/training/arguments.py validate_args"
CONFIG: Final = "megatron/core/transformer/transformer_config.py TransformerConfig.__post_init__"
FROM_ARGS: Final = "megatron/training/arguments.py core_transformer_config_from_args"
PARALLEL_CONFIG: Final = "megatron/core/model_parallel_config.py ModelParallelConfig.__post_init__"
MICROBATCHES: Final = "megatron/core/num_microbatches_calculator.py"
_LARGE: Final = 2**63


@dataclass(frozen=True, slots=True)
class Rule:
    """One assertion of upstream.

    :param name: short, stable name
    :param broken: returns whether the settings violate the rule
    :param message: the problem; ``{name}`` is replaced by a setting's value
    :param hint: what to write instead, as text with ``{name}`` or as a function of the settings
    :param source: upstream file and function
    :param since: first release (major, minor) that has the rule
    :param until: first release that no longer has it
    :param final: whether later rules cannot be checked if this one is violated
    """

    name: str
    broken: Callable[[Settings], object]
    message: str
    hint: str | Callable[[Settings], str]
    source: str = VALIDATE
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)
    final: bool = False

    def problem(self, settings: Settings) -> ArgumentProblem:
        """Return the message for settings that violate the rule."""
        hint = self.hint(settings) if callable(self.hint) else self.hint.format_map(vars(settings))
        shown = tuple(field for _, field, *_ in Formatter().parse(self.message) if field)
        message, read = self.message.format_map(vars(settings)), read_by(self.broken, settings)
        return ArgumentProblem(self.name, message, hint, self.source, shown, read)


@dataclass(frozen=True, slots=True)
class Derive:
    """A step between rules that sets values which upstream derives from the arguments at that point.

    :param step: changes the settings
    :param since: first release (major, minor) that does it
    :param until: first release that no longer does it
    """

    step: Callable[[Settings], None]
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)


Topic = tuple["Rule | Derive", ...]


class RuleBook:
    """Topics in upstream's order, for any release."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        """Concatenate the topics."""
        self._items = [item for topic in topics for item in topic]
        self._by_release: dict[tuple[int, ...], list[tuple[Callable[[Settings], object], Rule | None]]] = {}

    def __iter__(self) -> Iterator[Rule | Derive]:
        return iter(self._items)

    def broken_by(self, settings: Settings) -> list[ArgumentProblem]:
        """Check every rule, in order.

        :param settings: the values; derivations change them.
        :returns: the violated rules, up to the first ``final`` one, or one whose numbers cannot be calculated with.
        """
        problems: list[ArgumentProblem] = []
        for call, rule in self._of(settings.release[:2]):
            try:
                if call(settings) and rule is not None:
                    problems.append(rule.problem(settings))
                    if rule.final:
                        break
            except ArithmeticError as error:
                problems.append(_not_calculated(call, settings, error))
                break
        return problems

    def _of(self, release: tuple[int, ...]) -> list[tuple[Callable[[Settings], object], Rule | None]]:
        if release not in self._by_release:
            self._by_release[release] = [
                (item.broken, item) if isinstance(item, Rule) else (item.step, None)
                for item in self._items
                if item.since <= release < item.until
            ]
        return self._by_release[release]


def _not_calculated(
    call: Callable[[Settings], object], settings: Settings, error: ArithmeticError
) -> ArgumentProblem:
    """Return the problem of numbers with which a rule, and upstream's own code, cannot calculate."""
    values = object.__getattribute__(settings, "__dict__")
    read = [name for name in read_by(call, settings) if name not in DERIVED]
    odd = [name for name in read if _is_odd(values.get(name))]
    words = [f"--{name.replace('_', '-')} {shown_value(values[name])}" for name in odd or read]
    return ArgumentProblem(
        "value.calculation",
        f"upstream cannot calculate with {', '.join(words)}: {error}",
        "values other than 0" if isinstance(error, ZeroDivisionError) else "smaller values",
        VALIDATE,
        tuple(odd),
        tuple(read),
    )


def _is_odd(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not 0 < abs(value) < _LARGE
