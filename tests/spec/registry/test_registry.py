"""Classes that other packages register with entry points."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, StageKind
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.registry.registry import RegisteredName, Registry, RegistryError

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "airflow_megatron.test_kinds"
MODULE = """
from airflow_megatron.spec.model.stage_kinds import StageKind


class Merge(StageKind):
    params = ("weights",)


class Other:
    pass
"""
ENTRY_POINTS = f"""
[{GROUP}]
merge = merged_kinds:Merge
command = merged_kinds:Merge
other = merged_kinds:Other
gone = merged_kinds:Gone
"""


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[StageKind]:
    """A registry with a built-in kind, and a package installed that registers further ones."""
    (tmp_path / "merged_kinds.py").write_text(MODULE)
    metadata = tmp_path / "merged_kinds-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: merged-kinds\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"command": "airflow_megatron.megatron.stages.command:Command"}
    return Registry(StageKind, GROUP, own)


def test_a_package_registers_a_class(kinds: Registry[StageKind]) -> None:
    assert kinds["merge"].params == ("weights",)
    assert kinds["merge"] is kinds["merge"]
    assert kinds.names() == ("command", "gone", "merge", "other")
    assert kinds.find("merged") is None
    with pytest.raises(KeyError, match="no package here registers 'merged'"):
        kinds["merged"]


def test_a_package_cannot_replace_a_class_of_ours(kinds: Registry[StageKind]) -> None:
    assert type(kinds["command"]).__name__ == "Command"


@pytest.mark.parametrize(
    ("name", "why"),
    [("gone", "cannot be loaded: AttributeError"), ("other", "not a class that extends StageKind")],
)
def test_a_class_that_cannot_be_used_is_named(kinds: Registry[StageKind], name: str, why: str) -> None:
    with pytest.raises(RegistryError, match=f"merged_kinds:{name.title()}.*{why}"):
        kinds[name]


def test_a_field_of_names_is_checked_and_described_as_a_literal(kinds: Registry[StageKind]) -> None:
    class Named(BaseModel):
        kind: Annotated[str, RegisteredName(kinds)]

    class Literally(BaseModel):
        kind: Literal["command", "gone", "merge", "other"]

    assert Named(kind="merge").kind == "merge"
    for wrong in ("merged", 5, None, ["merge"]):
        reported = []
        for model in (Named, Literally):
            with pytest.raises(ValidationError) as error:
                TypeAdapter(model).validate_python({"kind": wrong})
            reported.append(error.value.errors(include_url=False))
        assert reported[0] == reported[1]
    ours, theirs = Named.model_json_schema(), Literally.model_json_schema()
    assert {**ours["properties"]["kind"], "title": "Kind"} == theirs["properties"]["kind"]
    assert json.dumps(ours["required"]) == json.dumps(theirs["required"])


def test_each_class_of_ours_can_be_made() -> None:
    assert [type(kind).__name__ for kind in STAGE_KINDS] == [
        *("Train", "LrFinder", "Benchmark", "Convert", "Evaluate", "Prefetch", "Command")
    ]
    assert [type(trainer).__name__ for trainer in TRAINERS] == [
        *("MegatronCore", "MegatronLM", "MegatronDeepSpeed")
    ]
