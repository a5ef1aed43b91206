"""Keys of an AutoExperiment file that nothing reads.

AutoExperiment has keys of its own; every other key is a variable for the template and for other values, and one that
neither names is dropped without a word.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.autoexperiment.resolution import names_read
from airflow_megatron.spec.dialects.autoexperiment.unresolved import FIELDS, NAMED_FIELD
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.yaml_document import value_at
from airflow_megatron.spec.foreign.sidecar import SUFFIXES, SidecarSection

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

OWN_KEYS: Final = ("name", "template", "check_interval_secs", *FIELDS)
"""What AutoExperiment reads itself."""
_ELSEWHERE: Final = frozenset({"job_id_regexp", "RUN_DIR"})
"""A key that has a warning of its own, and one that this package reads."""
_REFERENCE: Final = re.compile(r"\$\{([^{}:]+)\}")
_ANCHORED: Final = re.compile(r"([\w.-]+)[\"']?[ \t]*:[ \t]+&\S")
_LONGEST_KEY: Final = 30
_MOST_KEYS: Final = 1000
"""Keys that are compared with known ones: a hostile file may have any number."""
_SHOWN: Final = 12
_ALIKE: Final = 0.8
"""Similarity of a key to one that is read: 0.8 is one other letter in a word of five."""


def near_key(key: str, known: Iterable[str], alike: float = 0.85) -> str:
    """Return ``did you mean 'x'?`` for the known key that a key resembles; empty for none."""
    return did_you_mean(key, known, limit=1, alike=alike) if len(key) <= _LONGEST_KEY else ""


def unread_keys(
    document: YamlDocument, text: str, read: Collection[str] | None, *, builtin: bool
) -> Iterator[Problem]:
    """Yield warnings about keys that nothing reads, each misspelt one with the near name.

    :param text: the file as it is written, with its ``${…}`` and anchors
    :param read: the keys that the templates read; None if a template is missing, so that only keys like
        AutoExperiment's own are certain
    :param builtin: whether this project's own scripts read them
    """
    keys, texts = _keys(document)
    reached = _reached(texts, {*OWN_KEYS, *(read or ())})
    reached |= {part for path in _REFERENCE.findall(text) for part in re.split(r"[.\[\]]+", path)}
    reached |= {*_ANCHORED.findall(text)}  # its aliases read it
    if read is None:
        reached |= {name for names in texts.values() for name in names}
    unread: dict[str, None] = {}
    for key, path in tuple(keys.items()):
        if key in reached or key in _ELSEWHERE:
            continue
        section = str(path[0])
        if section != key and section in SidecarSection.model_fields and section not in reached:
            key, keys[section] = section, (section,)
        unread[key] = None
    known = (*OWN_KEYS, *(read or ())) if builtin else OWN_KEYS
    used = sorted({*OWN_KEYS, *(reached & keys.keys())})  # such a key may be the misspelt one of an item
    sidecar = f"{Path(document.file).name}{SUFFIXES[0]}"
    left: list[str] = []
    for key in itertools.islice(unread, _MOST_KEYS):
        near = near_key(key, known)
        if near:
            owner = "template: builtin" if builtin else "AutoExperiment"
            yield document.problem(keys[key], f"{owner} has no key {key!r}, and no text here reads it", near)
        elif key not in SidecarSection.model_fields and (near := near_key(key, SidecarSection.model_fields)):
            message = f"{key}: neither a template nor another value reads it"
            yield document.problem(
                keys[key], message, f"{near.removesuffix('?')}, in the sidecar, {sidecar}?"
            )
        elif read is not None and not builtin and (near := near_key(key, used, _ALIKE)):
            yield document.problem(keys[key], f"{key}: neither the template nor another value reads it", near)
        else:
            left.append(key)
    if left and read is not None:
        shown = ", ".join(key if key.isidentifier() else repr(key) for key in left[:_SHOWN])
        more = f" and {len(left) - _SHOWN:,} more" if len(left) > _SHOWN else ""
        readers, hint = (
            (
                "template: builtin",
                "its keys are those of docs/other-tools.md; write a spec for other arguments",
            )
            if builtin
            else ("the template", f"write {{{left[0]}}} where it is meant, or drop it")
        )
        if of_sidecar := [key for key in left if key in SidecarSection.model_fields]:
            hint = f"write {', '.join(of_sidecar)} into the sidecar, {sidecar}"
        message = f"{shown}{more}: neither {readers} nor another value reads it"
        yield document.problem(keys[left[0]], message, hint)


def _keys(document: YamlDocument) -> tuple[dict[str, KeyPath], dict[str, set[str]]]:
    """Return the place of each key with a value or a list of values, and the keys that the texts of each key name."""
    keys: dict[str, KeyPath] = {}
    texts: dict[str, set[str]] = {}
    for path in document.positions:
        if not path:
            continue
        value = value_at(document.data, path)
        owner = next((part for part in reversed(path) if not isinstance(part, int)), None)
        if owner is None or value is None or isinstance(value, dict):  # no value: a key of the sidecar
            continue
        if isinstance(value, str):
            texts.setdefault(str(owner), set()).update(NAMED_FIELD.findall(value), names_read(value))
        if isinstance(path[-1], str) and not _is_item(path) and _is_plain(value):
            keys.setdefault(path[-1], path)
    return keys, texts


def _is_item(path: KeyPath) -> bool:
    """Return whether a key names an item of a list, which is a value of the list's key."""
    return len(path) > 1 and isinstance(path[-2], int)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, list) or not any(isinstance(item, dict) for item in value)


def _reached(texts: dict[str, set[str]], roots: set[str]) -> set[str]:
    reached: set[str] = set()
    waiting = roots
    while waiting:
        reached |= waiting
        waiting = {name for key in waiting for name in texts.get(key, ())} - reached
    return reached
