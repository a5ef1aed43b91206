"""Bounds on the work of the expressions of one spec, and on the size of their results.

Expressions of all languages run in the process that reads the spec, so an endless expression, or one that fills the
memory, would affect all users. Sizes are checked before a result is created. Work is counted, not timed, so that a
valid spec stays valid on a busy machine: each value that a function processes is a step. The limit grows with the
number of evaluations, because a large sweep has many cheap evaluations, and an attack a few expensive ones.
"""

from __future__ import annotations

from typing import Any, Final

from airflow_megatron.errors import AirflowMegatronError

MAX_STEPS: Final = 20_000_000
"""Maximum number of steps of all expressions of a spec, about two seconds of processor time."""
STEPS_EACH: Final = 500
"""Additional steps for each evaluation."""
STEPS_OF_A_PART: Final = 5
"""Steps for each part of an expression; an operator takes about 2 µs, a constant or a name less than 0.1 µs."""
_SCALARS: Final = frozenset({int, float, bool, type(None)})


class TooMuchWorkError(AirflowMegatronError, ValueError):
    """The expressions take too many steps."""


class _Account:
    """The used and permitted work for expressions of the current spec of this process."""

    steps = 0
    allowed = MAX_STEPS


_account = _Account()


def begin_spec() -> None:
    """Reset the account for another spec."""
    _account.steps, _account.allowed = 0, MAX_STEPS


def begin_evaluation(size: int = 0) -> None:
    """Count an evaluation.

    :param size: parts of the expression: names, constants, operators
    :raises TooMuchWorkError: if the spec has used up its steps
    """
    _account.allowed += STEPS_EACH
    _charge_steps(STEPS_OF_A_PART * size)


def charge_parts(count: int) -> None:
    """Count the work of evaluating parts of an expression, whatever values they have.

    :raises TooMuchWorkError: if the spec has used up its steps
    """
    _charge_steps(STEPS_OF_A_PART * count)


def charge(*values: Any) -> None:
    """Count the work of processing values.

    :raises TooMuchWorkError: if the spec has used all its steps
    """
    steps = 1 + STEPS_OF_A_PART * len(values)
    for value in values:
        if isinstance(value, str):
            steps += len(value) // 16
        elif isinstance(value, list | tuple | dict | set | frozenset):
            items, text = nested_size(value, MAX_STEPS, MAX_STEPS)
            steps += items + text // 16
    _charge_steps(steps)


def _charge_steps(steps: int) -> None:
    _account.steps += steps
    if _account.steps > _account.allowed:
        raise TooMuchWorkError("the expressions of this file take too much time together")


def nested_size(value: Any, most_items: int, most_text: int) -> tuple[int, int]:
    """Return the number of items and characters in nested lists and mappings, counting each reference.

    Counting ends soon after a bound is exceeded.

    :param most_items: bound on the items of all lists and mappings
    :param most_text: bound on the characters of all texts
    """
    items, text = 0, 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes):
            text += len(item)
            parts: list[Any] = []
        elif isinstance(item, list | tuple | set | frozenset):
            parts = list(item) if len(item) + items <= most_items else []
            items += len(item)
        elif isinstance(item, dict):
            parts = [*item, *item.values()] if len(item) + items <= most_items else []
            items += len(item)
        else:
            continue
        kinds = set(map(type, parts))
        if kinds == {str}:
            text += sum(map(len, parts))
        elif not kinds <= _SCALARS:
            pending += parts
        if items > most_items or text > most_text:
            break
    return items, text
