"""Conversion of parameters to a command line that the parser of a release reads as the same values.

>>> to_argv({"num_layers": 4, "lr": 1e-05, "bf16": True, "add_bias_linear": False}, "core_v0.16.1")
['--bf16', '--num-layers', '4', '--disable-bias-linear', '--lr', '1e-05']
"""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from airflow_megatron.megatron.arguments.tables import ArgumentError, program_table
from airflow_megatron.spec.documents.errors import near_names
from airflow_megatron.spec.documents.list_texts import meant_list
from airflow_megatron.spec.documents.quantities import meant_number
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.megatron.arguments.tables import Argument, ArgumentTable

_MOST_KNOWN: Final = 4096
_LARGEST: Final = sys.float_info.max
"""Rules and estimates calculate with floating-point numbers, as upstream does."""


def to_argv(params: Mapping[str, object], release: str | ArgumentTable) -> list[str]:
    """Return parameters as a command line.

    Flags are written for True (see :meth:`.ArgumentTable.flag_tokens`), lists as several values, None is left out, and
    floats have every necessary digit. The order is the parser's, so equal parameters give equal command lines.

    :param params: name → value; a name is a ``dest`` or a flag, with dashes or underscores.
    :param release: an upstream tag, for example ``core_v0.16.1``; or the table of a fork or of a trainer.
    :returns: the tokens, without quotes.
    :raises ArgumentError: for the first parameter (in the given order) that the release does not accept.
    """
    table = program_table(release) if isinstance(release, str) else release
    release = table.release
    names = tuple(params)
    line = _from_last_line(params, names, table)
    if line is None:
        written: dict[str, Written] = {}
        for name, value in params.items():
            argument = table.get(name)
            if argument is None:
                raise _unknown(name, table)
            if value is None:
                continue
            if argument.dest in written:
                other = written[argument.dest].name
                raise ArgumentError(
                    name, release, f"sets {argument.dest}, which {other} sets already; keep one"
                )
            written[argument.dest] = _written(name, value, argument, table)
        parts = tuple(written.values())
        order = tuple(sorted(range(len(parts)), key=lambda index: parts[index].position))
        line = WrittenLine.of(tuple(params.values()), parts, order)
        if len(parts) < len(names):  # some are None
            return line.words
    table.last_lines[names] = line
    return line.words.copy()


class Written(NamedTuple):
    """The words of a parameter on a command line.

    :param position: position of the argument in the parser's order
    """

    position: int
    name: str
    tokens: list[str]


class WrittenLine(NamedTuple):
    """A command line made from parameters, kept because most values of a sweep's points are the same objects.

    :param values: values of the parameters, in their order
    :param written: words of each parameter
    :param order: their indices in the parser's order
    :param words: words of the command line
    :param places: position of the word with a parameter's single value, 0 for parameters with no or several values
    """

    values: tuple[object, ...]
    written: tuple[Written, ...]
    order: tuple[int, ...]
    words: list[str]
    places: tuple[int, ...]

    @classmethod
    def of(
        cls, values: tuple[object, ...], written: tuple[Written, ...], order: tuple[int, ...]
    ) -> WrittenLine:
        """Join the words of parameters."""
        words: list[str] = []
        places = [0] * len(written)
        for index in order:
            words += written[index].tokens
            if len(written[index].tokens) == 2:
                places[index] = len(words) - 1
        return cls(values, written, order, words, tuple(places))


def _from_last_line(
    params: Mapping[str, object], names: tuple[str, ...], table: ArgumentTable
) -> WrittenLine | None:
    """Return the command line of parameters that differ in some values from the last ones with these names."""
    last = table.last_lines.get(names)
    if last is None:
        return None
    values, before, places = tuple(params.values()), last.values, last.places
    written, words, is_like = list(last.written), last.words.copy(), True
    for index in [index for index, value in enumerate(values) if value is not before[index]]:
        value, argument = values[index], table.get(names[index])
        if value is None or argument is None:
            return None
        part = _written(names[index], value, argument, table)
        if part.position != written[index].position:
            return None
        written[index], place = part, places[index]
        if place and len(part.tokens) == 2:
            words[place] = part.tokens[1]
        else:
            is_like = False
    if is_like:
        return WrittenLine(values, tuple(written), last.order, words, places)
    return WrittenLine.of(values, tuple(written), last.order)


def _written(name: str, value: object, argument: Argument, table: ArgumentTable) -> Written:
    """Return the words of a parameter; values that several points of a sweep share are formatted once."""
    if type(value) is str and value.startswith("/") and argument.is_text and "\0" not in value:
        # a directory, which is different for each job
        return Written(table.position(argument), name, [argument.flags[0], value])
    if type(value) not in (int, float, str) or not value:  # 0.0 and -0.0 are equal
        return _newly_written(name, value, argument, table)
    key = name, type(value), value
    known = table.written.get(key)
    if known is None:
        if len(table.written) >= _MOST_KNOWN:
            table.written.clear()
        known = table.written[key] = _newly_written(name, value, argument, table)
    return known


def _newly_written(name: str, value: object, argument: Argument, table: ArgumentTable) -> Written:
    if argument.is_flag:
        if not isinstance(value, bool):
            raise ArgumentError(name, table.release, f"is a flag: write true or false, not {value!r}")
        argument, written = table.flag_tokens(name, value)
    else:
        written = _value_tokens(name, value, argument, table.release)
    return Written(table.position(argument), name, written)


def _unknown(name: str, table: ArgumentTable) -> ArgumentError:
    package = table.package_of(name)
    if package is None:
        return ArgumentError(
            name, table.release, f"{table.release} has no such argument", table.nearest(name)
        )
    reason = (
        f"{table.release} has it only where the package {package} is installed; install it and name it in the "
        f"cluster profile: trainers: {{megatron_lm: {{packages: [{package}]}}}}"
    )
    return ArgumentError(name, table.release, reason)


def _value_tokens(name: str, value: object, argument: Argument, release: str) -> list[str]:
    flag = argument.flags[0]
    if argument.type == "bool":
        # argparse calls bool() on the text: "False" is true, the empty string alone is false.
        if not isinstance(value, bool):
            raise ArgumentError(name, release, f"must be true or false, not {value!r}")
        return [flag, "True"] if value else [f"{flag}="]
    if not argument.is_list:
        text = _value_text(name, value, argument, release)
        # A value that looks like an option can only be given in one token.
        return [f"{flag}={text}"] if text.startswith("-") and not _is_number(text) else [flag, text]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if isinstance(argument.nargs, int) and len(values) != argument.nargs:
        meant = meant_list(value)
        text = f" (write {meant})" if meant else ""
        raise ArgumentError(name, release, f"takes {argument.nargs} values, not {len(values)}{text}")
    if argument.nargs == "+" and not values:
        raise ArgumentError(name, release, "takes at least one value; leave it out or write null for none")
    written = [_value_text(name, item, argument, release) for item in values]
    for text in written:
        if text.startswith("-") and not _is_number(text):
            raise ArgumentError(name, release, f"{text!r} would be read as an option")
    return [flag, *written]


def _value_text(name: str, value: object, argument: Argument, release: str) -> str:
    if path_of(value) is not None:
        return str(value)  # known only when the job starts
    text = _TYPES.get(argument.type, _text_value)(value)
    if text is None:
        wanted = _TYPE_WORDS.get(argument.type, "text")
        if _is_too_large(value):
            shown = shown_value(value)
            raise ArgumentError(name, release, f"must be {wanted} below {_LARGEST:.1e}, not {shown}")
        number, values = meant_number(value), meant_list(value)
        text = f" (write {number})" if number and argument.type in ("int", "float") else ""
        if not text and values:
            text = f" (that is one text; to try several values write sweep: {{{name}: {values}}})"
        if not text and wanted == "text" and _are_numbers(value):
            text = f" (write '{','.join(map(str, value))}')"
        raise ArgumentError(name, release, f"must be {wanted}, not {value!r}{text}")
    if argument.choices is not None and text not in {str(choice) for choice in argument.choices}:
        choices = [str(choice) for choice in argument.choices]
        lower = {choice.lower(): choice for choice in choices}
        near = [lower[word] for word in near_names(text.lower(), lower, limit=1)]
        raise ArgumentError(name, release, f"cannot be {text!r}; allowed are {', '.join(choices)}", near)
    return text


def _are_numbers(value: object) -> TypeGuard[Sequence[float]]:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_float_value, value))


def _integer_value(value: object) -> str | None:
    number = _integer(value)
    return None if number is None or abs(number) > _LARGEST else str(number)


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return None


def _is_too_large(value: object) -> bool:
    number = _integer(value)
    return number is not None and abs(number) > _LARGEST


def _float_value(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if math.isnan(value) if isinstance(value, float) else abs(value) > _LARGEST:
        return None
    text = repr(value)
    # argparse reads "-1e-05" as an option, but "-0.00001" as a number.
    return format(Decimal(text), "f") if text.startswith("-") and "e" in text else text


def _text_value(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value)
    return None if "\0" in text else text


def _pattern_value(value: object) -> str | None:
    """Layer patterns (``moe_layer_freq``): a number, an expression as text, or a list of 0 and 1."""
    if isinstance(value, (list, tuple)):
        items = [_integer_value(item) for item in value]
        return None if None in items else "[" + ",".join(str(item) for item in items) + "]"
    return _text_value(value)


def _tuple_value(value: object) -> str | None:
    """Tuples (``window_size``): two numbers, as text or as a list; the parser strips the parentheses."""
    text = _pattern_value(value)
    return f"({text[1:-1]})" if text is not None and isinstance(value, (list, tuple)) else text


_TYPES: Final[dict[str | None, Callable[[object], str | None]]] = {
    "int": _integer_value,
    "float": _float_value,
    "moe_freq_type": _pattern_value,
    "la_freq_type": _pattern_value,
    "no_rope_freq_type": _pattern_value,
    "tuple_type": _tuple_value,
}
_TYPE_WORDS: Final[dict[str | None, str]] = {
    "int": "an integer",
    "float": "a number",
    "moe_freq_type": "a number, an expression or a list of 0 and 1",
    "la_freq_type": "a number, an expression or a list of 0 and 1",
    "no_rope_freq_type": "a number, an expression or a list of 0 and 1",
    "tuple_type": "a list of numbers",
}


def _is_number(text: str) -> bool:
    """Return whether argparse reads a token that starts with a dash as a number (``_negative_number_matcher``)."""
    whole, dot, fraction = text.removeprefix("-").partition(".")
    if not text.isascii() or (dot and not fraction):
        return False
    return (whole.isdigit() or (bool(dot) and not whole)) and (not dot or fraction.isdigit())
