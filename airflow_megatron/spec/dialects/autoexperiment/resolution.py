"""Texts and expressions of AutoExperiment jobs, replaced until nothing changes.

The tool's rule, job by job: replace ``{name}`` in every text at once, evaluate every ``expr(…)``, repeat until nothing
changes; a text with a field that cannot be replaced stays whole. :func:`settle` does exactly that. Nearly all documents
are simpler: their texts refer to each other without circles, so :class:`ResolutionPlan` computes each once, in the
order of their references, and shares it among the jobs that agree on the values behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.dialects.autoexperiment.expressions import (
    MAX_TEXT,
    RefusedExpressionError,
    UnresolvedError,
    analyse_format,
    evaluate_expression,
    format_text,
    is_expression,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MAX_FIELDS = 32
_QUOTES = ("'", '"')


class EndlessError(AirflowMegatronError, ValueError):
    """Texts that never stop changing.

    :param keys: the keys whose values keep changing
    """

    def __init__(self, keys: Sequence[str]) -> None:
        names = ", ".join(keys)
        super().__init__(f"the value of {names} refers to itself and never settles")
        self.keys = tuple(keys)


class RefusedValueError(AirflowMegatronError, ValueError):
    """A value that is refused.

    :param key: its key
    :param cause: why
    """

    def __init__(self, key: str, cause: RefusedExpressionError) -> None:
        super().__init__(f"{key}: {cause}")
        self.key, self.cause = key, cause


def is_changeable(value: object) -> bool:
    """Return whether ``value`` is a text that a round may change."""
    return isinstance(value, str) and ("{" in value or "}" in value or is_expression(value))


def names_read(text: str) -> tuple[str, ...]:
    """Return the keys that a text uses; none if it is refused, which the rounds report."""
    try:
        return analyse_format(text).names
    except RefusedExpressionError:
        return ()


def settle(params: dict[str, Any]) -> dict[str, str]:
    """Replace the texts of one job in place, round by round, until nothing changes.

    :param params: the job's values
    :return: the keys that stay unresolved, and why
    :raises EndlessError: if the rounds do not end
    :raises RefusedValueError: if a value would run code or grow without bound
    """
    unresolved: dict[str, str] = {}
    refused: dict[str, RefusedExpressionError] = {}
    changed: list[str] = []
    for _ in range(2 * len(params) + 64):
        old = dict(params)
        ready = {key: value for key, value in old.items() if not is_expression(value)}
        unresolved, refused, changed = {}, {}, []
        for key, text in old.items():
            if not is_changeable(text):
                continue
            value: Any = text
            try:
                value = format_text(text, ready)
            except UnresolvedError as error:
                unresolved[key] = str(error)
            except RefusedExpressionError as error:
                if key in names_read(text):
                    raise EndlessError([key]) from error
                raise RefusedValueError(key, error) from error
            if is_expression(value):
                try:
                    value = evaluate_expression(value)
                    unresolved.pop(key, None)
                except UnresolvedError as error:
                    unresolved.setdefault(key, str(error))
                except RefusedExpressionError as error:
                    # its names may not all be replaced yet; what it comes to in the end counts
                    refused[key] = error
            if type(value) is not type(text) or value != text:
                params[key] = value
                changed.append(key)
        if not changed:
            break
    else:
        raise EndlessError(changed)
    for key, cause in refused.items():
        raise RefusedValueError(key, cause)
    for key, text in params.items():
        if key not in unresolved and is_changeable(text) and names_read(text):
            unresolved[key] = (
                "its references go in a circle"  # {a} of b, and {b} of a, replace each other for ever
            )
    return unresolved


@dataclass
class _Block:
    """Keys whose values depend on the same axes.

    :param choice: gives, of a job's choices, those that matter here
    :param steps: key, text and whether it is an expression, in the order of their references
    :param made: the values made so far, by choice; None if no two jobs share them
    """

    choice: Callable[[Sequence[int]], Any]
    steps: list[tuple[str, str, bool]]
    made: dict[Any, dict[str, Any]] | None = field(default_factory=dict)


class ResolutionPlan:
    """How the texts of all jobs of one shape are resolved.

    Jobs have one shape when they have the same changeable texts, and the same of the keys that these read or stand at.

    :param raw: the values of one of the jobs
    :param owners: for each key, the axis that gives its value
    :param sizes: number of alternatives of each axis
    """

    def __init__(self, raw: Mapping[str, Any], owners: Mapping[str, int], sizes: Sequence[int]) -> None:
        self.unresolved: dict[str, str] = {}
        self.blocks: list[_Block] | None = None
        texts = {key: value for key, value in raw.items() if is_changeable(value)}
        reads = self._reads(raw, texts)
        order = _in_order(texts, reads) if reads is not None else None
        if order is not None and reads is not None:
            self.blocks = _blocks(order, texts, reads, owners, sizes)

    def _reads(self, raw: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
        """Return the keys that each text uses; None if only the tool's rounds give its result."""
        reads: dict[str, tuple[str, ...]] = {}
        plain_texts = {key for key, text in texts.items() if not is_expression(text)}
        for key, text in texts.items():
            try:
                what = analyse_format(text)
            except RefusedExpressionError:
                return None
            missing = next((name for name in what.names if name not in raw), None)
            if what.error or missing is not None:
                if key not in plain_texts:
                    return None
                self.unresolved[key] = what.error or f"there is no key {missing!r}"
                continue
            if what.escapes or what.nested or what.fields > _MAX_FIELDS or what.indirect & plain_texts:
                return None
            # inside quotes an expression may see a text before it is complete
            if (
                key not in plain_texts
                and any(quote in text for quote in _QUOTES)
                and texts.keys() & {*what.names}
            ):
                return None
            reads[key] = what.names
        if any(name in self.unresolved for names in reads.values() for name in names):
            return None
        return reads

    def resolve(self, params: dict[str, Any], choices: Sequence[int]) -> bool:
        """Resolve one job in place.

        :return: False when it has to be settled by rounds; its texts may then be changed in part
        """
        if self.blocks is None:
            return False
        for block in self.blocks:
            if block.made is None:
                if _make(block.steps, params) is None:
                    return False
                continue
            choice = block.choice(choices)
            made = block.made.get(choice)
            if made is None:
                made = _make(block.steps, params)
                if made is None:
                    return False
                block.made[choice] = made
            else:
                params.update(made)
        return True


def _make(steps: Sequence[tuple[str, str, bool]], params: dict[str, Any]) -> dict[str, Any] | None:
    made: dict[str, Any] = {}
    for key, text, expression in steps:
        try:
            value: Any = text.format_map(params)
            if expression:
                value = evaluate_expression(value)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            return None
        if type(value) is str and (
            "{" in value or "}" in value or len(value) > MAX_TEXT or is_expression(value)
        ):
            return None
        params[key] = made[key] = value
    return made


def _in_order(texts: Mapping[str, str], reads: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return the keys of ``reads`` in an order in which each follows those it uses; None for a cycle."""
    order: list[str] = []
    state: dict[str, bool] = {}
    for first in reads:
        stack = [first]
        while stack:
            key = stack[-1]
            if key not in state:
                state[key] = False
                waiting = [name for name in reads[key] if name in texts and state.get(name) is not True]
                if any(name in state for name in waiting):
                    return None
                stack += waiting
                continue
            stack.pop()
            if not state[key]:
                state[key] = True
                order.append(key)
    return order


def _blocks(
    order: Sequence[str],
    texts: Mapping[str, str],
    reads: Mapping[str, Sequence[str]],
    owners: Mapping[str, int],
    sizes: Sequence[int],
) -> list[_Block]:
    varying = frozenset(axis for axis, size in enumerate(sizes) if size > 1)
    axes: dict[str, frozenset[int]] = {}

    def axes_of(key: str) -> frozenset[int]:
        return axes[key] if key in axes else frozenset({owners[key]}) & varying

    blocks: dict[frozenset[int], _Block] = {}
    for key in order:
        axes[key] = axes_of(key).union(*(axes_of(name) for name in reads[key]))
        block = blocks.get(axes[key])
        if block is None:
            wanted = sorted(axes[key])
            choice = itemgetter(*wanted) if wanted else len
            block = blocks[axes[key]] = _Block(choice, [], None if axes[key] == varying else {})
        block.steps.append((key, texts[key], is_expression(texts[key])))
    return [blocks[which] for which in sorted(blocks, key=len)]
