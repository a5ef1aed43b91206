"""The JSON Schema for editors is up to date and agrees with the loader."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from airflow_megatron.spec.dialects.registry import dialect_sweep
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text
from airflow_megatron.spec.native.extension import extended
from airflow_megatron.spec.native.json_schema import FILE_NAME, sweep_spec_schema, sweep_spec_schema_text
from airflow_megatron.spec.spec_files import spec_files

SPECS = project_root() / "sweep_specs"
NATIVE = [path for path in spec_files(SPECS) if dialect_sweep(load_yaml_file(path)) is None]
MINIMAL = "point: p\nstages:\n  a:\n    kind: train\n"


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = sweep_spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_committed_copy_is_current() -> None:
    """Renew it with ``airflow-megatron schema > sweep_specs/sweep-spec.schema.json``."""
    assert (SPECS / FILE_NAME).read_text() == sweep_spec_schema_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_shipped_specs_name_it_and_follow_it(path: Any, validator: Any) -> None:
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={FILE_NAME}"
    document = load_yaml_file(path)
    validator.validate(document.data)
    validator.validate(extended(document).data)


@pytest.mark.parametrize(
    "more",
    [
        "    slurm: {time: 6h, nodes: 2}",
        "    slurm: {time: '06:00:00', signal_before: 90}",
        '    slurm: {time: "{{ hours * 3600 }}", nodes: "{{ n }}"}',
        "    start: {checkpoint: '{{ train_iters - 10 }}', every: 30s}",
        "    start: {any: [{log: done}, {not: {file: x}}]}",
        "    each_checkpoint: {spacing: 100, last: false}",
        "    each_checkpoint: true",
        "    for_each: {budget: [100M, {name: b, x: 1}]}",
        "    events: [{idle: 30m, do: restart, limit: null}]",
        "    restart: {failed: null, backoff: 1m}",
        "    health: {stall: {after: 30m, do: notify}, spike: {do: rollback}}",
        "health: off",
        "sweep: {type: list, groups: [{params: {lr: [1, 2]}}, {configs: [{a: 1}]}], filter: '{{ lr > 1 }}'}",
        "sweep: {lr: [1, 2], grids: [{a: [1]}]}",
        "poll_interval: 5",
    ],
)
def test_what_it_takes(more: str, validator: Any) -> None:
    validator.validate(load_yaml_text(f"{MINIMAL}{more}\n", "s.yaml").data)


def test_a_spec_that_extends_another_gives_what_differs(validator: Any) -> None:
    validator.validate({"extends": "a.yaml", "stages": {"a": {"slurm": {"nodes": 2}}}})
    assert not validator.is_valid({"extends": "a.yaml", "stages": {"a": {"slurm": {"nodse": 2}}}})
    assert not validator.is_valid({"stages": {"a": {"kind": "train"}}})


@pytest.mark.parametrize(
    "more",
    [
        "    slurm: {time: soon}",
        "    slurm: {nodes: many}",
        "    slurm: {nodse: 1}",
        "    parents: b",
        "    start: {all: [{chekpoint: 3}]}",
        "    kind2: x",
        "sweep: {type: sum}",
        "sweep: {groups: []}",
        "sweep: [1]",
        "max_active_points: 0",
        "trainer: torch",
        "  b: {parent: a}",
    ],
)
def test_what_it_marks(more: str, validator: Any) -> None:
    assert not validator.is_valid(load_yaml_text(f"{MINIMAL}{more}\n", "s.yaml").data)
