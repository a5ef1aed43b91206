"""The Jinja2 environment of spec expressions: no access to Python code, and bounds on time and memory.

Jinja2's sandbox prevents access to Python's internals, but not ``10**10**10``, ``'x' * 10**10`` or nested loops. This
environment permits only listed statements, nodes, filters and methods, and checks sizes before a result is created.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.meta import TrackingCodeGenerator
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import missing, pass_environment
from jinja2.visitor import NodeTransformer

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.expressions.bounds import (
    SCALARS,
    charge,
    charge_numbers,
    charge_parts,
    charge_steps,
    formatted_length,
    nested_size,
    summed,
)
from airflow_megatron.spec.expressions.file_values import (
    FILE_PREFIX,
    refuse_file_values,
    refuse_whole_file_values,
)
from airflow_megatron.spec.expressions.functions import FUNCTIONS, bounded_round

MAX_SOURCE: Final = 20_000
"""Maximum number of characters of one template string."""
MAX_TEXT: Final = 100_000
"""Maximum number of characters of a text that an expression creates."""
MAX_NESTED_TEXT: Final = 1_000_000
"""Maximum number of characters of all texts in a list that an expression creates."""
MAX_ITEMS: Final = 10_000
"""Maximum number of items, at any depth, of a list that an expression creates, and of rounds of a loop."""
MAX_BITS: Final = 4096
"""Maximum number of bits of a whole number that an expression creates."""

_NODES: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice),
    *(nodes.Getattr, nodes.Getitem, nodes.Call, nodes.Filter, nodes.Test),
    *(nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Concat),
)
_RESERVED: Final = frozenset({"self", "super", "caller", "varargs", "kwargs"})
_WIDE_FORMAT: Final = re.compile(r"\d{4,}|\*")
_NESTED_FORMAT: Final = re.compile(r"\{[^{}]*\{")
_LOOP: Final = frozenset(
    [
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "previtem",
        "nextitem",
        "depth",
        "depth0",
    ]
)


class SizeError(AirflowMegatronError, ValueError):
    """The result of an expression would be too large."""


def _text(length: int) -> None:
    if length > MAX_TEXT:
        raise SizeError(f"it makes a text of {length} characters; at most {MAX_TEXT} are allowed")


def _items(length: int) -> None:
    if length > MAX_ITEMS:
        raise SizeError(f"it makes {length} items; at most {MAX_ITEMS} are allowed")


def _size(sequence: object, times: int = 1) -> None:
    charge_steps(1)
    if isinstance(sequence, str | bytes):
        _text(len(sequence) * times)
        charge(sequence)
    elif isinstance(sequence, list | tuple | dict):
        items, text = nested_size(sequence, MAX_ITEMS, MAX_NESTED_TEXT)
        _items(items * max(times, 1))
        if text * times > MAX_NESTED_TEXT:
            raise SizeError(
                f"it makes texts of {text * times} characters; at most {MAX_NESTED_TEXT} are allowed"
            )
        charge_steps(items + text // 16)


def _number(value: int) -> None:
    if value.bit_length() > MAX_BITS:
        raise SizeError(f"it makes a number of {value.bit_length()} bits; at most {MAX_BITS} are allowed")


def _measured(value: Any) -> Any:
    """Return a list or mapping literal of an expression after checking its size, including referenced values."""
    _size(value)
    return value


def checked_value(value: Any) -> Any:
    """Return the result of an expression after checking it.

    :raises SizeError: if it is too large
    :raises TypeError: if it does not consist of numbers, texts, lists and mappings
    """
    kind = type(value)
    if kind is float or kind is bool or value is None:
        return value
    if kind is str:
        _text(len(value))
        return value
    if kind is int:
        _number(value)
        return value
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += 1
        _items(count)
        if isinstance(item, Mapping):
            pending += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            pending += item
        elif isinstance(item, str):
            count += len(item) // 64
        elif isinstance(item, int):
            _number(item)
        elif item is not None and not isinstance(item, float):
            hint = "; add | list" if isinstance(item, Iterable) else ""
            raise TypeError(f"it gives a {type(item).__name__}, not a plain value{hint}")
    return value


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise SizeError("the power is too large")
    return left**right


def _quotient(left: Any, right: Any) -> Any:
    charge_numbers(left, right)
    return left // right


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise SizeError("the product is too large")
        charge_numbers(left, right)
    elif isinstance(right, int):
        _size(left, right)
    elif isinstance(left, int):
        _size(right, left)
    return left * right


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _size([left, right])
    total = left + right
    _size(total)
    return total


def _percent(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        if _WIDE_FORMAT.search(left):
            raise SizeError("the format is too wide")
        _size([left, *right] if isinstance(right, tuple) else [left, right])
        _text(formatted_length(left, right))
    charge_numbers(left, right)
    return left % right


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    _text(len(text) + text.count(old) * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def _join(separator: str, values: Iterable[object]) -> str:
    values = list(values)
    _size(values)
    refuse_file_values(*values)
    texts = [str(value) for value in values]
    _items(len(texts))
    _text(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    if _WIDE_FORMAT.search(text) or _NESTED_FORMAT.search(text):
        raise SizeError("the format is too wide")
    _size([text, *args, *kwargs.values()])
    made = _Formatter(environment()).vformat(text, args, kwargs)
    _text(len(made))
    return made


class _Formatter(SandboxedFormatter):
    """``str.format`` that stops as soon as its fields are too long together."""

    length = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        charge(value)
        text = super().format_field(value, format_spec)
        self.length += len(text)
        _text(self.length)
        return text


def _concatenate(*values: object) -> str:
    return _join("", values)


def _loop_items(values: Any, size: int) -> list[Any]:
    """Return the items of a loop, when the work of going through them is counted.

    :param size: parts of the loop's body
    """
    refuse_whole_file_values(values)
    items = list(values)
    _items(len(items))
    charge(items)
    charge_parts(size * len(items))
    return items


def _format_filter(value: str, *args: Any, **kwargs: Any) -> Any:
    return _percent(str(value), kwargs or args)


@pass_environment
def _sum_filter(
    environment: jinja2.Environment, values: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    return summed(
        values if attribute is None else map(make_attrgetter(environment, attribute), values), start
    )


def _processed(value: Any) -> Any:
    """Return a value that a comparison or a slice goes through, when that work is counted."""
    if type(value) not in SCALARS:
        charge(value)
        refuse_file_values(value)
    return value


def _decided(value: Any) -> Any:
    """Return a value that a condition takes as true or false, which must be known."""
    refuse_whole_file_values(value)
    return value


def _shown(value: Any) -> Any:
    """Return a value that becomes text; :func:`joined` refuses a placeholder beside other text."""
    if isinstance(value, list | tuple | dict):
        refuse_file_values(value)
    return value


def _round_filter(value: float, precision: int = 0, method: str = "common") -> int | float:
    bounded_round(value, precision)
    return FILTERS["round"](value, precision, method)  # type: ignore[no-any-return]


_METHODS: Final[Mapping[type, Mapping[str, Callable[..., Any]]]] = {
    str: {
        **{
            name: getattr(str, name)
            for name in (
                *("capitalize", "casefold", "count", "endswith", "find", "isalnum", "isalpha", "isdigit"),
                *(
                    "lower",
                    "lstrip",
                    "removeprefix",
                    "removesuffix",
                    "rsplit",
                    "rstrip",
                    "split",
                    "startswith",
                ),
                *("strip", "title", "upper"),
            )
        },
        "format": _format,
        "join": _join,
        "replace": _replace,
    },
    dict: {name: getattr(dict, name) for name in ("get", "items", "keys", "values")},
    list: {name: getattr(list, name) for name in ("count", "index")},
    tuple: {name: getattr(tuple, name) for name in ("count", "index")},
    int: {"bit_length": int.bit_length},
    float: {"is_integer": float.is_integer},
}

_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: FILTERS[name]
        for name in (
            *(
                "abs",
                "capitalize",
                "count",
                "d",
                "default",
                "dictsort",
                "first",
                "float",
                "int",
                "items",
                "last",
            ),
            *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select"),
            *("selectattr", "sort", "string", "title", "trim", "unique", "upper"),
        )
    },
    "concatenate": _concatenate,
    "format": _format_filter,
    "join": lambda values, separator="": _join(str(separator), values),
    "replace": lambda text, old, new, count=-1: _replace(str(text), str(old), str(new), count),
    "round": _round_filter,
    "sum": _sum_filter,
}
_INSERTED: Final[dict[str, Callable[..., Any]]] = {
    "decided": _decided,
    "loop_items": _loop_items,
    "measured": _measured,
    "processed": _processed,
}
"""The filters that :class:`_Bounds` inserts; they count their work themselves."""
_STEPS_OF_A_RESULT: Final = 15
"""Steps for each item that ``map``, ``select`` and the like yield."""
_STEPS_OF_AN_ITEM: Final = {
    "dictsort": 10,
    "join": 1,
    "list": 1,
    "max": 10,
    "min": 10,
    "sort": 10,
    "unique": 10,
}
"""Filter → steps for each item or character that it goes through, besides those for any value."""


def _refuse_nothing(*values: object) -> None:
    """Permit values that only the job knows."""


_REFUSALS_OF_FILTERS: Final[Mapping[str, Callable[..., None]]] = {
    **dict.fromkeys(["d", "default", "map"], _refuse_nothing),
    **dict.fromkeys(
        [
            *("count", "first", "items", "last", "length", "list", "reject", "rejectattr", "reverse"),
            *("select", "selectattr", "sum"),
        ],
        refuse_whole_file_values,
    ),
}
"""Filter → its check for values that only the job knows, of those that do not read such values in lists."""
_REFUSALS_OF_TESTS: Final[Mapping[str, Callable[..., None]]] = {
    **dict.fromkeys(["defined", "none", "undefined"], _refuse_nothing),
    **dict.fromkeys(["iterable", "mapping", "number", "sequence", "string"], refuse_whole_file_values),
}


def _charged(
    function: Callable[..., Any], refuse: Callable[..., None], steps_of_an_item: int = 0
) -> Callable[..., Any]:
    """Return a filter or test that counts its work, and checks its operands, before it runs.

    :param refuse: check for values that only the job knows
    """

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        charge(*args, *kwargs.values())
        refuse(*args, *kwargs.values())
        if refuse is refuse_file_values:
            args = tuple(_refused(value) if isinstance(value, Iterator) else value for value in args)
        if steps_of_an_item:
            charge_steps(steps_of_an_item * sum(map(_length, args)))
        return _checked_result(function(*args, **kwargs))

    return charged


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) and not isinstance(value, jinja2.Undefined) else 0


def _checked_result(value: Any) -> Any:
    """Return the result of a function or filter: a number in bounds, an iterator that counts its items."""
    if isinstance(value, int):
        _number(value)
    elif isinstance(value, Iterator):
        return _counted(value)
    return value


def _refused(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        refuse_file_values(item)
        yield item


def _counted(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        charge_steps(_STEPS_OF_A_RESULT)
        yield item


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "**": _power,
    "*": _times,
    "//": _quotient,
    "+": _plus,
    "%": _percent,
    "-": operator.sub,
    "/": operator.truediv,
}
_CALLABLE: Final = frozenset(FUNCTIONS.values())
_OF_LISTS: Final = (len, summed)
"""Functions that take lists with values that only the job knows."""


class _Scope(Context):
    """The names of one evaluation: the given ones, then the functions, without a copy."""

    def __init__(
        self, environment: jinja2.Environment, names: Mapping[str, Any], settings: EvalContext
    ) -> None:
        self.parent = names  # type: ignore[assignment]  # only read
        self.vars = {}
        self.environment = environment
        self.eval_ctx = settings
        self.exported_vars = set()
        self.name = None
        self.globals_keys = set()
        self.blocks = {}

    def resolve_or_missing(self, key: str) -> Any:
        if key in self.vars:
            return self.vars[key]
        value = self.parent.get(key, missing)
        return FUNCTIONS.get(key, missing) if value is missing else value


class _Missing(jinja2.StrictUndefined):
    """A value that is not there; its message names a similar key of the mapping that lacks it."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        value, name = self._undefined_obj, self._undefined_name
        if value is missing:
            return str(super()._undefined_message)
        if isinstance(value, dict):
            near = did_you_mean(str(name), map(str, value))
            return f"there is no entry {name!r}" + (f"; {near}" if near else "")
        if isinstance(value, list | tuple) and isinstance(name, int):
            return f"there is no item {name}: the list has {len(value)}, from 0 on"
        return f"{_kind(value)} has no entry {name!r}"


def _kind(value: Any) -> str:
    kinds = {
        str: "a text",
        list: "a list",
        tuple: "a list",
        type(None): "nothing (null)",
        bool: "a truth value",
    }
    return kinds.get(
        type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"
    )


class SpecEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2 with the nodes, filters, methods and functions above, and nothing else."""

    intercepted_binops = frozenset(_OPERATORS)
    intercepted_unops = frozenset({"+", "-"})

    def __init__(self) -> None:
        super().__init__(undefined=_Missing, autoescape=False, optimized=False, finalize=_shown)
        self.globals.clear()
        self.filters = {
            name: _charged(
                function,
                _REFUSALS_OF_FILTERS.get(name, refuse_file_values),
                _STEPS_OF_AN_ITEM.get(name, 0),
            )
            for name, function in _FILTERS.items()
        } | _INSERTED
        self.tests = {
            name: _charged(cast("Callable[..., Any]", test), _REFUSALS_OF_TESTS.get(name, refuse_file_values))
            for name, test in TESTS.items()
        }
        self.settings = EvalContext(self)

    def scope(self, names: Mapping[str, Any]) -> Context:
        """Return the mapping from which a compiled template reads its names."""
        return _Scope(self, names, self.settings)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, whose result may be large."""
        refuse_whole_file_values(left, right)
        if operator == "%":
            refuse_file_values(right)
        return _OPERATORS[operator](left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        """Apply a sign."""
        refuse_whole_file_values(arg)
        return super().call_unop(context, operator, arg)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an entry of a mapping, or one of the listed methods."""
        refuse_whole_file_values(obj)
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        method = _METHODS.get(type(obj), {}).get(attribute)
        if method is not None:
            return functools.partial(method, obj)
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self._missing(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; never an attribute."""
        refuse_whole_file_values(obj)
        try:
            return obj[argument]
        except (LookupError, TypeError, jinja2.UndefinedError):
            return self._missing(obj, argument)

    def _missing(self, obj: Any, name: Any) -> jinja2.Undefined:
        """Return an undefined value; of a value that is undefined itself, that one, which an error is about."""
        return obj if isinstance(obj, jinja2.Undefined) else self.undefined(obj=obj, name=name)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call one of the functions, or a method from :meth:`getattr`."""
        if isinstance(__obj, jinja2.Undefined):
            __obj._fail_with_undefined_error()
        if isinstance(__obj, functools.partial) or (callable(__obj) and __obj in _CALLABLE):
            kwargs.pop("_loop_vars", None)  # Jinja2 adds it in the body of a loop
            charge(__obj.args if isinstance(__obj, functools.partial) else None, *args, *kwargs.values())
            if isinstance(__obj, functools.partial):
                if not isinstance(__obj.args[0], dict):
                    refuse_file_values(__obj.args, *args, *kwargs.values())
            else:
                refuse = refuse_whole_file_values if __obj in _OF_LISTS else refuse_file_values
                refuse(*args, *kwargs.values())
            return _checked_result(__obj(*args, **kwargs))
        raise jinja2.TemplateRuntimeError(f"a {type(__obj).__name__} cannot be called")


@functools.cache
def environment() -> SpecEnvironment:
    """Return the environment of all expressions of specs."""
    return SpecEnvironment()


def checked_template(source: str) -> nodes.Template:
    """Parse a template string, refuse constructs that are not allowed, and insert size checks.

    :raises jinja2.TemplateError: if it is not a template, or uses a construct that is not allowed
    :raises SizeError: if it is too long or nested too deeply
    """
    _check_length(source)
    try:
        tree = environment().parse(source)
        for node in tree.find_all(nodes.Node):
            _check_node(node)
        return _Bounds().visit(tree)  # type: ignore[no-any-return]
    except RecursionError:
        raise SizeError("it is nested too deeply") from None


def _check_length(source: str) -> None:
    if len(source) > MAX_SOURCE:
        raise SizeError(f"it is {len(source)} characters long; at most {MAX_SOURCE} are allowed")


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, _NODES):
        raise jinja2.TemplateSyntaxError(f"{type(node).__name__} is not allowed in a spec", node.lineno)
    if isinstance(node, nodes.Name) and node.name in _RESERVED:
        raise jinja2.TemplateSyntaxError(f"{node.name!r} is not a name of the spec", node.lineno)
    if isinstance(node, nodes.Const) and isinstance(node.value, float) and not math.isfinite(node.value):
        raise jinja2.TemplateSyntaxError("the number is too large", node.lineno)
    if isinstance(node, nodes.For) and (node.recursive or any(True for _ in node.find_all(nodes.For))):
        raise jinja2.TemplateSyntaxError("loops within loops are not allowed in a spec", node.lineno)


class _Bounds(NodeTransformer):
    """Transformer that passes ``~``, list literals and the lists of loops through filters that check their sizes.

    What a comparison or a slice goes through is counted in the same way.
    """

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        first, *rest = [self.visit(part) for part in node.nodes]
        return nodes.Filter(first, "concatenate", rest, [], None, None, lineno=node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._measured(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._measured(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._measured(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _processing(node.expr)
        for operand in node.ops:
            operand.expr = _processing(operand.expr)
        return node

    def visit_CondExpr(self, node: nodes.CondExpr | nodes.If) -> nodes.Node:
        self.generic_visit(node)
        node.test = _deciding(node.test)
        return node

    visit_If = visit_CondExpr

    def visit_Not(self, node: nodes.Not) -> nodes.Node:
        self.generic_visit(node)
        node.node = _deciding(node.node)
        return node

    def visit_And(self, node: nodes.And | nodes.Or) -> nodes.Node:
        self.generic_visit(node)
        node.left = _deciding(node.left)
        return node

    visit_Or = visit_And

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _processing(node.node)
        return node

    def _measured(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        if all(isinstance(item, nodes.Const | nodes.Pair) for item in node.iter_child_nodes()) and not any(
            isinstance(item, nodes.Name | nodes.Call) for item in node.find_all((nodes.Name, nodes.Call))
        ):
            return node
        return nodes.Filter(node, "measured", [], [], None, None, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        size = nodes.Const(sum(map(size_of, node.body)) + (size_of(node.test) if node.test else 0))
        node.iter = nodes.Filter(node.iter, "loop_items", [size], [], None, None, lineno=node.lineno)
        node.test = node.test and _deciding(node.test)
        return node


def _processing(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, "processed", [], [], None, None, lineno=node.lineno)


def _deciding(node: Any) -> Any:
    if isinstance(node, nodes.Const | nodes.Compare | nodes.Not | nodes.Test):
        return node
    if isinstance(node, nodes.And | nodes.Or):  # its left side is decided by itself
        node.right = _deciding(node.right)
        return node
    return nodes.Filter(node, "decided", [], [], None, None, lineno=node.lineno)


def tokens_of(source: str) -> int:
    """Return the number of tokens of a template string, white space excluded.

    :raises jinja2.TemplateSyntaxError: if a part of it is no token
    :raises SizeError: if it is too long
    """
    _check_length(source)
    return sum(kind != "whitespace" for _, kind, _ in environment().lex(source))


def names_of(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that a template reads.

    Like ``jinja2.meta.find_undeclared_variables``, without its constant folding, whose time grows with the cube of the
    length of a sum.
    """
    generator = TrackingCodeGenerator(environment())
    generator.optimizer = None
    generator.visit(tree)
    return frozenset(generator.undeclared_identifiers)


def size_of(node: nodes.Node) -> int:
    """Return how many nodes a tree has."""
    return 1 + sum(1 for _ in node.find_all(nodes.Node))


def joined(chunks: Sequence[str] | Iterable[str]) -> str:
    """Return the text of a compiled template; stop as soon as it is too long.

    :raises FileValueError: if it has a placeholder and other text
    """
    parts: list[str] = []
    length = 0
    for chunk in chunks:
        parts.append(chunk)
        length += len(chunk)
        if length > MAX_TEXT:
            _text(length)
    text = "".join(parts)
    if FILE_PREFIX in text and sum(map(bool, parts)) > 1:
        refuse_whole_file_values(*parts)
    return text
