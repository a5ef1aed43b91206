"""``extends:``: a spec that starts from the content of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError
from airflow_megatron.spec.documents.yaml_document import YAML_ENDINGS, KeyPath, YamlDocument, load_yaml_text

KEY = "extends"
_MAX_DEPTH = 16
_MAX_FILES = 64


def extended(
    document: YamlDocument, chain: tuple[str, ...] = (), loaded: list[str] | None = None
) -> YamlDocument:
    """Return a document with the content of the specs that it extends below its own.

    Mappings are merged key by key; anything else, lists included, is replaced. Of several specs a later one wins. A key
    set to ``null`` removes the inherited one. ``name`` and ``description`` are not inherited.

    :param chain: the files that led to this one
    :param loaded: the files read so far; one that is extended by several counts as often
    :raises SpecError: on a missing file, a circle, or content that is not a mapping
    """
    loaded = [] if loaded is None else loaded
    if not isinstance(document.data, dict) or KEY not in document.data:
        return document
    given = document.data[KEY]
    names = given if isinstance(given, list) else [given]
    chain = (*chain, str(Path(document.file)))
    merged = YamlDocument(document.file, {}, sources=document.sources, count=document.count)
    for index, name in enumerate(names):
        place: KeyPath = (KEY, index) if isinstance(given, list) else (KEY,)
        if not isinstance(name, str):
            raise SpecError(
                document.problem(place, "extends takes the paths of specs", "write extends: base.yaml")
            )
        base = _loaded(document, name, place, chain, loaded)
        base.data = {key: value for key, value in base.data.items() if key not in ("name", "description")}
        _merge(merged, base)
    own = {key: value for key, value in document.data.items() if key != KEY}
    _merge(merged, YamlDocument(document.file, own, document.positions, files=document.files))
    merged.positions.setdefault((), document.positions.get((), (1, 1)))
    return merged


def _loaded(
    document: YamlDocument, name: str, place: KeyPath, chain: tuple[str, ...], loaded: list[str]
) -> YamlDocument:
    full = str(Path(document.file).parent / name)
    if not name.endswith(YAML_ENDINGS):
        raise SpecError(document.problem(place, f"{name!r} is not a spec", "extends takes .yaml files"))
    loaded.append(full)
    if len(loaded) > _MAX_FILES:
        message = f"more than {_MAX_FILES} specs are put together"
        raise SpecError(document.problem(place, message, "extend fewer"))
    if full in chain or len(chain) > _MAX_DEPTH:
        raise SpecError(document.problem(place, f"specs extend each other: {' → '.join((*chain, full))}"))
    try:
        text = document.read(name)
    except (OSError, NamedFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = getattr(error, "hint", "") or "the path is relative to this file"
        raise SpecError(document.problem(place, f"{name!r} cannot be read: {reason}", hint)) from error
    base = load_yaml_text(text, full, document.count)
    base.sources, base.origin = document.sources, document.origin or document.file
    base = extended(base, chain, loaded)
    if not isinstance(base.data, dict):
        raise SpecError(base.problem((), "expected keys with values"))
    return base


def _merge(target: YamlDocument, layer: YamlDocument) -> None:
    replaced: list[tuple[KeyPath, Any]] = []
    target.data = _merged(target.data, layer.data, (), replaced)
    for place, value in replaced:
        _forget(target, place, value)
    for place, position in layer.positions.items():
        if place:
            target.positions[place] = position
            target.files[place] = layer.files.get(place, layer.file)


def _merged(below: Any, above: Any, path: KeyPath, replaced: list[tuple[KeyPath, Any]]) -> Any:
    """Return the merged data; the place and value of what was replaced or removed is added to ``replaced``."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        if path:
            replaced.append((path, below))
        return above
    result = dict(below)
    for key, value in above.items():
        if value is None and key in result:
            del result[key]
            replaced.append(((*path, key), below[key]))
        elif key in result:
            result[key] = _merged(result[key], value, (*path, key), replaced)
        else:
            result[key] = value
    return result


def _forget(target: YamlDocument, place: KeyPath, value: Any) -> None:
    """Drop the positions of what was replaced, so that no message points at it."""
    target.positions.pop(place, None)
    target.files.pop(place, None)
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _forget(target, (*place, key), part)
