"""The JSON Schema of native sweep specs, made from the models that check them.

Editors show it as completion and as help; what it cannot say (references, the grammar's rules) the loader checks.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from airflow_megatron.spec.schema import SweepSpecSection
from airflow_megatron.spec.sweep_grammar import WORDS

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
    """Leaves out the titles that pydantic makes of the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Give no title."""
        return False


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
        "description": "A group; keys that are no words of the grammar are axes: lr: [1e-3, 1e-4].",
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


def _required_of_stages(schema: dict[str, Any]) -> dict[str, Any]:
    """Take the required keys out of the section of a stage, and return them as a condition on all stages."""
    return {"additionalProperties": {"required": schema["$defs"]["StageSection"].pop("required")}}


def sweep_spec_schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(sweep_spec_schema(), indent=2, ensure_ascii=False) + "\n"
