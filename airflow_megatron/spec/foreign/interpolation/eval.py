"""``${oc.eval:…}``: Python expressions on numbers and text; only listed kinds of syntax nodes are evaluated.

oellm-autoexp hands the text to Python's ``eval`` behind a list of forbidden words. Here only literals, arithmetic,
comparisons, conditionals, indexing and a few functions are known, and every result has a bounded size, so that an
expression can neither run code nor hang.
"""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.expressions.bounds import (
    TooMuchWorkError,
    begin_evaluation,
    charge,
    charge_modular_power,
    charge_numbers,
    nested_size,
    summed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_TEXT = 10_000
MAX_BITS = 10_000
MAX_LENGTH = 100_000
MAX_NESTED_TEXT = 1_000_000
MAX_DIGITS = 400


class EvaluationError(AirflowMegatronError, ValueError):
    """An expression that cannot be evaluated; the message is the reason."""


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MAX_LENGTH:
        raise EvaluationError(f"range of more than {MAX_LENGTH:,} numbers")
    return list(numbers)


def _power(base: Any, exponent: Any, modulus: Any = None) -> Any:
    _check_power(base, exponent)
    charge_modular_power(exponent, modulus)
    return pow(base, exponent, modulus)


def _rounded(value: Any, digits: int | None = None) -> Any:
    if digits is not None and abs(digits) > MAX_DIGITS:
        raise EvaluationError(f"round to more than {MAX_DIGITS} digits")
    return round(value, digits)


def _joined_texts(glue: str, items: Any) -> str:
    texts = list(items)
    if sum(map(len, texts)) + len(glue) * len(texts) > MAX_NESTED_TEXT:
        raise EvaluationError("join makes a text that is too long")
    return glue.join(texts)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "divmod": divmod,
    "float": float,
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "pow": _power,
    "range": _range,
    "round": _rounded,
    "set": frozenset,
    "sorted": sorted,
    "str": str,
    "sum": summed,
    "tuple": tuple,
}


def _zero_filled(text: str, width: int) -> str:
    if width > MAX_LENGTH:
        raise EvaluationError(f"zfill to more than {MAX_LENGTH:,} characters")
    return text.zfill(width)


def _replaced(text: str, old: str, new: str) -> str:
    if (len(text) + 1) * max(len(new), 1) > MAX_LENGTH * 10:
        raise EvaluationError("replace makes a text that is too long")
    return text.replace(old, new)


METHODS: Mapping[str, Callable[..., Any]] = {
    "capitalize": str.capitalize,
    "count": str.count,
    "endswith": str.endswith,
    "find": str.find,
    "isdigit": str.isdigit,
    "join": _joined_texts,
    "lower": str.lower,
    "lstrip": str.lstrip,
    "removeprefix": str.removeprefix,
    "removesuffix": str.removesuffix,
    "replace": _replaced,
    "rstrip": str.rstrip,
    "split": str.split,
    "startswith": str.startswith,
    "strip": str.strip,
    "title": str.title,
    "upper": str.upper,
    "zfill": _zero_filled,
}


def evaluate_python(source: str) -> Any:
    """Return the value of a Python expression that uses no names.

    :raises EvaluationError: on a syntax error, anything that is not allowed, or a failing operation
    """
    if len(source) > MAX_TEXT:
        raise EvaluationError(f"the expression has more than {MAX_TEXT:,} characters")
    try:
        tree = ast.parse(source.strip(), mode="eval")
        begin_evaluation(len(source) // 2)
        value = _value(tree.body)
        if isinstance(value, frozenset):
            raise EvaluationError(f"{_short(source)} is a set, which no key can have; write sorted(…)")
        return value
    except EvaluationError:
        raise
    except TooMuchWorkError as error:
        raise EvaluationError(f"{_short(source)}: {error}") from error
    except SyntaxError as error:
        raise EvaluationError(f"{_short(source)} is not an expression: {error.msg}") from error
    except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise EvaluationError(f"{_short(source)} fails: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise EvaluationError(f"{_short(source)} is nested too deeply") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.BinOp():
            return _bounded(_operation(node))
        case ast.UnaryOp():
            return UNARY[type(node.op)](_value(node.operand))
        case ast.BoolOp():
            return _logic(node)
        case ast.Compare():
            return _comparison(node)
        case ast.IfExp():
            return _value(node.body) if _value(node.test) else _value(node.orelse)
        case ast.List():
            return _bounded([_value(item) for item in node.elts])
        case ast.Tuple():
            return _bounded(tuple(_value(item) for item in node.elts))
        case ast.Set():
            return frozenset(_bounded([_value(item) for item in node.elts]))
        case ast.Dict() if all(node.keys):
            return _bounded(
                {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
            )
        case ast.Subscript():
            return _value(node.value)[_index(node.slice)]
        case ast.Call():
            return _bounded(_call(node))
        case ast.Name():
            raise EvaluationError(f"{node.id!r} has no value; quote it if it is text")
        case _:
            raise EvaluationError(f"{type(node).__name__} is not allowed in oc.eval")


def _operation(node: ast.BinOp) -> Any:
    left, right = _value(node.left), _value(node.right)
    match node.op:
        case ast.Pow():
            _check_power(left, right)
        case ast.LShift() if isinstance(right, int) and right > MAX_BITS:
            raise EvaluationError("the result is too large")
        case ast.Mod() if isinstance(left, str | bytes):
            raise EvaluationError("text formatting with % is not allowed in oc.eval")
        case ast.Mult():
            _check_repetition(left, right)
            _check_repetition(right, left)
        case ast.MatMult():
            raise EvaluationError("@ is not allowed in oc.eval")
    charge_numbers(left, right)
    return _BINARY[type(node.op)](left, right)


def _logic(node: ast.BoolOp) -> Any:
    wanted = isinstance(node.op, ast.Or)
    value: Any = None
    for part in node.values:
        value = _value(part)
        if bool(value) is wanted:
            return value
    return value


def _comparison(node: ast.Compare) -> Any:
    left = _value(node.left)
    for comparison, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part)
        if not COMPARISONS[type(comparison)](left, right):
            return False
        left = right
    return True


def _index(node: ast.expr) -> Any:
    if isinstance(node, ast.Slice):
        return slice(*(_value(part) if part else None for part in (node.lower, node.upper, node.step)))
    return _value(node)


def _call(node: ast.Call) -> Any:
    arguments = [_value(argument) for argument in node.args]
    if node.keywords:
        raise EvaluationError("named arguments are not allowed in oc.eval")
    if isinstance(node.func, ast.Name):
        function = FUNCTIONS.get(node.func.id)
        if function is None:
            raise EvaluationError(
                f"there is no function {node.func.id}; known: {', '.join(sorted(FUNCTIONS))}"
            )
        charge(*arguments)
        return function(*arguments)
    if isinstance(node.func, ast.Attribute):
        owner = _value(node.func.value)
        method = METHODS.get(node.func.attr)
        if method is None or not isinstance(owner, str):
            raise EvaluationError(
                f"there is no method {node.func.attr}; known, of text: {', '.join(sorted(METHODS))}"
            )
        charge(owner, *arguments)
        return method(owner, *arguments)
    raise EvaluationError("only functions can be called in oc.eval")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise EvaluationError("the result is too large")


def _check_repetition(items: Any, times: Any) -> None:
    if isinstance(items, str | bytes | list | tuple) and isinstance(times, int):
        count, text = nested_size(items, MAX_LENGTH, MAX_NESTED_TEXT)
        if max(count * times, text * times // 10, len(items) * times) > MAX_LENGTH:
            raise EvaluationError("the result is too long")
    elif isinstance(items, int) and isinstance(times, int) and items.bit_length() > MAX_BITS:
        raise EvaluationError("the result is too large")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise EvaluationError("the result is too large")
    if isinstance(value, str | bytes) and len(value) > MAX_NESTED_TEXT:
        raise EvaluationError("the result is too long")
    charge(value)
    if isinstance(value, list | tuple | dict | frozenset):
        items, text = nested_size(value, MAX_LENGTH, MAX_NESTED_TEXT)
        if items > MAX_LENGTH or text > MAX_NESTED_TEXT:
            raise EvaluationError("the result is too long")
    return value


def _short(source: str) -> str:
    return repr(source if len(source) <= 120 else source[:117] + "…")
