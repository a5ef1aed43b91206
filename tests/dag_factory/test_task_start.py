"""What the process of a task imports before it has its DAG, with 25 specs in the folder."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

NOT_FOR_TASKS = (
    "airflow_megatron.dag_factory.spec_folder",
    "airflow_megatron.megatron.validation",
    "airflow_megatron.plan.submission_checks",
    "airflow_megatron.plan.sweep_plan",
    "airflow_megatron.results.plots.plots",
    "airflow_megatron.spec.dialects",
    "airflow_megatron.spec.native.sweep",
)
"""Packages and modules that read, check and plan specs, or draw."""


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(project_root() / "benchmarks" / "task_start.py"))


def test_a_task_builds_its_own_sweep_alone(benchmark: dict[str, Any], tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    specs.mkdir()
    benchmark["write_specs"](specs)
    starts = benchmark["starts"](specs, tmp_path, "sweep7.point", "pretrain.watch", 1)
    assert {tuple(start["dags"]) for start in starts} == {("sweep7", "sweep7.point")}
    imported = {name for start in starts for name in start["modules"]}
    assert not [name for name in imported if name.startswith(NOT_FOR_TASKS)]


def test_a_fork_of_a_process_that_has_preloaded_imports_nothing_more(
    benchmark: dict[str, Any], tmp_path: Path
) -> None:
    specs = tmp_path / "specs"
    specs.mkdir()
    benchmark["write_specs"](specs)
    starts = benchmark["starts"](specs, tmp_path, "sweep7.point", "pretrain.watch", 2, preloaded=True)
    assert {tuple(start["dags"]) for start in starts} == {("sweep7", "sweep7.point")}
    assert [start["modules"] for start in starts] == [[], []]
