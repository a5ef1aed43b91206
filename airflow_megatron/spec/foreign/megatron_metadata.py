"""Megatron's arguments, as a checkout of oellm-autoexp lists them in ``backends/megatron/cli_metadata.py``.

The checkout follows a fork of Megatron-LM, and oellm-autoexp passes only arguments of this list. The file is Python; it
is parsed and never executed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.documents.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PLACE: Final = "oellm_autoexp/backends/megatron/cli_metadata.py"
"""The file in a checkout."""
_METADATA: Final = "MEGATRON_ARG_METADATA"
_ACTIONS: Final = "MEGATRON_ACTION_SPECS"
_FLAGS: Final = {"store_true": "StoreTrue", "store_false": "StoreFalse"}
_TYPES: Final = ("str", "int", "float")


@dataclass(frozen=True)
class ForkArgument:
    """An argument of a fork of Megatron-LM.

    :param flag: with underscores, without dashes
    :param declaration: as in ``extra_arguments:`` of a spec
    :param default: its value without the flag, with which oellm-autoexp does not pass it
    """

    flag: str
    declaration: Mapping[str, Any]
    default: Any = None


@dataclass(frozen=True)
class ForkArguments:
    """The arguments of a fork of Megatron-LM.

    :param added: the arguments that no release has, by their names in files
    :param passed: the names of all arguments that oellm-autoexp passes; None if they are unknown
    """

    added: Mapping[str, ForkArgument]
    passed: frozenset[str] | None = None


def fork_arguments(text: str, file: str, released: Callable[[str], bool]) -> ForkArguments:
    """Read the arguments of a fork.

    :param text: content of ``cli_metadata.py``
    :param file: its path, for messages
    :param released: whether the release has an argument, by its name in files or its flag
    :raises SpecError: if it is not Python, or has no such list
    """
    try:
        module = ast.parse(text)
        types = dict(_entries(module, _METADATA))
        actions = dict(_entries(module, _ACTIONS))
    except SyntaxError as error:
        problem = Problem(file, error.lineno or 0, error.offset or 0, f"is not Python: {error.msg}")
        raise SpecError(problem) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(
            Problem(file, 0, 0, f"cannot be read: {str(error) or 'too deeply nested'}")
        ) from error
    if not types or not actions:
        missing = _ACTIONS if types else _METADATA
        raise SpecError(Problem(file, 0, 0, f"has no {missing}", "take the file of an unchanged checkout"))
    added = {}
    for name, action in actions.items():
        flag = _flag(action) or name
        if name in types and not released(name) and not released(flag):
            declaration = _declaration(name, flag, types[name], action)
            added[name] = ForkArgument(flag, declaration, _literal(action.get("default")))
    return ForkArguments(added, frozenset(types.keys() & actions.keys()))


def _entries(module: ast.Module, variable: str) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Yield the keys of a mapping of calls, each with the keyword arguments of its call."""
    for statement in module.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            continue
        value = statement.value
        if isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(entry, ast.Call):
                    yield str(key.value), {word.arg: word.value for word in entry.keywords if word.arg}


def _literal(node: ast.expr | None) -> Any:
    """Return the value of a literal; None for other expressions."""
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _flag(action: Mapping[str, ast.expr]) -> str:
    words = _literal(action.get("option_strings"))
    listed = words if isinstance(words, tuple | list) else ()
    named = [word for word in listed if isinstance(word, str) and word.startswith("--")]
    return named[0].removeprefix("--").replace("-", "_") if named else ""


def _declaration(
    name: str, flag: str, types: Mapping[str, ast.expr], action: Mapping[str, ast.expr]
) -> dict[str, Any]:
    declaration: dict[str, Any] = {}
    what = _FLAGS.get(str(_literal(action.get("action_type"))))
    if what is not None:
        declaration["action"] = what
    else:
        kinds = (types.get("element_type"), types.get("arg_type"))
        kind = next((node.id for node in kinds if isinstance(node, ast.Name) and node.id in _TYPES), None)
        choices = _literal(types.get("choices"))
        nargs = _literal(action.get("nargs"))
        if kind is not None:
            declaration["type"] = kind
        if nargs in ("*", "+") or (type(nargs) is int and nargs > 0):
            declaration["nargs"] = nargs
        if isinstance(choices, tuple | list) and choices and all(isinstance(word, str) for word in choices):
            declaration["choices"] = list(choices)
    if flag != name:
        declaration["dest"] = name
    return declaration
