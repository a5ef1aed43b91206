"""The resolvers of ``${name:arguments}``: OmegaConf's own and those that oellm-autoexp adds.

Results were compared with ``oellm_autoexp/hydra_staged_sweep/config/resolvers.py`` and ``oellm_autoexp/config/
resolvers.py`` (c6d0cc0). As there, the arithmetic ones ignore what is not a number (``oc.mul:2,x`` is 2.0).
Those that need the configuration or its context (``oc.env``, ``oc.exclude_nodes``, ``oc.select``,
``oc.dict.keys``, ``oc.dict.values``, ``oc.timestring``) are answered by
:mod:`airflow_megatron.spec.foreign.interpolation.configuration`.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.expressions.bounds import nested_size
from airflow_megatron.spec.foreign.interpolation.eval import (
    MAX_BITS,
    MAX_LENGTH,
    MAX_NESTED_TEXT,
    evaluate_python,
)
from airflow_megatron.spec.trust.patterns import line_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_NODE_NAME = re.compile(r"[A-Za-z0-9._\[\]-]{1,256}\Z")


def _number(kind: type[int] | type[float], value: Any) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        return None


def _product(kind: type[int] | type[float], *values: Any) -> Any:
    numbers = [number for number in (_number(kind, value) for value in values) if number is not None]
    return _bounded_number(math.prod(numbers, start=kind(1)) if _are_small(numbers) else kind(0), numbers)


def _are_small(numbers: list[Any]) -> bool:
    return sum(number.bit_length() for number in numbers if isinstance(number, int)) <= MAX_BITS


def _bounded_number(result: Any, numbers: list[Any]) -> Any:
    if not _are_small(numbers):
        raise ValueError(f"the result has more than {MAX_BITS:,} bits")
    return result


def _total(kind: type[int] | type[float], *values: Any) -> Any:
    return sum(
        (number for number in (_number(kind, value) for value in values) if number is not None), kind(0)
    )


def _difference(kind: type[int] | type[float], left: Any, right: Any) -> Any:
    left, right = _number(kind, left), _number(kind, right)
    return kind(0) if left is None or right is None else left - right


def _quotient(kind: type[int] | type[float], left: Any, right: Any) -> Any:
    if isinstance(left, list):
        if isinstance(right, list):
            return [_quotient(kind, one, other) for one, other in zip(left, right, strict=False)]
        return [_quotient(kind, one, right) for one in left]
    left, right = _number(kind, left), _number(kind, right)
    if left is None or right is None or right == 0:
        return kind(0)
    return left / right if kind is float else left // right


def _ceil_quotient(left: Any, right: Any) -> int:
    left, right = _number(int, left), _number(int, right)
    return 0 if left is None or not right else -(-left // right)


def _slice(value: Any, start: Any, end: Any) -> Any:
    return value[int(start) : int(end)]


def _rounded_product(left: Any, right: Any, multiple: Any) -> int:
    return int(round(float(left) * float(right) / float(multiple)) * float(multiple))


def _concatenated(left: Any, right: Any) -> Any:
    if len(left) + len(right) > MAX_LENGTH * 10:
        raise ValueError("the result is too long")
    return left + right


def _integer(value: Any) -> int:
    number = _number(int, value)
    return int(bool(value)) if number is None else number


def _merged(*mappings: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for mapping in mappings:
        if isinstance(mapping, dict):
            result.update(mapping)
    return result


def _choice(condition: Any, yes: Any, no: Any) -> Any:
    false = not condition or (isinstance(condition, str) and condition.lower() == "false")
    return no if false else yes


def _join(glue: str, items: list[Any]) -> str:
    texts = [str(item) for item in items]
    _check_text(sum(map(len, texts)) + len(glue) * len(texts))
    return glue.join(texts)


def _check_text(length: int) -> None:
    if length > MAX_NESTED_TEXT:
        raise ValueError(f"it makes a text of more than {MAX_NESTED_TEXT:,} characters")


def _fill(template: str, item: Any) -> str:
    text = str(item)
    _check_text(len(template) + template.count("%") * len(text))
    return template.replace("%", text)


def _fill_each(template: str, items: list[Any]) -> list[str]:
    return _bounded_list(_fill(template, item) for item in items)


def _bounded_list(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list; each is counted before the next is created."""
    made: list[str] = []
    length = 0
    for text in texts:
        length += len(text)
        _check_text(length)
        made.append(text)
    return made


def _fill_each_under_key(key: str, template: str, items: list[Any]) -> list[dict[str, str]]:
    return [{key: text} for text in _fill_each(template, items)]


def _fill_pairs(template: str, items: dict[str, Any]) -> list[str]:
    return _bounded_list(_fill_pair(template, str(key), str(value)) for key, value in items.items())


def _fill_pair(template: str, key: str, value: str) -> str:
    _check_text(len(template) * (1 + len(key)) * (1 + len(value)) // 4)
    return template.replace("%k", key).replace("%v", value)


def _fill_values(template: str, items: dict[str, Any]) -> dict[str, str]:
    texts = _bounded_list(_fill_value(template, str(value)) for value in items.values())
    return dict(zip(items, texts, strict=True))


def _fill_value(template: str, value: str) -> str:
    _check_text(len(template) + template.count("%v") * len(value))
    return template.replace("%v", value)


def _fill_by_pattern(pattern: str, yes: str, no: str, items: list[Any]) -> list[str]:
    matching = line_pattern(pattern, at_beginning=True)
    return _bounded_list(_fill(no if matching.search(str(item)) is None else yes, item) for item in items)


def _evaluated_each(sources: list[Any]) -> list[Any]:
    made: list[Any] = []
    size = 0
    for source in sources:
        value = evaluate_python(str(source))
        size += sum(nested_size(value, MAX_NESTED_TEXT, MAX_NESTED_TEXT))
        _check_text(size)
        made.append(value)
    return made


def _slurm_time(seconds: Any) -> str:
    seconds = int(seconds)
    return f"{seconds // 86400}-{seconds // 3600 % 24}:{seconds // 60 % 60}:{seconds % 60}"


def excluded_nodes(content: str, separator: str = ",") -> str | None:
    """Return the node names in a file's text, separated by line ends or commas, without ``#`` comments."""
    names: dict[str, None] = {}
    for line in content.splitlines():
        text = line.strip()
        if not text.startswith("#"):
            names.update(dict.fromkeys(name for name in re.split(r"[,\s]+", text) if _NODE_NAME.match(name)))
    return separator.join(names) or None


def _iteration_directory(step: Any) -> str:
    return f"iter_{int(step):07d}"


def _training_configuration(directory: Any, file: str = "") -> str:
    """Return the configuration that a training run writes; ``current.yaml`` is a link to the newest one."""
    return f"{directory}/{file or 'current.yaml'}"


RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "oc.add": functools.partial(_total, float),
    "oc.addi": functools.partial(_total, int),
    "oc.cdivi": _ceil_quotient,
    "oc.concat": _concatenated,
    "oc.dict_merge": _merged,
    "oc.div": functools.partial(_quotient, float),
    "oc.divi": functools.partial(_quotient, int),
    "oc.eq": lambda left, right: left == right,
    "oc.eval": lambda source: evaluate_python(str(source)),
    "oc.geq": lambda left, right: left >= right,
    "oc.gt": lambda left, right: left > right,
    "oc.if": _choice,
    "oc.int": _integer,
    "oc.join": _join,
    "oc.len": len,
    "oc.leq": lambda left, right: left <= right,
    "oc.lt": lambda left, right: left < right,
    "oc.mapcondtmpl": _fill_by_pattern,
    "oc.mapeval": _evaluated_each,
    "oc.mapextractkey": lambda key, items: [item[key] for item in items],
    "oc.mapkeytmpl": _fill_each_under_key,
    "oc.mapkeyvaltmpl": _fill_pairs,
    "oc.maptmpl": _fill_each,
    "oc.mapvaltmpl": _fill_values,
    "oc.mul": functools.partial(_product, float),
    "oc.mul_round_int": _rounded_product,
    "oc.muli": functools.partial(_product, int),
    "oc.neq": lambda left, right: left != right,
    "oc.pad_iter": _iteration_directory,
    "oc.slice": _slice,
    "oc.slurmtime": _slurm_time,
    "oc.split": lambda text, separator: text.split(separator),
    "oc.sqrt": lambda value: math.sqrt(float(value)),
    "oc.sub": functools.partial(_difference, float),
    "oc.subi": functools.partial(_difference, int),
    "oc.tmpl": _fill,
    "oc.train_config": _training_configuration,
    "oc.train_config_opt": _training_configuration,
}
"""Name → function of the arguments' values."""
