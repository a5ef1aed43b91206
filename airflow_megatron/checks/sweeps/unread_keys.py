"""Unused keys of a spec: arguments that the trainer does not have, and swept values without effect."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import argument_table, canonical
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.spec.documents.errors import MOST_PROBLEMS, did_you_mean, suggestion
from airflow_megatron.spec.documents.list_texts import key_in_place_of_value
from airflow_megatron.spec.expressions.resolution import template_names
from airflow_megatron.spec.model.schema import SlurmSection, SweepSpecSection
from airflow_megatron.spec.native.sweep import placed_texts
from airflow_megatron.spec.native.sweep_grammar import WORDS, swept_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath
    from airflow_megatron.spec.native.sweep import NativeSweep


def unknown_arguments(sweep: NativeSweep, table: ArgumentTable) -> list[Problem]:
    """Report keys of ``megatron:`` sections that the trainer does not know, or that have dashes.

    Checks and expressions find an argument by its name with underscores.
    """
    spec = sweep.spec
    sections: list[tuple[KeyPath, Iterable[str]]] = [(("megatron",), spec.megatron)]
    sections += [(("stages", name, "megatron"), stage.megatron) for name, stage in spec.stages.items()]
    unknown = (
        (*path, name)
        for path, names in sections
        for name in names
        if table.get(name) is None or name != canonical(name)
    )
    return [
        sweep.document.problem(path, *_unknown_argument(str(path[-1]), table, spec))
        for path in itertools.islice(unknown, MOST_PROBLEMS + 1)
    ]


def _unknown_argument(name: str, table: ArgumentTable, spec: SweepSpecSection) -> tuple[str, str]:
    """Return what is wrong with an argument's name, and the hint."""
    if table.get(name) is not None:
        return _with_dashes(name)
    if argument_table(spec.release).get(name) is not None:
        message = f"the trainer {spec.trainer} does not accept {spec.release}'s argument {name!r}"
        near = suggestion(table.nearest(name))
        return message, f"{near}; or use another trainer" if near else "remove it, or use another trainer"
    hint = (
        key_in_place_of_value(name)
        or _other_place(name)
        or suggestion(table.nearest(name))
        or _of_another_trainer(name, spec)
        or "write your own variables under params:"
    )
    return f"{_parser(spec, table)} has no argument {name!r}", hint


def _of_another_trainer(name: str, spec: SweepSpecSection) -> str:
    """Return the hint for a misspelt argument of the release that the trainer lacks; empty if there is none."""
    near = suggestion(argument_table(spec.release).nearest(name))
    return f"{near} {spec.trainer} does not accept it" if near else ""


def _other_place(name: str) -> str:
    """Return where a key belongs that is none of Megatron's arguments; empty if no section has it."""
    if name in SlurmSection.model_fields:
        return f"write slurm: {{{name}: …}}"
    return "write it at the top level" if name in SweepSpecSection.model_fields else ""


_OTHER_BRACES: Final = re.compile(r"(?<!\{)\$?\{ *(\w+) *\}(?!\})")


def _names_in_other_braces(data: Any) -> dict[str, str]:
    """Return the hint for each name that a text of a document holds as ``{name}`` or ``${name}``."""
    hints: dict[str, str] = {}
    for path, text in placed_texts(data):
        for found in _OTHER_BRACES.finditer(text):
            place = ".".join(map(str, path))
            hints.setdefault(found[1], f"write {{{{ {found[1]} }}}} instead of {found[0]} in {place}")
    return hints


def _with_dashes(name: str) -> tuple[str, str]:
    return f"the argument {name!r} is written with dashes", f"write {canonical(name)}"


def _parser(spec: SweepSpecSection, table: ArgumentTable) -> str:
    """Return the name of the trainer's argument parser in messages."""
    return trainer_called(spec.trainer).parser_name(table, spec.release)


def unused_axes(sweep: NativeSweep, table: ArgumentTable) -> list[Problem]:
    """Report unused swept keys: neither Megatron arguments nor used in an expression."""
    unused = list(itertools.islice(_unused_keys(sweep, table), MOST_PROBLEMS + 1))
    if not unused:
        return []
    places: dict[Any, KeyPath] = {}
    for path in sweep.document.positions:
        if path[:1] == ("sweep",):
            places.setdefault(path[-1], path)
    return [
        sweep.document.problem(places.get(key, ("sweep",)), message, hint) for key, message, hint in unused
    ]


def _unused_keys(sweep: NativeSweep, table: ArgumentTable) -> Iterator[tuple[str, str, str]]:
    """Yield unused swept keys, each with a message and a hint."""
    spec = sweep.spec
    used = template_names(spec.model_dump(exclude_none=True, exclude={"notify"}))
    in_other_braces: dict[str, str] | None = None
    for key in swept_keys(spec.sweep):
        stage, _, name = key.rpartition(".")
        if stage and stage not in spec.stages:
            hint = did_you_mean(stage, spec.stages) or f"stages: {', '.join(spec.stages)}"
            yield key, f"{key!r} names a stage {stage!r}, which does not exist", hint
        elif name in used or name in spec.params or (table.get(name) and name == canonical(name)):
            continue
        elif table.get(name):
            yield key, *_with_dashes(name)
        else:
            if in_other_braces is None:
                in_other_braces = _names_in_other_braces(sweep.document.data)
            message = (
                f"nothing reads the swept value {key!r}: "
                f"it is not an argument of {_parser(spec, table)} and in no expression"
            )
            hint = (
                key_in_place_of_value(name)
                or did_you_mean(name, WORDS)
                or in_other_braces.get(name)
                or suggestion(table.nearest(name))
                or "use it in an expression, or remove it"
            )
            yield key, message, hint
