"""Texts of an AutoExperiment file that stay unresolved although a job's script or commands use them.

AutoExperiment leaves a text as it is when it names a key that does not exist. Braces of the shell are left alone
by that rule; a misspelt key ends up in the script, as ``--train-iters expr({TOKENZ}//2048)``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.autoexperiment.expressions import analyse_format, is_expression
from airflow_megatron.spec.dialects.autoexperiment.grammar import place_of, value_at
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

FIELDS = ("cmd", "output_file", "sbatch_script", "start_condition_cmd", "termination_cmd", "termination_str")
"""What AutoExperiment itself reads of a job, besides its name and template."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def unresolved_problems(
    document: YamlDocument, params: Mapping[str, Any], unresolved: Mapping[str, Any], read: Iterable[str]
) -> list[Problem]:
    """Return problems for the unresolved texts that a job uses.

    :param params: the job's values
    :param unresolved: keys whose text stays unresolved at some job
    :param read: keys that the job's script or commands read
    """
    if not unresolved:
        return []
    problems: dict[KeyPath, Problem] = {}
    for key in _reached(params, unresolved, read):
        found = _wrong(str(params[key]), params)
        if found is not None:
            name, message, hint = found
            place = _place_naming(document, name, key)
            problems[place] = document.problem(place, f"{place[-1] if place else key}: {message}", hint)
    return list(problems.values())


def _place_naming(document: YamlDocument, name: str, key: str) -> KeyPath:
    """Return the place in the document that uses ``{name}``; a key may get it from another key."""
    field = f"{{{name}"
    for path in document.positions:
        value = value_at(document.data, path)
        if isinstance(value, str) and field in value:
            return path
    return place_of(document, key)


def _reached(params: Mapping[str, Any], unresolved: Mapping[str, Any], read: Iterable[str]) -> Iterator[str]:
    """Yield the unresolved keys that are used, directly or through others."""
    waiting, seen = [key for key in read if key in unresolved and key in params], set[str]()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        yield key
        waiting += [name for name in analyse_format(str(params[key])).names if name in unresolved]


def _wrong(text: str, params: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the failing name, message and hint; None for a text whose braces belong to the shell."""
    what = analyse_format(text)
    if what.error:
        return None
    missing = [name for name in what.names if name not in params and _IDENTIFIER.match(name)]
    for name in missing:
        if f"${{{name}}}" in text:
            continue
        hint = did_you_mean(name, params) or "give it a value; a brace meant for the shell is written twice"
        return name, f"there is no key {name!r}, so the script would hold {text!r}", hint
    if missing and len(missing) < len(what.names):
        known = next(name for name in what.names if name in params)
        message = f"${{{missing[0]}}} names no key, so AutoExperiment leaves all of it, {{{known}}} too"
        return missing[0], message, f"write \\${{{{{missing[0]}}}}} for the shell's variable"
    if is_expression(text) and not missing:
        return (
            what.names[0] if what.names else "",
            f"{text!r} cannot be worked out",
            "write it with numbers, keys and + - * / // % **",
        )
    return None
