"""The references of sweep specs and cluster profiles, made from the models that check them."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.native.json_schema import cluster_profile_schema, sweep_spec_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_REFERENCE = "#/$defs/"
_TYPES = {
    "string": "text",
    "object": "mapping",
    "boolean": "boolean",
    "integer": "integer",
    "number": "number",
}
_EXPRESSION = r"\{\{"


def spec_reference() -> str:
    """Return the page on the keys of a sweep spec."""
    introduction = (
        "All keys of a sweep spec, made from the schema that `airflow-megatron lint` checks. "
        "[spec.md](../spec.md) explains them with examples. A key without a default may be left out, unless it is "
        "required. *Expression* is a string with `{{ … }}`, *duration* is a number of seconds or a text such as "
        "`30m`, `6h` or `1-12:00:00`."
    )
    return _page("Reference: sweep spec", introduction, sweep_spec_schema())


def profile_reference() -> str:
    """Return the page on the keys of a cluster profile."""
    introduction = (
        "All keys of a cluster profile, made from the schema that checks profiles. "
        "[clusters.md](../clusters.md) explains them with examples."
    )
    return _page("Reference: cluster profile", introduction, cluster_profile_schema())


def _page(title: str, introduction: str, schema: Mapping[str, Any]) -> str:
    lines = [
        f"# {title}",
        "",
        introduction,
        "",
        "## Top level",
        "",
        *_table(schema, _required(schema), schema["$defs"]),
    ]
    for name, places in _places(schema).items():
        section = schema["$defs"][name]
        lines += ["", f"## `{places[0]}` {{ #{_anchor(name)} }}", ""]
        if places[1:]:
            lines += ["The same keys: " + ", ".join(f"`{place}`" for place in places[1:]) + ".", ""]
        lines += [_plain(section.get("description", "")), ""]
        required = _required_of_stages(schema) if name == "StageSection" else section.get("required", [])
        lines += _table(section, required, schema["$defs"])
    return "\n".join([*lines, ""])


def _required(schema: Mapping[str, Any]) -> list[str]:
    required: list[str] = schema.get("required") or schema.get("else", {}).get("required", [])
    return required


def _required_of_stages(schema: Mapping[str, Any]) -> list[str]:
    required: list[str] = schema["else"]["properties"]["stages"]["additionalProperties"]["required"]
    return required


def _places(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return section → its keys, the shortest first; a section within itself is left out."""
    found: dict[str, list[str]] = {}
    queue = deque([("", schema, frozenset[str]())])
    while queue:
        path, section, above = queue.popleft()
        for key, value in section.get("properties", {}).items():
            for name, more in _references(value):
                if name in above:
                    continue
                place = f"{path}{key}{more}"
                found.setdefault(name, []).append(place)
                if len(found[name]) == 1:
                    queue.append((f"{place}.", schema["$defs"][name], above | {name}))
    return found


def _references(value: Any, more: str = "") -> Iterator[tuple[str, str]]:
    """Yield the sections that a value may be, with what follows the key: ``.NAME`` in mappings, ``[]`` in lists."""
    if "$ref" in value:
        yield value["$ref"].removeprefix(_REFERENCE), more
    for alternative in (*value.get("anyOf", ()), *value.get("oneOf", ()), *value.get("allOf", ())):
        yield from _references(alternative, more)
    if isinstance(value.get("items"), dict):
        yield from _references(value["items"], f"{more}[]")
    if named := _named(value):
        yield from _references(named, f"{more}.NAME")


def _named(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a mapping has under each of its names."""
    patterns = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
    return next((each for each in patterns if isinstance(each, dict)), None)


def _table(section: Mapping[str, Any], required: list[str], sections: Mapping[str, Any]) -> list[str]:
    rows = ["| key | type | default | description |", "| --- | --- | --- | --- |"]
    for key, value in section.get("properties", {}).items():
        default = "required" if key in required else _default(value.get("default"))
        text = _plain(value.get("description") or _of_section(value, sections))
        rows.append(f"| `{key}` | {_cell(_type(value))} | {default} | {_cell(text)} |")
    return rows


def _of_section(value: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Return the description of the section that a value is, for a key without its own."""
    return next((sections[name].get("description", "") for name, more in _references(value) if not more), "")


def _default(value: Any) -> str:
    if isinstance(value, dict):  # of a section, whose table shows the defaults of its keys
        return ""
    return (
        ""
        if value in (None, "", {}, []) and value is not False
        else f"`{json.dumps(value, ensure_ascii=False)}`"
    )


def _type(value: Mapping[str, Any]) -> str:
    """Return the type of a value, in words and with links to the sections."""
    if "$ref" in value:
        name = value["$ref"].removeprefix(_REFERENCE)
        return f"[{_title(name)}](#{_anchor(name)})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    alternatives = value.get("anyOf") or value.get("oneOf") or value.get("allOf")
    if alternatives:
        if any("examples" in each for each in alternatives):
            return "duration or expression"
        return " or ".join(dict.fromkeys(_type(each) for each in alternatives if each.get("type") != "null"))
    return _plain_type(value)


def _plain_type(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    if isinstance(kind, list):
        return " or ".join(_TYPES[each] for each in kind)
    if kind == "array":
        return f"list of {_type(value['items'])}" if value.get("items") else "list"
    if kind == "object" and (named := _named(value)):
        return f"mapping: name → {_type(named)}"
    if kind == "string" and value.get("pattern") == _EXPRESSION:
        return "expression"
    limits = [
        f"{sign} {value[key]}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in value
    ]
    return " ".join([_TYPES.get(kind or "", "any value"), ", ".join(limits)]).strip()


def _title(definition: str) -> str:
    return definition.removesuffix("Section").removesuffix("Group").lower()


def _anchor(definition: str) -> str:
    return f"{_title(definition)}-keys"


def _plain(docstring: str) -> str:
    """Return a docstring as Markdown, in one line."""
    return " ".join(docstring.replace("``", "`").split())


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
