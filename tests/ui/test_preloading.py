"""What a component of Airflow's imports for the processes that it forks."""

from __future__ import annotations

import multiprocessing
import sys
from types import SimpleNamespace

import pytest

from airflow_megatron.ui import preloading


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(preloading.importlib, "import_module", names.append)
    return names


@pytest.mark.parametrize(
    ("job_type", "executors", "wanted"),
    [
        ("SchedulerJob", [SimpleNamespace(is_local=True)], preloading.OF_TASKS),
        ("SchedulerJob", [SimpleNamespace(is_local=False)], ()),
        ("DagProcessorJob", [], preloading.OF_READERS),
        ("TriggererJob", [], ()),
    ],
)
def test_each_component_imports_for_its_forks(
    job_type: str, executors: list[SimpleNamespace], wanted: tuple[str, ...], imported: list[str]
) -> None:
    preloading.preload(SimpleNamespace(job_type=job_type, executors=executors))
    assert tuple(imported) == wanted


def test_a_scheduler_that_spawns_its_workers_imports_nothing(
    imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    preloading.preload(SimpleNamespace(job_type="SchedulerJob", executors=[SimpleNamespace(is_local=True)]))
    assert imported == []


def test_what_cannot_be_imported_does_not_keep_airflow_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "airflow_megatron.hooks.asyncssh_transport", None)
    preloading.preload(SimpleNamespace(job_type="SchedulerJob", executors=[SimpleNamespace(is_local=True)]))
    assert "airflow_megatron.hooks.asyncssh_transport cannot be imported" in caplog.text
