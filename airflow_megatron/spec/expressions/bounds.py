"""Bounds on what the expressions of one spec may cost: work, and the size of what they make.

Expressions of all languages run in the process that reads the spec, so one that takes for ever, or fills the memory,
harms everybody. Sizes are measured before something is made. Work is counted, not timed, so that a spec that was good
once is good on a busy machine too: a step for each value that a function goes through. The allowance grows with the
number of evaluations: a large sweep has many cheap ones, a bomb a few dear ones.
"""

from __future__ import annotations

from typing import Any, Final

from airflow_megatron.errors import AirflowMegatronError

MAX_STEPS: Final = 20_000_000
"""Steps of all expressions of a spec, some two seconds of processor time."""
STEPS_EACH: Final = 500
"""Further steps for each evaluation."""
_SCALARS: Final = frozenset({int, float, bool, type(None)})


class TooMuchWorkError(AirflowMegatronError, ValueError):
    """Expressions that take too many steps."""


class _Account:
    """What the expressions of the spec that this process reads have cost, and may cost."""

    steps = 0
    allowed = MAX_STEPS


_account = _Account()


def begin_spec() -> None:
    """Start a new account: another spec is read."""
    _account.steps, _account.allowed = 0, MAX_STEPS


def begin_evaluation() -> None:
    """Count an evaluation."""
    _account.allowed += STEPS_EACH


def charge(*values: Any) -> None:
    """Count the work of going through values.

    :raises TooMuchWorkError: if the spec has used up its steps
    """
    steps = 1
    for value in values:
        if isinstance(value, str):
            steps += len(value) // 16
        elif isinstance(value, list | tuple | dict | set):
            items, text = nested_size(value, MAX_STEPS, MAX_STEPS)
            steps += items + text // 16
    _account.steps += steps
    if _account.steps > _account.allowed:
        raise TooMuchWorkError("the expressions of this file take too much time together")


def nested_size(value: Any, most_items: int, most_text: int) -> tuple[int, int]:
    """Return how many items and characters are in nested lists and mappings, each as often as it is referred to.

    Counting ends soon after one of the bounds is passed.

    :param most_items: of all lists and mappings together
    :param most_text: of all texts together
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
