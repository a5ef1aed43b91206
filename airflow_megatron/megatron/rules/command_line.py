"""Read a command line the way a release's ``argparse`` parser does.

Upstream builds its parser with ``allow_abbrev=False``, so abbreviated flags are unknown. Building the real
``argparse`` parser and running it costs milliseconds per command line (hundreds of arguments); a sweep has thousands
of jobs, so this module follows the same algorithm over the argument table.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from airflow_megatron.megatron.arguments.tables import Argument, ArgumentTable

SOURCE: Final = "megatron/training/arguments.py parse_args"
CUDA_GRAPH_SCOPES: Final = {
    "core_v0.16": ("full", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
}
CUDA_GRAPH_MODULES: Final = (
    *("full", "full_iteration", "full_iteration_inference"),
    *("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
)
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_PATTERN_TEXT = re.compile(r"[,\d\[\]()+*]*")
_LONGEST_PATTERN: Final = 100_000
_WORDS: Final = {"int": "a whole number", "float": "a number", "tuple_type": "numbers like 1,2,3"}


@dataclass(frozen=True, slots=True)
class _Option:
    """One spelling of an argument, prepared for parsing."""

    argument: Argument
    constant: bool | None
    convert: Callable[[str], Any] | None
    choices: frozenset[Any] | None


class CommandLineReader:
    """Parser of command lines for one argument table."""

    def __init__(self, table: ArgumentTable) -> None:
        """Prepare every flag of the table."""
        self.table = table
        self._required = [argument for argument in table if argument.required]
        self._options: dict[str, _Option] = {}
        for argument in table:
            choices = frozenset(argument.choices) if argument.choices is not None else None
            for flag in argument.flags:
                constant = None
                if argument.action == "StoreTrue":
                    constant = True
                elif argument.action == "StoreFalse":
                    constant = False
                elif argument.action == "BooleanOptional":
                    constant = not flag.startswith("--no-")
                self._options[flag] = _Option(argument, constant, _converter(argument), choices)

    def read(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[ArgumentProblem]]:
        """Parse a command line.

        :param argv: the tokens after the program's name.
        :returns: the given values by ``dest``, and the problems for which the parser would refuse it.
        """
        options = self._options
        values: dict[str, Any] = {}
        problems: list[ArgumentProblem] = []
        position, end = 0, len(argv)
        while position < end:
            token = argv[position]
            position += 1
            option, attached = options.get(token), None
            if option is None:
                if token in ("-h", "--help"):
                    return values, [
                        ArgumentProblem(
                            "parse.help", f"{token} prints help and exits", "leave it out", SOURCE
                        )
                    ]
                head, equals, attached = token.partition("=")
                option = options.get(head) if equals else None
            if option is None:
                start = position - 1
                if token == "--":
                    position = end
                while position < end and not self._is_option(argv[position]):
                    position += 1
                problems.append(self._unknown(argv[start:position]))
                continue
            flag = option.argument.flags[0]
            if option.constant is not None:
                if attached is not None:
                    problems.append(_problem("parse.flag-value", flag, f"takes no value, not {attached!r}"))
                values[option.argument.dest] = option.constant
                continue
            first = position
            if attached is not None:
                words: Sequence[str] = (attached,)
            elif option.argument.nargs is None and position < end and argv[position][:1] not in ("-", ""):
                words = (argv[position],)  # the usual case, without the checks below
                position += 1
            else:
                wanted = option.argument.nargs
                limit = end if wanted in ("+", "*") else first + (wanted if isinstance(wanted, int) else 1)
                while position < min(limit, end) and not self._is_option(argv[position]):
                    position += 1
                words = argv[first:position]
            problem = _count_problem(option.argument, flag, words)
            if problem is None:
                problem = _read_values(option, flag, words, values)
            if problem is not None:
                problems.append(problem)
        for argument in self._required:
            if argument.dest not in values:
                problems.append(_problem("parse.required", argument.flags[0], "must be given"))
        return values, problems

    def takes(self, flag: str, word: str) -> bool:
        """Return whether a flag accepts a word as its only value, at any position of a command line."""
        option = self._options[flag]
        simple = option.constant is None and option.argument.nargs is None and word[:1] not in ("-", "")
        return simple and _read_values(option, flag, (word,), {}) is None

    def places_of_values(self, words: Sequence[str], read: Collection[str]) -> Iterator[int]:
        """Yield the positions of single values on a command line, except those of some arguments.

        :param read: ``dest`` of the excluded arguments
        """
        for place, flag in enumerate(words[:-1], start=1):
            option = self._options.get(flag)
            if option is not None and option.argument.dest not in read and self.takes(flag, words[place]):
                yield place

    def _is_option(self, token: str) -> bool:
        """Return whether argparse reads a token as an option (``ArgumentParser._parse_optional``)."""
        if not token.startswith("-"):
            return False
        if token in self._options:
            return True
        if len(token) == 1:
            return False
        if "=" in token and token.partition("=")[0] in self._options:
            return True
        return _NEGATIVE_NUMBER.fullmatch(token) is None and " " not in token

    def _unknown(self, tokens: Sequence[str]) -> ArgumentProblem:
        name = tokens[0].partition("=")[0]
        release = self.table.release
        if not name.startswith("--") or name == "--":
            text = " ".join(tokens)
            return ArgumentProblem(
                "parse.stray-value", f"{text!r} belongs to no argument", "leave it out", SOURCE
            )
        package = self.table.package_of(name)
        if package is not None:
            message = f"{release} has the argument {name} only where the package {package} is installed"
            hint = (
                f"install it and name it: trainers: {{megatron_lm: {{packages: [{package}]}}}} in the cluster profile "
                f"(--packages {package} of megatron-args check)"
            )
            return ArgumentProblem("parse.package-flag", message, hint, SOURCE)
        near = [self.table.get(candidate) for candidate in self.table.nearest(name)]
        flags = [argument.flags[0] for argument in near if argument is not None]
        starting = [flag for flag in self._options if flag.startswith(name)][:3]
        proposed = list(dict.fromkeys(starting + flags))[:3]
        hint = f"nearest: {', '.join(proposed)}" if proposed else "leave it out, or declare it for a fork"
        return ArgumentProblem("parse.unknown-flag", f"{release} has no argument {name}", hint, SOURCE)


@functools.cache
def reader(table: ArgumentTable) -> CommandLineReader:
    """Return the cached parser for a table."""
    return CommandLineReader(table)


def _problem(rule: str, flag: str, reason: str, hint: str | None = None) -> ArgumentProblem:
    return ArgumentProblem(rule, f"{flag} {reason}", hint or f"correct {flag}", SOURCE)


def _count_problem(argument: Argument, flag: str, words: Sequence[str]) -> ArgumentProblem | None:
    if argument.nargs == "*":
        return None
    wanted = argument.nargs if isinstance(argument.nargs, int) else 1
    if len(words) >= wanted:
        return None
    many = (
        "at least one value" if argument.nargs == "+" else "one value" if wanted == 1 else f"{wanted} values"
    )
    return _problem("parse.value-missing", flag, f"takes {many}, {len(words)} given", f"write {many}")


def _read_values(
    option: _Option, flag: str, words: Sequence[str], values: dict[str, Any]
) -> ArgumentProblem | None:
    read: list[Any] = []
    for word in words:
        value: Any = word
        if option.convert is not None:
            try:
                value = option.convert(word)
            except (ValueError, KeyError, SyntaxError):
                kind = _WORDS.get(option.argument.type or "", f"a {option.argument.type}")
                return _problem("parse.type", flag, f"must be {kind}, not {word!r}", f"write {kind}")
        if option.choices is not None and value not in option.choices:
            return _choice_problem(option.argument, flag, value)
        read.append(value)
    values[option.argument.dest] = read if option.argument.nargs is not None else read[0]
    return None


def _choice_problem(argument: Argument, flag: str, value: object) -> ArgumentProblem:
    choices = [str(choice) for choice in argument.choices or ()]
    same = [choice for choice in choices if choice.lower() == str(value).lower()]
    hint = f"write {same[0]}" if same else f"one of {', '.join(choices)}"
    return _problem("parse.choice", flag, f"cannot be {value!r}", hint)


def _converter(argument: Argument) -> Callable[[str], Any] | None:
    if argument.flags[0] == "--cuda-graph-scope" and argument.type == "<lambda>":
        return functools.partial(_member, CUDA_GRAPH_SCOPES["core_v0.16"])
    return _CONVERTERS.get(argument.type)


def _member(names: Sequence[str], text: str) -> str:
    if text not in names:
        raise ValueError(text)
    return text


def layer_pattern(text: str) -> Any:
    """Parse a layer pattern: a number, or a list expression such as ``([0]*3+[1])*2``.

    :raises ValueError: if it is neither (upstream's ``_eval_pattern``).
    """
    if "[" not in text:
        return int(text)
    if not _PATTERN_TEXT.fullmatch(text):
        raise ValueError(text)
    return _evaluate(ast.parse(text, mode="eval").body)


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(item) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _evaluate(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Add):
            if type(left) is not type(right):
                raise ValueError("cannot add a list and a number")
            return left + right
        sizes = [len(side) if isinstance(side, (list, tuple)) else side for side in (left, right)]
        if sizes[0] * sizes[1] > _LONGEST_PATTERN:
            raise ValueError("the pattern is too long")
        if not isinstance(left, int) and not isinstance(right, int):
            raise ValueError("cannot multiply lists")
        return left * right
    raise ValueError("not a list of numbers")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.strip("()").split(","))


_CONVERTERS: Final[dict[str | None, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "moe_freq_type": layer_pattern,
    "la_freq_type": layer_pattern,
    "no_rope_freq_type": layer_pattern,
    "tuple_type": _numbers,
    "_parse_cuda_graph_modules_arg": functools.partial(_member, CUDA_GRAPH_MODULES),
}
