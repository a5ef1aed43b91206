from __future__ import annotations

import pytest

from airflow_megatron.spec.model import schema
from airflow_megatron.spec.model.schema import Strict

SECTIONS = {
    name: found
    for name, found in vars(schema).items()
    if isinstance(found, type) and issubclass(found, Strict)
}
OPTIONAL = {
    name: section
    for name, section in SECTIONS.items()
    if section is not Strict and not any(field.is_required() for field in section.model_fields.values())
}


@pytest.mark.parametrize("name", sorted(set(OPTIONAL) - {"SecretSection"}))
def test_a_section_left_out_is_one_without_keys(name: str) -> None:
    section = OPTIONAL[name]
    assert section.model_construct() == section.model_validate({})
    assert section.model_construct().model_dump() == section.model_validate({}).model_dump()


def test_every_default_section_is_one_that_its_model_takes() -> None:
    defaults = [
        (f"{name}.{key}", field.default)
        for name, section in SECTIONS.items()
        for key, field in section.model_fields.items()
        if isinstance(field.default, Strict)
    ]
    assert len(defaults) >= 14
    for place, default in defaults:
        assert default == type(default).model_validate(default.model_dump()), place
