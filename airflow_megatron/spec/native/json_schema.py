"""The JSON Schemas of native sweep specs and of cluster profiles, made from the models that check them.

Editors show it as completion and as help; what it cannot say (references, the grammar's rules) the loader checks.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from airflow_megatron.spec.model import schema as sections
from airflow_megatron.spec.model.schema import ClusterSection, SweepSpecSection
from airflow_megatron.spec.native.sweep_grammar import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "sweep-spec.schema.json"
"""Name of the committed copy in ``sweep_specs/``, which specs name in their first line."""

_VALUES = {"type": "object"}
_GROUPS = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/SweepGroup"}}
_AXES = {"type": "object", "description": "Keys with lists of values; their product."}
_GROUP_WORDS: dict[str, Any] = {
    "type": {"enum": ["product", "list"], "default": "product", "description": "How the parts are combined."},
    "groups": {**_GROUPS, "description": "Nested groups."},
    "params": _AXES,
    "grids": {
        "anyOf": [_AXES, {"type": "array", "items": _AXES}],
        "description": "Several products of keys with lists of values, one after the other.",
    },
    "configs": {
        "type": "array",
        "minItems": 1,
        "items": _VALUES,
        "description": "Hand-picked combinations; an element that is itself a group is expanded.",
    },
    "base_values": {
        **_VALUES,
        "description": "Values of every combination below; everything else wins over them.",
    },
    "defaults": {**_VALUES, "description": "Values of every combination below that does not set them."},
    "filter": {
        "type": ["string", "boolean"],
        "description": "An expression; combinations for which it is false are dropped.",
    },
    "list_composition": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Keys whose values are collected into one list instead of being overridden.",
    },
}


class _SpecSchema(GenerateJsonSchema):
    """Describes keys by the docstrings of the fields, and leaves out the titles that pydantic makes of the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Give no title."""
        return False

    def encode_default(self, dft: Any) -> Any:
        """Encode a default, after building its deferred serializer, which pydantic 2.12 does not do."""
        if isinstance(dft, BaseModel):
            type(dft).model_rebuild()
        return super().encode_default(dft)

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Add the descriptions of a section's keys."""
        described = super().model_schema(schema)
        section = schema["cls"]
        for name, field in section.model_fields.items():
            if text := _field_docstring(section, name):
                described["properties"][field.alias or name].setdefault("description", text)
        return described


def _field_docstring(section: type, name: str) -> str | None:
    """Return the docstring of a field of a section or of a section that it extends."""
    texts = (_field_docstrings().get(base.__name__, {}).get(name) for base in section.__mro__)
    return next((text for text in texts if text), None)


@functools.cache
def _field_docstrings() -> Mapping[str, Mapping[str, str]]:
    """Return section → field → the string below it in the source."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sections)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in itertools.pairwise(node.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found.setdefault(node.name, {})[field.target.id] = inspect.cleandoc(text.value.value)
    return found


def sweep_spec_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a native sweep spec."""
    missing = WORDS - _GROUP_WORDS.keys()
    if missing:
        raise AssertionError(f"words of the grammar without a schema: {sorted(missing)}")
    schema = SweepSpecSection.model_json_schema(by_alias=True, schema_generator=_SpecSchema)
    for section in (schema, *schema["$defs"].values()):
        section.pop("title", None)
    schema["$defs"]["SweepGroup"] = {
        "type": "object",
        "description": "A group; keys that are not words of the grammar are axes: lr: [1e-3, 1e-4].",
        "properties": _GROUP_WORDS,
    }
    # a spec that extends another one gives only what differs
    whole = {"required": schema.pop("required"), "properties": {"stages": _required_of_stages(schema)}}
    description = schema["properties"]["sweep"].get("description", "")
    schema["properties"]["sweep"] = {
        "anyOf": [{"$ref": "#/$defs/SweepGroup"}, {"type": "null"}],
        "default": None,
        "description": description,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sweep spec of airflow_megatron",
        **schema,
        "if": {"required": ["extends"]},
        "else": whole,
    }


def cluster_profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a cluster profile."""
    schema = ClusterSection.model_json_schema(by_alias=True, schema_generator=_SpecSchema)
    for section in (schema, *schema["$defs"].values()):
        section.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Cluster profile of airflow_megatron",
        **schema,
    }


def _required_of_stages(schema: dict[str, Any]) -> dict[str, Any]:
    """Take the required keys out of the section of a stage, and return them as a condition on all stages."""
    return {"additionalProperties": {"required": schema["$defs"]["StageSection"].pop("required")}}


def sweep_spec_schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(sweep_spec_schema(), indent=2, ensure_ascii=False) + "\n"
