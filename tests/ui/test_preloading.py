"""Imports of Airflow's components before they fork processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from airflow._shared.listeners.listener import ListenerManager
from airflow._shared.listeners.spec import lifecycle
from airflow.jobs.job import Job
from airflow.sdk.execution_time.task_runner import TaskRunnerMarker

from airflow_megatron.ui import preloading, run_listener

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable listeners, so that a new job calls none."""
    monkeypatch.setattr("airflow.jobs.job.get_listener_manager", ListenerManager)


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers; Python 3.14 has another default."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(preloading.importlib, "import_module", names.append)
    monkeypatch.setattr(preloading, "_compute", lambda component: None)
    return names


@pytest.mark.parametrize(
    ("component", "executor", "wanted"),
    [
        ("scheduler", "LocalExecutor", preloading.OF_TASKS),
        ("scheduler", "CeleryExecutor, airflow.executors.local_executor.LocalExecutor", preloading.OF_TASKS),
        ("scheduler", "CeleryExecutor", ()),
        ("dag-processor", "CeleryExecutor", preloading.OF_READERS),
        ("triggerer", "LocalExecutor", preloading.OF_TRIGGERS),
        ("triggerer", "CeleryExecutor", preloading.OF_TRIGGERS),
        ("api-server", "LocalExecutor", ()),
        ("", "LocalExecutor", ()),
    ],
)
def test_each_component_preloads_modules_for_its_forks(
    component: str,
    executor: str,
    wanted: tuple[str, ...],
    imported: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    preloading.preload(component)
    assert tuple(imported) == wanted


def test_a_scheduler_that_spawns_its_workers_imports_nothing(
    imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    preloading.preload("scheduler")
    assert imported == []


def test_the_fork_server_of_a_scheduler_imports_what_its_workers_need(
    imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    preloaded: list[str] = []
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "forkserver")
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", preloaded.extend)
    monkeypatch.setenv("AIRFLOW__CORE__MP_FORKSERVER_PRELOAD", "airflow, mine")
    preloading.preload("api-server")
    assert preloaded == []
    preloading.preload("scheduler")
    assert preloaded == ["__main__", "airflow", "mine", *preloading.OF_TASKS]
    assert imported == []


FORK_SERVER = """\
import multiprocessing, sys
from airflow_megatron.ui.preloading import OF_TASKS, preload


def check():
    sys.exit(any(name not in sys.modules for name in OF_TASKS))


if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    preload(sys.argv[1])
    worker = multiprocessing.Process(target=check)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("component", "status"), [("scheduler", 0), ("api-server", 1)])
def test_workers_of_a_fork_server_have_the_modules(tmp_path: Path, component: str, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORK_SERVER)
    environment = os.environ | {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"}
    ended = subprocess.run([sys.executable, program, component], env=environment, check=False)
    assert ended.returncode == status


def test_what_cannot_be_imported_does_not_keep_airflow_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "airflow_megatron.hooks.asyncssh_transport", None)
    preloading.preload("scheduler")
    assert "airflow_megatron.hooks.asyncssh_transport cannot be imported" in caplog.text


@pytest.mark.parametrize(
    ("argv", "component"),
    [
        (["/opt/venv/bin/airflow", "scheduler", "--num-runs", "1"], "scheduler"),
        (["/opt/venv/lib/airflow/__main__.py", "dag-processor"], "dag-processor"),
        (["/opt/venv/bin/airflow"], ""),
        (["/opt/venv/bin/pytest", "scheduler"], ""),
    ],
)
def test_the_component_is_known_by_its_command(
    argv: list[str], component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert preloading.starting_component(Job()) == component
    assert preloading.starting_component(TaskRunnerMarker()) == ""


def test_airflow_calls_the_listener_before_its_job_has_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's listener must determine it in another way."""
    seen: list[str] = []
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/airflow", "scheduler"])
    monkeypatch.setattr(run_listener, "preload", seen.append)
    monkeypatch.setattr(run_listener, "_note_ended_runs", lambda session: None)
    listeners = ListenerManager()
    listeners.add_hookspecs(lifecycle)
    listeners.add_listener(run_listener)
    monkeypatch.setattr("airflow.jobs.job.get_listener_manager", lambda: listeners)
    Job()
    assert seen == ["scheduler"]


COMPUTED = """\
import sys
from airflow.sdk.listener import get_listener_manager
from airflow_megatron.dag_factory.spec_cache import code_state
from airflow_megatron.spec.model.schema import SlurmSection, SweepSpecSection
from airflow_megatron.ui.preloading import preload

preload(sys.argv[1])
print(
    SlurmSection.__pydantic_complete__ and SweepSpecSection.__pydantic_complete__,
    code_state.cache_info().currsize,
    get_listener_manager.cache_info().currsize,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "answer"),
    [("scheduler", "True 1 1"), ("dag-processor", "True 1 0"), ("triggerer", "False 0 0"), ("", "False 0 0")],
)
def test_forked_processes_inherit_what_is_computed(component: str, answer: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMPUTED, component],
        env=os.environ | {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == answer
