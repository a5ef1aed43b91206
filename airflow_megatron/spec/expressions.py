"""Expressions in sweep specs: sandboxed Jinja2, native values, references in any order.

A value that is one whole expression, ``"{{ nodes * gpus_per_node }}"``, keeps the type of its result; an expression
inside text, ``"lr{{ lr }}"``, becomes text. Undefined names are errors, and so are reference cycles, shown as a chain.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airflow_megatron.spec.errors import did_you_mean
from airflow_megatron.spec.quantities import parse_duration, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


class ExpressionError(ValueError):
    """An expression that cannot be parsed or evaluated; the message says which and why."""


def ceil_div(dividend: int, divisor: int) -> int:
    """Return ``dividend / divisor`` rounded up to an integer."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``value``."""
    return ceil_div(value, multiple) * multiple


def iterations(tokens: int | str, seq_length: int, global_batch_size: int) -> int:
    """Return the iterations that consume at least ``tokens`` tokens: tokens / (seq_length · global_batch_size)."""
    return ceil_div(int(parse_quantity(tokens)), seq_length * global_batch_size)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "ceil_div": ceil_div,
    "duration": parse_duration,
    "exp": math.exp,
    "float": float,
    "floor": math.floor,
    "int": int,
    "iterations": iterations,
    "len": len,
    "log": math.log,
    "log2": math.log2,
    "max": max,
    "min": min,
    "quantity": parse_quantity,
    "round": round,
    "round_up": round_up,
    "sqrt": math.sqrt,
    "str": str,
    "sum": sum,
}


# without whitespace control ("{{-"), which only matters inside text
_PLAIN_EXPRESSION = re.compile(r"\{\{(?![-+]).*(?<![-+])\}\}\Z", re.DOTALL).match


@functools.cache
def environment() -> jinja2.Environment:
    """Return the sandboxed environment that every expression of a spec runs in."""
    env = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
    env.globals.clear()
    env.globals.update(FUNCTIONS)
    return env


def script_environment(directory: Path) -> jinja2.Environment:
    """Return the sandboxed environment for the script templates in ``directory`` (undefined names are errors)."""
    return ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(directory),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@dataclass(frozen=True)
class Expression:
    """A compiled template string.

    :param source: the text as written
    :param names: the variables that it reads
    :param evaluate: gives the value for a mapping of (at least) those variables
    """

    source: str
    names: frozenset[str]
    evaluate: Callable[[Mapping[str, Any]], Any]


def is_template(value: object) -> bool:
    """Tell whether ``value`` is a string that holds an expression."""
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


@functools.lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """Compile a template string once; later calls with the same text are answered from memory.

    :raises ExpressionError: on a syntax error
    """
    env = environment()
    try:
        tree = env.parse(source)
        names = frozenset(jinja2.meta.find_undeclared_variables(tree))
        if _is_one_expression(tree) and _PLAIN_EXPRESSION(source):
            evaluate = _native(env, source[2:-2])
        else:
            evaluate = env.from_string(source).render
    except jinja2.TemplateError as error:
        raise ExpressionError(f"{source!r} is not a valid expression: {error.message}") from error
    return Expression(source, names, evaluate)


def _is_one_expression(tree: jinja2.nodes.Template) -> bool:
    return (
        len(tree.body) == 1
        and isinstance(tree.body[0], jinja2.nodes.Output)
        and len(tree.body[0].nodes) == 1
        and not isinstance(tree.body[0].nodes[0], jinja2.nodes.TemplateData)
    )


def _native(env: jinja2.Environment, source: str) -> Callable[[Mapping[str, Any]], Any]:
    compiled = env.compile_expression(source, undefined_to_none=False)

    def evaluate(names: Mapping[str, Any]) -> Any:
        value = compiled(names)
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
        return value

    return evaluate


def evaluate(source: str, names: Mapping[str, Any]) -> Any:
    """Evaluate one template string.

    :raises ExpressionError: on a syntax error, an undefined name or a failing operation
    """
    expression = compile_expression(source)
    unknown = sorted(expression.names - names.keys())
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise ExpressionError(
            f"{source!r} uses {unknown[0]!r}, which is not defined{'; ' + hint if hint else ''}"
        )
    try:
        return expression.evaluate(names)
    except jinja2.UndefinedError as error:
        raise ExpressionError(f"{source!r}: {error.message}") from error
    except jinja2.TemplateError as error:
        raise ExpressionError(f"{source!r}: {error}") from error
    except (ArithmeticError, TypeError, ValueError, LookupError) as error:
        raise ExpressionError(f"{source!r} fails: {type(error).__name__}: {error}") from error


def evaluate_tree(value: Any, names: Mapping[str, Any]) -> Any:
    """Evaluate every template string inside nested dicts and lists; other values are returned as they are."""
    if isinstance(value, str):
        return evaluate(value, names) if is_template(value) else value
    if isinstance(value, list):
        return [evaluate_tree(item, names) for item in value]
    if isinstance(value, dict):
        return {key: evaluate_tree(item, names) for key, item in value.items()}
    return value


def template_names(value: Any) -> frozenset[str]:
    """Return the variables read by the template strings inside ``value``."""
    if isinstance(value, str):
        return compile_expression(value).names if is_template(value) else frozenset()
    if isinstance(value, list):
        return frozenset().union(*(template_names(item) for item in value))
    if isinstance(value, dict):
        return frozenset().union(*(template_names(item) for item in value.values()))
    return frozenset()


def attribute_names(value: Any, variable: str) -> frozenset[str]:
    """Return the attributes of ``variable`` that the template strings inside ``value`` read (``stages.pretrain``)."""
    if isinstance(value, str):
        return _attributes(value, variable) if is_template(value) else frozenset()
    if isinstance(value, list):
        return frozenset().union(*(attribute_names(item, variable) for item in value))
    if isinstance(value, dict):
        return frozenset().union(*(attribute_names(item, variable) for item in value.values()))
    return frozenset()


@functools.lru_cache(maxsize=4096)
def _attributes(source: str, variable: str) -> frozenset[str]:
    try:
        tree = environment().parse(source)
    except jinja2.TemplateError as error:
        raise ExpressionError(f"{source!r} is not a valid expression: {error.message}") from error
    names = {
        node.attr
        for node in tree.find_all(jinja2.nodes.Getattr)
        if isinstance(node.node, jinja2.nodes.Name) and node.node.name == variable
    }
    for item in tree.find_all(jinja2.nodes.Getitem):
        of_variable = isinstance(item.node, jinja2.nodes.Name) and item.node.name == variable
        if of_variable and isinstance(item.arg, jinja2.nodes.Const):
            names.add(str(item.arg.value))
    return frozenset(names)


def resolve(
    raw: Mapping[str, Any], given: Mapping[str, Any], wanted: Iterable[str] | None = None
) -> dict[str, Any]:
    """Resolve a set of named values that may refer to each other in any order.

    :param raw: name → value, possibly holding template strings
    :param given: names that are known already (they do not hide names of ``raw``)
    :param wanted: resolve these names, and what they need, only; all when left out
    :return: every resolved name of ``raw`` with its value
    :raises ExpressionError: on an undefined name, a failing expression or a cycle (the chain is shown)
    """
    done: dict[str, Any] = {}
    scope: dict[str, Any] = dict(given)
    chain: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in chain:
            cycle = " → ".join([*chain[chain.index(name) :], name])
            raise ExpressionError(f"reference cycle: {cycle}")
        value = raw[name]
        chain.append(name)
        for needed in sorted(template_names(value)):
            if needed in raw:
                visit(needed)
        chain.pop()
        try:
            done[name] = evaluate_tree(value, scope)
        except ExpressionError as error:
            raise ExpressionError(f"{name}: {error}") from error
        scope[name] = done[name]

    for name in raw if wanted is None else wanted:
        if name in raw:
            visit(name)
    return done
