"""Texts of an AutoExperiment file that stay unresolved although a job's script or commands use them.

AutoExperiment leaves a text as it is when it names a key that does not exist. Braces of the shell are left alone
by that rule; a misspelt key ends up in the script, as ``--train-iters expr({TOKENZ}//2048)``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.autoexperiment.expressions import analyse_format, is_expression
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.yaml_document import value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

FIELDS = ("cmd", "output_file", "sbatch_script", "start_condition_cmd", "termination_cmd", "termination_str")
"""What AutoExperiment itself reads of a job, besides its name and template."""

NAMED_FIELD = re.compile(r"\{([^\W\d]\w*)")
"""A name that follows an opening brace, as in fields of ``str.format``."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def unresolved_problems(
    document: YamlDocument,
    params: Mapping[str, Any],
    unresolved: Mapping[str, tuple[int, str]],
    read: Iterable[str],
) -> list[Problem]:
    """Return problems for the unresolved texts that a job uses.

    :param params: the job's values
    :param unresolved: for each key whose text stays unresolved at some job, at how many, and why at the first
    :param read: keys that the job's script or commands read
    """
    if not unresolved:
        return []
    problems: dict[KeyPath, Problem] = {}
    wrong = {
        key: found
        for key in _reached(params, unresolved, read)
        if (found := _wrong(str(params[key]), params, str(unresolved[key][1])))
    }
    for key, (name, message, hint) in wrong.items():
        names = analyse_format(str(params[key])).names
        if all(other in params for other in names) and any(other in wrong for other in names if other != key):
            continue  # it is right as soon as the key that it refers to is
        place = _place_naming(document, name, key) if name else _place_holding(document, params, key)
        problems[place] = document.problem(place, f"{place[-1] if place else key}: {message}", hint)
    return list(problems.values())


def _place_naming(document: YamlDocument, name: str, key: str) -> KeyPath:
    """Return the place in the document that uses ``{name}``; a key may get it from another key."""
    field = f"{{{name}"
    for path in document.positions:
        value = value_at(document.data, path)
        if isinstance(value, str) and field in value:
            return path
    return document.last_place(key)


def _place_holding(document: YamlDocument, params: Mapping[str, Any], key: str) -> KeyPath:
    """Return the place of the text that a key has, which other keys may have passed on."""
    places = [document.last_place(name) for name, value in params.items() if value == params[key]]
    written = [(place, value_at(document.data, place)) for place in places]
    return next(
        (place for place, text in written if text == params[key] or is_expression(text)),
        document.last_place(key),
    )


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


def _wrong(text: str, params: Mapping[str, Any], reason: str) -> tuple[str, str, str] | None:
    """Return the failing name, message and hint; None for a text whose braces belong to the shell."""
    what = analyse_format(text)
    known = next((name for name in (*what.names, *NAMED_FIELD.findall(text)) if name in params), None)
    if what.error:
        return _not_replaced(text, what.error, known) if known else None
    if known and all(name in params for name in what.names) and not is_expression(text):
        return "", f"{text!r} cannot be replaced: {reason}", "refer to a key with a value"
    missing = [name for name in what.names if name not in params and _IDENTIFIER.match(name)]
    for name in missing:
        if f"${{{name}}}" in text:
            continue
        hint = did_you_mean(name, params) or "give it a value; a brace meant for the shell is written twice"
        return name, f"there is no key {name!r}, so the script would hold {text!r}", hint
    if missing and known:
        message = f"${{{missing[0]}}} names no key, so AutoExperiment leaves all of it, {{{known}}} too"
        return missing[0], message, f"write \\${{{{{missing[0]}}}}} for the shell's variable"
    others = [name for name in what.names if name not in params and name not in missing]
    if others and known:
        return _not_replaced(text, f"{{{others[0]}}} names no key", known)
    if is_expression(text) and not missing:
        return (
            what.names[0] if what.names else "",
            f"{text!r} cannot be worked out",
            "write it with numbers, {KEY} and + - * / // % **",
        )
    return None


def _not_replaced(text: str, why: str, known: str) -> tuple[str, str, str]:
    message = f"{why}, so AutoExperiment leaves all of {text[:80]!r}, {{{known}}} too"
    return "", message, "write the shell's braces twice"
