"""Expressions in sweep specs: sandboxed Jinja2, native values, references in any order.

A value that is one whole expression, ``"{{ nodes * gpus_per_node }}"``, keeps the type of its result; an expression
inside text, ``"lr{{ lr }}"``, becomes text. Undefined names are errors, and so are reference cycles, shown as a chain.
The functions for expressions are in :mod:`airflow_megatron.spec.expressions.functions`, their bounds in
:mod:`airflow_megatron.spec.expressions.sandbox`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.errors import did_you_mean, near_names, suggestion
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.expressions.bounds import (
    TooMuchWorkError,
    begin_evaluation,
    charge_compilation,
    compiled_for_spec,
)
from airflow_megatron.spec.expressions.file_values import FileValueError, refuse_result
from airflow_megatron.spec.expressions.functions import FUNCTIONS
from airflow_megatron.spec.expressions.sandbox import (
    SizeError,
    checked_template,
    checked_value,
    environment,
    joined,
    names_of,
    size_of,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

MAX_CHAIN = 100
"""Maximum length of a chain of references between values."""


class ExpressionError(AirflowMegatronError, ValueError):
    """An expression that cannot be parsed or evaluated, or gives an unusable value; the message says which and why.

    :ivar keys: place of the value below the section that is evaluated, as far as it is known
    :ivar parameter: name of the parameter whose value is wrong, if that is known instead
    :ivar stage: stage of this parameter, if it is not the one that is evaluated
    """

    keys: tuple[str | int, ...] = ()
    parameter: str = ""
    stage: str = ""


class _Within:
    """Context of :func:`within`; a class, because a generator takes three times as long, and each job has several."""

    __slots__ = ("keys",)

    def __init__(self, keys: tuple[str | int, ...]) -> None:
        self.keys = keys

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ExpressionError):
            error.keys = (*self.keys, *error.keys)


def within(*keys: str | int) -> _Within:
    """Return a context that notes for an error raised in it that the value is below these keys."""
    return _Within(keys)


# without whitespace control ("{{-"), which only matters inside text
_PLAIN_EXPRESSION = re.compile(r"\{\{(?![-+]).*(?<![-+])\}\}\Z", re.DOTALL).match


def script_environment(
    templates: Path | Mapping[str, str], others: Sequence[jinja2.BaseLoader] = ()
) -> jinja2.Environment:
    """Return the sandboxed environment for script templates (undefined names are errors).

    :param templates: their folder, in addition to those of the package, or name → text
    :param others: loader for templates that are not in the folder
    """
    loader: jinja2.BaseLoader = (
        jinja2.ChoiceLoader([jinja2.FileSystemLoader([templates, shipped("sbatch")]), *others])
        if isinstance(templates, Path)
        else jinja2.DictLoader(templates)
    )
    return ImmutableSandboxedEnvironment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


class Expression:
    """A parsed template string; it is compiled when first evaluated, because many are only inspected.

    :param source: the text as written
    :param tree: its syntax tree
    """

    def __init__(self, source: str, tree: jinja2.nodes.Template) -> None:
        self.source = source
        self.tree = tree
        self.names = names_of(tree)
        """The variables that it reads."""
        self.size = size_of(tree)
        """Its parts, those in loops once."""

    @functools.cached_property
    def evaluate(self) -> Callable[[Mapping[str, Any]], Any]:
        """Return the value for a mapping of (at least) the variables."""
        if _is_one_expression(self.tree) and _PLAIN_EXPRESSION(self.source):
            return _native(self.tree.body[0].nodes[0])  # type: ignore[attr-defined]
        return _text(self.tree)


def is_template(value: object) -> bool:
    """Return whether ``value`` is a string with an expression."""
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


_OPERATORS: Final = {
    "got '='": "write == to compare",
    "char '&'": "write and",
    "got '|'": "write or",
    "char '!'": "write not",
    "char '?'": "write a if condition else b",
}
"""What Jinja2 says of operators of other languages → what to write."""


def compile_expression(source: str) -> Expression:
    """Compile a template string, once for each spec.

    :raises ExpressionError: on a syntax error, for a construct that expressions may not use, or if the spec has used
        up its steps
    """
    compiled: dict[str, Expression] = compiled_for_spec()
    expression = compiled.get(source)
    if expression is None:
        expression = compiled[source] = _charged(source)
    return expression


def _charged(source: str) -> Expression:
    try:
        charge_compilation(tokens_of(source))
        return _parsed(source)
    except TooMuchWorkError as error:
        raise ExpressionError(f"{_shown(source)}: {error}") from error
    except jinja2.TemplateError as error:
        message = _syntax_message(error.message or "", source)
        raise ExpressionError(f"{_shown(source)} is not a valid expression: {message}") from error
    except (RecursionError, ValueError) as error:
        raise ExpressionError(f"{_shown(source)} is not a valid expression: {error}") from error


@functools.lru_cache(maxsize=4096)
def _parsed(source: str) -> Expression:
    return Expression(source, checked_template(source))


def _syntax_message(message: str, source: str) -> str:
    """Return what Jinja2 says of a syntax error, with what to write instead."""
    if hint := next((hint for wrong, hint in _OPERATORS.items() if wrong in message), ""):
        return f"{message}; {hint}"
    if message == f"Expected an expression, got '{_END}'":
        return "it is empty"
    if wanted := _ENDS.fullmatch(message):
        return "it ends too early" + (f": {wanted[1]} is missing" if wanted[1] else "")
    got = _GOT.fullmatch(message)
    if got is None:
        return message
    number = re.search(rf"(?<![\w.])[0-9][0-9._]*{re.escape(got[2])}(?!\w)", source)
    if number:
        return f"{number[0]} is not a number; write it in quotes: '{number[0]}'"
    return f"unexpected {got[2]!r}" if got[1] == _END else message


_END: Final = "end of print statement"
_ENDS: Final = re.compile(f"unexpected '{_END}'|expected token ('.+'), got '{_END}'")
_GOT: Final = re.compile(r"expected token '(.+)', got '(.+)'")
"""What Jinja2 says where an expression ends, or goes on, too early."""


def _shown(source: str) -> str:
    return repr(source if len(source) <= 500 else source[:500] + "…")


def _is_one_expression(tree: jinja2.nodes.Template) -> bool:
    return (
        len(tree.body) == 1
        and isinstance(tree.body[0], jinja2.nodes.Output)
        and len(tree.body[0].nodes) == 1
        and not isinstance(tree.body[0].nodes[0], jinja2.nodes.TemplateData)
    )


def _native(expression: jinja2.nodes.Expr) -> Callable[[Mapping[str, Any]], Any]:
    """Compile an expression to a function that returns its value instead of its text."""
    env = environment()
    target = jinja2.nodes.Name("result", "store", lineno=1)
    tree = jinja2.nodes.Template([jinja2.nodes.Assign(target, expression, lineno=1)], lineno=1)
    render = env.from_string(tree).root_render_func

    def evaluate(names: Mapping[str, Any]) -> Any:
        scope = env.scope(names)
        for _ in render(scope):
            pass
        value = scope.vars["result"]
        if isinstance(value, jinja2.Undefined):
            value._fail_with_undefined_error()
        return checked_value(value)

    return evaluate


def _text(tree: jinja2.nodes.Template) -> Callable[[Mapping[str, Any]], Any]:
    env = environment()
    render = env.from_string(tree).root_render_func
    return lambda names: joined(render(env.scope(names)))


def evaluate(
    source: str, names: Mapping[str, Any], later: Iterable[str] = (), *, from_files: bool = False
) -> Any:
    """Evaluate one template string.

    :param later: names without a value yet, which the hint for an undefined name includes
    :param from_files: permit values of ``file_value``, which only the job knows
    :raises ExpressionError: on a syntax error, an undefined name, a failing operation or a result that is too large
    """
    expression = compile_expression(source)
    if not expression.names <= names.keys():
        unknown = sorted(expression.names - names.keys() - FUNCTIONS.keys())
        if unknown:
            hint = _without_section(source, unknown[0], {*names, *later}) or did_you_mean(
                unknown[0], sorted({*names, *later, *FUNCTIONS})
            )
            raise ExpressionError(
                f"{_shown(source)} uses {unknown[0]!r}, which is not defined{'; ' + hint if hint else ''}"
            )
    try:
        begin_evaluation(expression.size)
        value = expression.evaluate(names)
        if not from_files:
            refuse_result(value)
        return value
    except jinja2.UndefinedError as error:
        hint = _mapping_meant(source, names)
        raise ExpressionError(f"{_shown(source)}: {error.message}{'; ' + hint if hint else ''}") from error
    except jinja2.TemplateError as error:
        raise ExpressionError(f"{_shown(source)}: {error}") from error
    except (SizeError, TooMuchWorkError, FileValueError) as error:
        raise ExpressionError(f"{_shown(source)}: {error}") from error
    except _FAILURES as error:
        raise ExpressionError(f"{_shown(source)} fails: {type(error).__name__}: {error}") from error


def _without_section(source: str, unknown: str, known: Set[str]) -> str:
    """Return the hint for ``params.seq``, where expressions call the value ``seq``; empty for another mistake."""
    read = sorted(_attributes(source, unknown) & known)
    return f"write {read[0]}, not {unknown}.{read[0]}" if read else ""


def _mapping_meant(source: str, names: Mapping[str, Any]) -> str:
    """Return the hint for ``stage.pretrain``, where ``stages`` has the entry; empty for another mistake."""
    for name in sorted(compile_expression(source).names & names.keys()):
        if not isinstance(names[name], dict):
            for entry in sorted(_attributes(source, name)):
                holders = [
                    other for other, value in names.items() if isinstance(value, dict) and entry in value
                ]
                if holders:
                    return suggestion(f"{holder}.{entry}" for holder in near_names(name, holders) or holders)
    return ""


_FAILURES = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(RecursionError, SyntaxError, MemoryError),
)
"""Exceptions of operations on values of a wrong type or size, including those in Jinja2's filters; the last ones are
raised by the compilation of an expression that is nested too deeply."""


def evaluate_tree(
    value: Any, names: Mapping[str, Any], later: Iterable[str] = (), *, from_files: bool = False
) -> Any:
    """Evaluate every template string inside nested dicts and lists; other values are returned unchanged.

    :param later: as for :func:`evaluate`
    :param from_files: as for :func:`evaluate`
    """
    if isinstance(value, str):
        return evaluate(value, names, later, from_files=from_files) if is_template(value) else value
    if isinstance(value, list):
        return [evaluate_tree(item, names, later, from_files=from_files) for item in value]
    if isinstance(value, dict):
        return {key: evaluate_tree(item, names, later, from_files=from_files) for key, item in value.items()}
    return value


def templates(value: Any) -> Iterator[str]:
    """Yield the template strings inside ``value``."""
    if isinstance(value, str):
        if is_template(value):
            yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            yield from templates(item)


def template_names(value: Any) -> frozenset[str]:
    """Return the variables read by the template strings inside ``value``."""
    return frozenset().union(*(compile_expression(source).names for source in templates(value)))


def attribute_names(value: Any, variable: str) -> frozenset[str]:
    """Return the attributes of ``variable`` that the template strings inside ``value`` read (``stages.pretrain``)."""
    return frozenset().union(*(_attributes(source, variable) for source in templates(value)))


@functools.lru_cache(maxsize=4096)
def _attributes(source: str, variable: str) -> frozenset[str]:
    tree = compile_expression(source).tree
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

    :param raw: name → value, which may contain template strings
    :param given: names that are already known (they do not hide names of ``raw``)
    :param wanted: resolve only these names and their dependencies; default: all
    :return: every resolved name of ``raw`` with its value
    :raises ExpressionError: on an undefined name, a failing expression or a cycle (the chain is shown)
    """
    resolution = _Resolution(raw, given)
    for name in raw if wanted is None else wanted:
        if name in raw:
            resolution.visit(name)
    return resolution.done


class _Resolution:
    """One call of :func:`resolve`; not a closure, which would leave a reference cycle at each point of a sweep."""

    __slots__ = ("chain", "done", "raw", "scope")

    def __init__(self, raw: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self.raw = raw
        self.done: dict[str, Any] = {}
        self.scope: dict[str, Any] = dict(given)
        self.chain: list[str] = []

    def visit(self, name: str) -> None:
        """Resolve a name of ``raw``, after its dependencies."""
        if name in self.done:
            return
        value, chain = self.raw[name], self.chain
        if type(value) in _PLAIN or (type(value) is str and "{" not in value):
            self.done[name] = self.scope[name] = value
            return
        if name in chain:
            circle = [*chain[chain.index(name) :], name]
            hint = (
                f"{name} is defined by itself; drop it where it only repeats a value of the same name, which is known "
                "here anyway, or write the value, or give it another name"
                if len(circle) == 2
                else "write the value of one of them"
            )
            error = ExpressionError(f"reference cycle: {' → '.join(circle)} ({hint})")
            error.parameter = name
            raise error
        if len(chain) >= MAX_CHAIN:
            raise ExpressionError(f"{chain[0]}: more than {MAX_CHAIN} values in a chain of references")
        chain.append(name)
        for needed in sorted(template_names(value)):
            if needed in self.raw:
                self.visit(needed)
        chain.pop()
        try:
            self.done[name] = self.scope[name] = evaluate_tree(value, self.scope, self.raw, from_files=True)
        except ExpressionError as error:
            raise ExpressionError(f"{name}: {error}") from error


_PLAIN = frozenset({int, float, bool, type(None)})
