"""Bounds on the work of the expressions of one spec, and on the size of their results.

Expressions of all languages run in the process that reads the spec, so an endless expression, or one that fills the
memory, would affect all users. Sizes are checked before a result is created. Work is counted, not timed, so that a
valid spec stays valid on a busy machine: each value that a function processes is a step. The limit grows with the
number of evaluations, because a large sweep has many cheap evaluations, and an attack a few expensive ones.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.expressions.file_values import refuse_whole_file_values

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_STEPS: Final = 20_000_000
"""Maximum number of steps of all expressions of a spec, about two seconds of processor time."""
STEPS_EACH: Final = 500
"""Additional steps for each evaluation."""
STEPS_OF_A_PART: Final = 5
"""Steps for each part of an expression; an operator takes about 2 µs, a constant or a name less than 0.1 µs."""
STEPS_OF_A_TEMPLATE: Final = 2_000
"""Steps to compile a template string, in addition to those of its tokens."""
STEPS_OF_A_TOKEN: Final = 250
"""Steps to compile a token, about 25 µs."""
SCALARS: Final = frozenset({int, float, bool, type(None)})
_COLLECTIONS: Final[tuple[type, ...]] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_SMALL: Final = 64
"""Bits of a number whose arithmetic and text take no noticeable time."""
_MANY: Final = 100_000
_WIDTH: Final = re.compile(r"[%)][-#0 +]*([0-9]*)(?:\.([0-9]*))?")
"""Width and precision of a field of ``%``, behind the sign or the name in brackets."""


class TooMuchWorkError(AirflowMegatronError, ValueError):
    """The expressions take too many steps."""


class _Account:
    """The used and permitted work for expressions of the current spec of this process."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.steps, self.allowed = 0, MAX_STEPS
        self.compiled: dict[str, Any] = {}


_account = _Account()


def begin_spec() -> None:
    """Reset the account for another spec, or for expressions that are evaluated later."""
    _account.begin()


def compiled_for_spec() -> dict[str, Any]:
    """Return what was compiled for the current spec, by its text; the caller adds what it compiles.

    So the work of a spec is the same whatever specs this process has read before.
    """
    return _account.compiled


def begin_evaluation(size: int = 0) -> None:
    """Count an evaluation.

    :param size: parts of the expression: names, constants, operators
    :raises TooMuchWorkError: if the spec has used up its steps
    """
    _account.allowed += STEPS_EACH
    charge_steps(STEPS_OF_A_PART * size)


def charge_compilation(tokens: int) -> None:
    """Count the work of parsing and compiling a template string.

    :param tokens: its names, constants, operators and brackets
    :raises TooMuchWorkError: if the spec has used up its steps
    """
    charge_steps(STEPS_OF_A_TEMPLATE + STEPS_OF_A_TOKEN * tokens)


def charge_parts(count: int) -> None:
    """Count the work of evaluating parts of an expression, whatever values they have.

    :raises TooMuchWorkError: if the spec has used up its steps
    """
    charge_steps(STEPS_OF_A_PART * count)


def charge(*values: Any) -> None:
    """Count the work of processing values.

    :raises TooMuchWorkError: if the spec has used all its steps
    """
    steps = 1 + STEPS_OF_A_PART * len(values)
    for value in values:
        if isinstance(value, str):
            steps += len(value) // 16
        elif isinstance(value, _COLLECTIONS):
            items, text = nested_size(value, MAX_STEPS, MAX_STEPS)
            steps += items + text // 16
        elif isinstance(value, int):
            steps += _steps_of_numbers(value, value)
    charge_steps(steps)


def charge_numbers(left: Any, right: Any) -> None:
    """Count the work of multiplying or dividing two numbers; that of small ones is part of the operator's.

    :raises TooMuchWorkError: if the spec has used all its steps
    """
    if isinstance(left, int) and isinstance(right, int):
        steps = _steps_of_numbers(left, right)
        if steps:
            charge_steps(steps)


def charge_modular_power(exponent: Any, modulus: Any) -> None:
    """Count the work of a power that is reduced by a modulus at each bit of the exponent.

    :raises TooMuchWorkError: if the spec has used all its steps
    """
    if isinstance(exponent, int) and isinstance(modulus, int):
        charge_steps(exponent.bit_length() * modulus.bit_length() ** 2 >> 15)


def _steps_of_numbers(left: int, right: int) -> int:
    return left.bit_length() * right.bit_length() >> 17


def charge_steps(steps: int) -> None:
    """Count steps.

    :raises TooMuchWorkError: if the spec has used all its steps
    """
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
    groups: list[Any] = [(value,)]
    while groups:
        group = groups.pop()
        kinds = set(map(type, group))
        if kinds == {str}:
            text += sum(map(len, group))
        elif kinds <= SCALARS:
            text += _digits(group) if int in kinds else 0
        else:
            nested = list(group)
            if not kinds <= {list, tuple}:
                text += sum(len(part) for part in group if isinstance(part, str | bytes)) + _digits(group)
                nested = [part for part in group if isinstance(part, _COLLECTIONS)]
            count = sum(map(len, nested))
            items += count
            if items > most_items:
                break
            nested += [part.values() for part in nested if isinstance(part, dict)]
            # small ones together, for speed; large ones one after the other, without a copy
            groups += [list(itertools.chain.from_iterable(nested))] if count <= _MANY else nested
        if text > most_text:
            break
    return items, text


def _digits(values: Iterable[Any]) -> int:
    """Return the number of digits of the numbers among values, 0 if they are small on average."""
    bits = [value.bit_length() for value in values if type(value) is int]
    total = sum(bits)
    return total * 3 // 10 if total > _SMALL * len(bits) else 0


def summed(values: Iterable[Any], start: Any = 0) -> Any:
    """Return Python's ``sum``, of lists in time that grows with the result, not with its square."""
    values = list(values)
    charge(values)
    refuse_whole_file_values(*values)
    kind = type(start)
    if kind in (list, tuple) and all(type(value) is kind for value in values):
        return kind(itertools.chain(start, *values))
    return sum(values, start)


def formatted_length(text: str, values: Any) -> int:
    """Return about how many characters ``text % values`` has at most: each field as wide as it says."""
    length = len(text) + sum(int(size) for sizes in _WIDTH.findall(text) for size in sizes if size)
    if isinstance(values, dict):  # any number of fields may show the same value
        return length + text.count("%") * max(map(_shown, values.values()), default=0)
    return length + sum(map(_shown, values if isinstance(values, tuple) else [values]))


def _shown(value: Any) -> int:
    if isinstance(value, float):
        return max(1, math.frexp(value)[1] * 3 // 10)
    items, text = nested_size(value, MAX_STEPS, MAX_STEPS)
    return 2 * items + text
