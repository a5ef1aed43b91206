"""``expr(…)`` and ``{name}`` of AutoExperiment files, evaluated without Python's ``eval`` and within bounds.

AutoExperiment hands ``expr(…)`` to ``eval`` and every text to ``str.format``. Here the same arithmetic is done over the
syntax tree: what is not arithmetic, text or a plain function is refused. ``str.format`` itself is used once a text is
known to read nothing but values.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import re
import string
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.expressions.bounds import (
    TooMuchWorkError,
    begin_evaluation,
    charge,
    charge_modular_power,
    charge_numbers,
    formatted_length,
    summed,
)
from airflow_megatron.spec.foreign.interpolation.eval import COMPARISONS, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_TEXT = 65_536
"""Characters of a value."""
MAX_EXPRESSION = 10_000
"""Characters of an ``expr(…)``."""
_MAX_BITS = 14_000  # Python prints integers of up to 4,300 digits
_MAX_ITEMS = 10_000
_MAX_WIDTH = 10_000
_MANY_FIELDS = 32


class RefusedExpressionError(AirflowMegatronError, ValueError):
    """An expression or text that is refused: it would run code, or grow without bound.

    :param message: what is refused
    :param hint: what to write instead
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnresolvedError(AirflowMegatronError, ValueError):
    """An expression or text that AutoExperiment leaves unresolved; the message is the reason."""


def is_expression(value: object) -> bool:
    """Return whether ``value`` is a text that is one whole ``expr(…)``."""
    return isinstance(value, str) and value.startswith("expr(") and value.endswith(")")


def evaluate_expression(text: str) -> Any:
    """Return the value of ``expr(…)`` after its names have been replaced by their values.

    :raises UnresolvedError: where Python's ``eval`` would raise an error
    :raises RefusedExpressionError: where it would run code, or the result is out of bounds
    """
    value, error = _answer(text)
    if error is not None:
        raise error
    return value


@functools.lru_cache(maxsize=65_536)
def _answer(text: str) -> tuple[Any, RefusedExpressionError | UnresolvedError | None]:
    # failures are remembered as well: a text that stays unresolved is asked for again at every job
    try:
        return _parse_and_evaluate(text), None
    except (RefusedExpressionError, UnresolvedError) as error:
        return None, error.with_traceback(None)


def _parse_and_evaluate(text: str) -> Any:
    source = text[len("expr(") : -1].lstrip(" \t")
    if len(source) > MAX_EXPRESSION:
        raise RefusedExpressionError(f"an expression of {len(source):,} characters", "shorten it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, mode="eval")
        begin_evaluation(len(source) // 2)
        value = _evaluate(tree.body)
    except (RecursionError, MemoryError) as error:
        raise RefusedExpressionError("the expression is nested too deeply", "split it") from error
    except TooMuchWorkError as error:
        raise RefusedExpressionError(str(error), "split it") from error
    except (RefusedExpressionError, UnresolvedError):
        raise
    except (SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise UnresolvedError(f"{type(error).__name__}: {error}") from error
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    raise RefusedExpressionError(
        f"an expression that gives a {type(value).__name__}", "make it give a number or a text"
    )


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        _bound_bits(base.bit_length() * exponent)
    return base**exponent


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _bound_bits(left.bit_length() + right.bit_length())
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(count, int):
            _bound_size(_size(items) * max(count, 0))
    return left * right


def _size(value: Any) -> int:
    """Return the characters of a text, or the values inside nested lists."""
    if isinstance(value, list | tuple):
        return 1 + sum(_size(item) for item in value)
    return len(value) if isinstance(value, str) else 1


def _shift_left(value: Any, count: Any) -> Any:
    if isinstance(value, int) and isinstance(count, int):
        _bound_bits(value.bit_length() + max(count, 0))
    return value << count


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _bound_size(len(left) + len(right))
    return left + right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_width(left)
        if "*" in left:
            raise RefusedExpressionError("a width taken from a value", "write the width")
        _bound_size(formatted_length(left, right))
    return left % right


def _bound_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise RefusedExpressionError(f"a number of more than {_MAX_BITS:,} bits", "compute a smaller number")


def _bound_size(size: int) -> None:
    if size > MAX_TEXT:
        raise RefusedExpressionError(f"a value of more than {MAX_TEXT:,} characters", "make it shorter")


def _check_width(text: str) -> None:
    if any(len(digits) > 5 or int(digits) > _MAX_WIDTH for digits in re.findall(r"[0-9]+", text)):
        raise RefusedExpressionError(f"a width of more than {_MAX_WIDTH} characters", "write a smaller width")


_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: _add,
    ast.Sub: operator.sub,
    ast.Mult: _multiply,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _modulo,
    ast.Pow: _power,
    ast.LShift: _shift_left,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def _operation(kind: type[ast.operator], left: Any, right: Any) -> Any:
    charge_numbers(left, right)
    result = _BINARY[kind](left, right)
    if isinstance(result, str | list | tuple | int):
        charge(result)
    return result


def _round(value: Any, digits: int | None = None) -> Any:
    if isinstance(digits, int) and abs(digits) > _MAX_WIDTH:
        raise RefusedExpressionError(f"rounding to {digits} digits", "write fewer digits")
    return round(value, digits)


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return _power(base, exponent)
    charge_modular_power(exponent, modulus)
    return pow(base, exponent, modulus)


def _range(*bounds: Any) -> Any:
    numbers = range(*bounds)
    if len(numbers) > _MAX_ITEMS:
        raise RefusedExpressionError(f"a range of {len(numbers):,} numbers", "use a formula")
    return list(numbers)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bin": bin,
    "bool": bool,
    "dict": dict,
    "divmod": divmod,
    "float": float,
    "hex": hex,
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "oct": oct,
    "pow": _pow,
    "range": _range,
    "repr": repr,
    "round": _round,
    "set": set,
    "sorted": sorted,
    "str": str,
    "sum": summed,
    "tuple": tuple,
}
_TEXT_METHODS = frozenset(
    [
        "capitalize",
        "count",
        "endswith",
        "find",
        "isalpha",
        "isdigit",
        "islower",
        "isnumeric",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "startswith",
        "strip",
        "title",
        "upper",
        "zfill",
    ]
)
# names that eval would have found: using one is code, not a name that is missing
_CODE_NAMES = frozenset(dir(builtins)) | {
    "DictConfig",
    "JobDef",
    "ListConfig",
    "OmegaConf",
    "dataclass",
    "fields",
    "generate_job_defs",
    "product",
    "product_recursive",
    "warnings",
}
_PLAIN = "write it with numbers, text, + - * / // % **, comparisons and " + ", ".join(
    ("min", "max", "int", "float", "round", "abs", "str", "len", "sum")
)


def _evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value):
            if value is not None and not isinstance(value, str | int | float):
                raise RefusedExpressionError(f"a {type(value).__name__} in an expression", _PLAIN)
            return value
        case ast.BinOp(left, kind, right):
            return (
                _operation(type(kind), _evaluate(left), _evaluate(right))
                if type(kind) in _BINARY
                else _refuse(node)
            )
        case ast.UnaryOp(kind, operand):
            return UNARY[type(kind)](_evaluate(operand))
        case ast.BoolOp(kind, parts):
            return _boolean(isinstance(kind, ast.And), parts)
        case ast.Compare(left, kinds, right_sides):
            return _compare(left, kinds, right_sides)
        case ast.IfExp(test, body, orelse):
            return _evaluate(body if _evaluate(test) else orelse)
        case ast.List(items):
            return [_evaluate(item) for item in items]
        case ast.Tuple(items):
            return tuple(_evaluate(item) for item in items)
        case ast.Set(items):
            return {_evaluate(item) for item in items}
        case ast.Dict(keys, values) if None not in keys:
            return {_evaluate(key): _evaluate(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.Subscript(value, slice=index):
            return _evaluate(value)[_evaluate(index)]
        case ast.Slice(lower, upper, step):
            return slice(*(_evaluate(part) if part else None for part in (lower, upper, step)))
        case ast.JoinedStr(parts) if all(isinstance(part, ast.Constant) for part in parts):
            return "".join(_evaluate(part) for part in parts)
        case ast.Name(name):
            return _name(name)
        case ast.Call(function, arguments, keywords):
            return _call(function, arguments, keywords)
        case ast.Attribute(value, attribute):
            _attribute(value, attribute)
    return _refuse(node)


def _refuse(node: ast.AST) -> Any:
    raise RefusedExpressionError(f"{ast.unparse(node)[:80]!r} in an expression", _PLAIN)


def _name(name: str) -> Any:
    if name in _CODE_NAMES and not name.startswith("_"):
        raise UnresolvedError(f"{name} is not a value; keys are written {{{name}}}")
    if name in _CODE_NAMES:
        raise RefusedExpressionError(f"{name!r} in an expression would run code", _PLAIN)
    raise UnresolvedError(f"NameError: name {name!r} is not defined; keys are written {{{name}}}")


def _boolean(conjunction: bool, parts: Sequence[ast.expr]) -> Any:
    value: Any = None
    for part in parts:
        value = _evaluate(part)
        if bool(value) is not conjunction:
            break
    return value


def _compare(left: ast.expr, kinds: Sequence[ast.cmpop], right_sides: Sequence[ast.expr]) -> Any:
    value = _evaluate(left)
    result: Any = True
    for kind, right in zip(kinds, right_sides, strict=True):
        other = _evaluate(right)
        result = COMPARISONS[type(kind)](value, other)
        if not result:
            break
        value = other
    return result


def _call(function: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Any:
    if isinstance(function, ast.Attribute):
        target = _evaluate(function.value)
        called = _method(target, function.attr)
        charge(target)
    elif isinstance(function, ast.Name):
        if function.id not in _FUNCTIONS:
            if function.id in _CODE_NAMES:
                raise RefusedExpressionError(f"{function.id!r} in an expression would run code", _PLAIN)
            _name(function.id)
        called = _FUNCTIONS[function.id]
    else:
        _refuse(function)
    values = [_evaluate(argument) for argument in arguments]
    charge(*values)
    named = {keyword.arg: _evaluate(keyword.value) for keyword in keywords if keyword.arg}
    if len(named) < len(keywords):
        _refuse(function)
    result = called(*values, **named)
    if isinstance(result, str | list | tuple | dict | set):
        _bound_size(len(result))
    elif isinstance(result, int):
        _bound_bits(result.bit_length())
    return result


def _attribute(value: ast.expr, attribute: str) -> None:
    if not attribute.startswith("_"):
        target = _evaluate(value)
        if not hasattr(target, attribute):
            raise UnresolvedError(f"AttributeError: no attribute {attribute!r}")


def _method(target: Any, name: str) -> Callable[..., Any]:
    if not isinstance(target, str) or name not in _TEXT_METHODS:
        if not name.startswith("_") and not hasattr(target, name):
            raise UnresolvedError(f"AttributeError: no attribute {name!r}")
        raise RefusedExpressionError(f"{name!r} in an expression would run code", _PLAIN)
    if name == "replace":
        return functools.partial(_replace, target)
    if name == "zfill":
        return functools.partial(_zfill, target)
    if name == "join":
        return functools.partial(_join, target)
    return getattr(target, name)  # type: ignore[no-any-return]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    _bound_size(len(text) + (text.count(old) if count < 0 else min(count, len(text) + 1)) * len(new))
    return text.replace(old, new, count)


def _zfill(text: str, width: int) -> str:
    _bound_size(width)
    return text.zfill(width)


def _join(text: str, items: Sequence[str]) -> str:
    _bound_size(sum(len(item) for item in items) + len(text) * len(items))
    return text.join(items)


@dataclass(frozen=True)
class FormatText:
    """The names that a text with ``{name}`` fields uses.

    :param names: the keys that it reads, in order
    :param fields: number of fields
    :param escapes: whether it holds ``{{`` or ``}}``, so that it is not final after one round
    :param indirect: keys that it reads through an index, conversion or format specification
    :param nested: format specifications that hold fields themselves
    :param error: why Python cannot format it at all; empty if it can
    """

    names: tuple[str, ...]
    fields: int
    escapes: bool = False
    indirect: frozenset[str] = frozenset()
    nested: tuple[str, ...] = ()
    error: str = ""


# what {name.attribute} may read of a number or text: fixed facts, no addresses, nothing of the interpreter
_ATTRIBUTES = frozenset(
    {"real", "imag", "numerator", "denominator", "__class__", "__name__", "__qualname__", "__module__"}
)
_ACCESS = re.compile(r"\.([^.\[]*)|\[([^\]]*)\]")


@functools.lru_cache(maxsize=65_536)
def analyse_format(text: str) -> FormatText:
    """Return the names that ``str.format`` would use for ``text``.

    :raises RefusedExpressionError: if a field reads Python's internals or has an enormous width
    """
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        return FormatText((), 0, error=str(error))
    names: list[str] = []
    nested: list[str] = []
    indirect: set[str] = set()
    fields = 0
    escapes = "{{" in text or "}}" in text
    for _, field, specification, conversion in parsed:
        if field is None:
            continue
        fields += 1
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not name or name.isdecimal():
            return FormatText((), fields, error=f"{{{field}}} is not the name of a key")
        names.append(name)
        for attribute, _ in _ACCESS.findall(field[len(name) :]):
            if attribute and attribute not in _ATTRIBUTES and _known_attribute(attribute):
                raise RefusedExpressionError(
                    f"{{{field}}} reads {attribute!r} of a Python object",
                    "read the key itself: {" + name + "}",
                )
        if len(field) > len(name) or specification or conversion:
            indirect.add(name)
        if specification and "{" in specification:
            nested.append(specification)
            inner = analyse_format(specification)
            names += inner.names
            indirect |= set(inner.names)
        elif specification:
            _check_width(specification)
    return FormatText(tuple(names), fields, escapes, frozenset(indirect), tuple(nested))


def _known_attribute(name: str) -> bool:
    return name.startswith("__") or any(hasattr(kind, name) for kind in (str, int, float, list, dict, tuple))


def format_text(text: str, values: Mapping[str, Any]) -> str:
    """Return ``text.format(**values)``.

    :raises UnresolvedError: where Python raises an error (an unknown name, a wrong format)
    :raises RefusedExpressionError: where it would read Python's internals or grow without bound
    """
    what = analyse_format(text)
    if what.error:
        raise UnresolvedError(what.error)
    for name in what.names:
        if name not in values:
            raise UnresolvedError(f"there is no key {name!r}")
    for specification in what.nested:
        _check_width(format_text(specification, values))
    if what.fields > _MANY_FIELDS:
        sizes = {name: len(str(values[name])) for name in set(what.names)}
        _bound_size(len(text) + sum(sizes[name] for name in what.names))
    try:
        made = text.format_map(values)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise UnresolvedError(f"{type(error).__name__}: {error}") from error
    _bound_size(len(made))
    return made
