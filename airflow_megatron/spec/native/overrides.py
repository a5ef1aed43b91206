"""``--set key=value``: values that replace those of a spec before it is checked."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import yaml

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.quantities import counted, list_index
from airflow_megatron.spec.documents.yaml_document import LOADER, KeyPath, YamlDocument, load_yaml_text
from airflow_megatron.spec.model.schema import StageSection, SweepSpecSection
from airflow_megatron.spec.native.extension import KEY as EXTENDS

if TYPE_CHECKING:
    from collections.abc import Iterable

OPTION = "--set"


def overridden(document: YamlDocument, settings: Iterable[str]) -> YamlDocument:
    """Return a document with some values replaced; messages about them point at the option.

    :param settings: ``key=value`` each: a dotted key (``stages.pretrain.megatron.lr``; numbers index lists), and a YAML
        value. ``null`` removes the key. Keys that do not exist are added.
    :raises SpecError: if a setting is not of this form, or its key leads through a value that holds no keys
    """
    settings = list(settings)
    if not settings:
        return document
    tree = _nodes(document.text, document.file) if document.text else None
    data = _copied(document.data)
    result = YamlDocument(
        document.file, data, dict(document.positions), "", dict(document.files), document.sources
    )
    for setting in settings:
        key, separator, text = setting.partition("=")
        name = f"{OPTION} {setting}"
        if not separator or not key.strip("."):
            raise SpecError(
                Problem(name, 0, 0, "not of the form key=value", f"write {OPTION} megatron.lr=1e-4")
            )
        if key.split(".")[0].strip() == EXTENDS:
            hint = "write extends into the file; set the values themselves here"
            raise SpecError(Problem(name, 0, 0, "a spec is extended before values are set", hint))
        value = _value(text, name)
        path = _replace(data, key.strip(), value, name)
        for place in [place for place in result.positions if place[: len(path)] == path]:
            del result.positions[place]
        for length in range(1, len(path) + 1):
            if length == len(path) or path[:length] not in result.positions:
                result.positions[path[:length]] = (0, 0)
                result.files[path[:length]] = name
        if tree is not None:
            _replace_node(tree, path, text, value)
    if tree is not None:
        # dialects read the text, whose scalars must stay as they are written
        result.text = yaml.serialize(tree, Dumper=yaml.SafeDumper)
    return result


@functools.cache
def _known_keys() -> frozenset[str]:
    """Return the keys of a spec and of a stage, which are added where they are missing."""
    return frozenset({*SweepSpecSection.model_fields, *StageSection.model_fields})


def _value(text: str, name: str) -> Any:
    if not text.strip():
        return ""
    try:
        return load_yaml_text(text, name).data
    except SpecError as error:
        hint = 'a YAML value: 3, 1e-4, text, [1, 2], "{{ … }}"'
        raise SpecError(Problem(name, 0, 0, error.problems[0].message, hint)) from error


def _replace(data: Any, key: str, value: Any, name: str) -> KeyPath:
    """Put ``value`` where a dotted key points, and return the path."""
    path: list[str | int] = []
    node, rest = data, key
    while True:
        if isinstance(node, list):
            word, _, rest = rest.partition(".")
            index = list_index(word, len(node))
            if index is None:
                hint = f"it has {counted(len(node), 'item')}, counted from 0"
                raise SpecError(Problem(name, 0, 0, f"{word!r} is not an item of {_dotted(path)}", hint))
            step: str | int = index
        elif isinstance(node, dict):
            # a key may itself hold dots: sweep.cooldown.lr
            words = rest.split(".")
            known = [length for length in range(len(words), 0, -1) if ".".join(words[:length]) in node]
            length = known[0] if known else 1
            step, rest = ".".join(words[:length]), ".".join(words[length:])
            params = node.get("params") if path == ["sweep"] and step not in node else None
            if any(".".join(words[:length]) in (params or {}) for length in range(1, len(words) + 1)):
                hint = f"write {_dotted(['sweep', 'params', *words])}"
                raise SpecError(Problem(name, 0, 0, f"there is no {key.partition('.')[2]} in sweep", hint))
            if rest and step not in node:
                near = "" if step in _known_keys() else did_you_mean(step, node)
                if near:
                    place = _dotted(path) or "the spec"
                    raise SpecError(Problem(name, 0, 0, f"there is no {step!r} in {place}", near))
                node[step] = {}
        else:
            raise SpecError(
                Problem(name, 0, 0, f"{_dotted(path)} is {node!r}, which holds no keys", "set it as a whole")
            )
        path.append(step)
        if not rest:
            break
        node = node[step]
    if value is None and isinstance(node, dict):
        node.pop(step, None)
    else:
        node[step] = value
    return tuple(path)


def _nodes(text: str, file: str) -> Any:
    """Return the nodes of a YAML text that :func:`.load_yaml_text` has read.

    :raises SpecError: for two anchors of one name, of which PyYAML makes no nodes
    """
    try:
        return yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        message = f"{OPTION} cannot change this YAML: {error.context or error.problem}"
        raise SpecError(Problem(file, *place, message, "give each anchor another name")) from error


def _replace_node(tree: Any, path: KeyPath, text: str, value: Any) -> None:
    """Do the same in the nodes of the YAML itself."""
    new = _nodes(text, OPTION) if text.strip() else _text_node("")
    node = tree
    for step in path[:-1]:
        if isinstance(node, yaml.SequenceNode):
            index = int(step)
            child = node.value[index] = copy.copy(node.value[index])
        else:
            index, (key, child) = _entry(node, step)
            child = copy.copy(child)
            node.value[index] = (key, child)
        # what an alias shares with other places must not change there
        child.value = list(child.value)
        node = child
    if isinstance(node, yaml.SequenceNode):
        node.value[int(path[-1])] = new
    else:
        index, (key, _) = _entry(node, path[-1])
        node.value[index : index + 1] = [] if value is None else [(key, new)]


def _entry(node: Any, step: str | int) -> tuple[int, tuple[Any, Any]]:
    """Return index and entry of a key, added at the end where it is missing."""
    for index, entry in enumerate(node.value):
        if entry[0].value == step:
            return index, entry
    node.value.append((_text_node(str(step)), yaml.MappingNode("tag:yaml.org,2002:map", [])))
    return len(node.value) - 1, node.value[-1]


def _text_node(text: str) -> Any:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _dotted(path: list[str | int]) -> str:
    return ".".join(str(step) for step in path)


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(item) for key, item in node.items()}
    return [_copied(item) for item in node] if isinstance(node, list) else node
