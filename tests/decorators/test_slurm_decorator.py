"""``@task.slurm``: the files that are sent to the cluster, and the execution there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_megatron.decorators import run_function, slurm
from airflow_megatron.decorators.slurm import SlurmDecoratedOperator
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators import slurm_job
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.spec.model.jobs import Job


def operator(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> SlurmDecoratedOperator:
    with DAG("d", schedule=None) as dag:
        task.slurm(slurm_conn_id="c")(function)(*arguments, **keywords)
    (made,) = dag.tasks
    assert isinstance(made, SlurmDecoratedOperator)
    return made


def ran(made: SlurmDecoratedOperator, folder: Path, context: Any = None) -> subprocess.CompletedProcess[str]:
    """Run the command of a job in a Python without this package."""
    for name, text in made.job_files(context or {}).items():
        (folder / name).write_text(text)
    words = [sys.executable, "-I", "-S", str(folder / "run_function.py"), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_function_is_called_with_its_arguments(tmp_path: Path) -> None:
    def scale(path: Path, *, factor: float = 2.0) -> dict[str, Any]:  # Path: unknown over there
        import math

        return {"name": path, "value": math.floor(factor * 10), "none": None}

    result = ran(operator(scale, "ü'\n", factor=1.5), tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == {"name": "ü'\n", "value": 15, "none": None}


def test_what_a_function_names_of_the_context_is_given(tmp_path: Path) -> None:
    def today(ds=None, run_id=None):  # type: ignore[no-untyped-def]
        return f"{ds} {run_id}"

    assert ran(operator(today), tmp_path, {"ds": "2026-11-22", "run_id": "r"}).returncode == 0
    assert (tmp_path / "result.json").read_text() == '"2026-11-22 r"\n'


def test_keywords_of_a_function_are_the_plain_values_of_the_context(tmp_path: Path) -> None:
    def names(**context):  # type: ignore[no-untyped-def]
        return context

    given = {"ds": "2026-11-22", "params": {"n": 4}, "ti": object()}
    assert ran(operator(names), tmp_path, given).returncode == 0
    assert json.loads((tmp_path / "result.json").read_text()) == {"ds": "2026-11-22", "params": {"n": 4}}


def test_a_named_part_of_the_context_that_is_not_json_is_refused() -> None:
    def show(ti=None):  # type: ignore[no-untyped-def]
        print(ti)

    context: Any = {"ti": object()}
    with pytest.raises(AirflowFailException, match=r"show has the parameter ti, .* use ds"):
        operator(show).job_files(context)


def test_a_coroutine_function_is_awaited(tmp_path: Path) -> None:
    async def add(value: int) -> int:
        return value + 1

    assert ran(operator(add, 2), tmp_path).returncode == 0
    assert (tmp_path / "result.json").read_text() == "3\n"


def test_a_function_that_fails_fails_the_job(tmp_path: Path) -> None:
    def divide(value: int) -> float:
        return 1 / value

    result = ran(operator(divide, 0), tmp_path)
    assert result.returncode != 0
    assert "ZeroDivisionError" in result.stderr
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("value", ["{1, 2}", "[float('nan')]", "{'loss': float('inf')}"])
def test_a_result_that_is_not_json_fails_the_job(value: str, tmp_path: Path) -> None:
    def answer(expression):  # type: ignore[no-untyped-def]
        return eval(expression)

    result = ran(operator(answer, value), tmp_path)
    assert result.returncode != 0
    # the failure of the task quotes the last line of an exception
    assert result.stderr.splitlines()[-1].startswith("TypeError: the result of answer is not JSON")


def test_arguments_that_are_not_json_are_refused() -> None:
    def show(path: Path) -> None:
        print(path)

    with pytest.raises(AirflowFailException, match="the arguments of show are not JSON"):
        operator(show, Path("/tmp")).job_files({})  # type: ignore[arg-type]


def test_a_command_beside_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="SlurmJobOperator"):
        task.slurm(command="hostname")(lambda: None)()


def test_the_shipped_runner_needs_no_package() -> None:
    text = Path(run_function.__file__).read_text()
    assert "airflow" not in text


def test_a_function_that_ends_its_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave() -> None:
        raise SystemExit(0)

    with DAG("d", schedule=None) as dag:
        task.slurm(cluster="local")(leave)()
    (made,) = dag.tasks
    assert isinstance(made, SlurmDecoratedOperator)
    job = made.described_job(task_context())
    no_file = SimpleNamespace(answered=lambda script, parse: [""])
    monkeypatch.setattr(slurm, "job_attempts", lambda job, log: no_file)
    with pytest.raises(AirflowFailException, match=r"leave ended its process \(sys\.exit"):
        made._returned(job, 1)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the login."""

    def work_dir(hook: SlurmHook) -> str:
        raise LoginExpiredError("login refused since today")

    monkeypatch.setattr(SlurmHook, "work_dir", work_dir)


def task_context() -> Any:
    instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    store: Any = Store()
    return {"ti": instance, "task": SimpleNamespace(retries=0), "task_state_store": store, "params": {"n": 4}}


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def shell_operator(function: Callable[..., Any], *arguments: Any, **job: Any) -> SlurmDecoratedOperator:
    with DAG("d", schedule=None) as dag:
        task.slurm(shell=True, **job)(function)(*arguments)
    (made,) = dag.tasks
    assert isinstance(made, SlurmDecoratedOperator)
    return made


@pytest.mark.usefixtures("away")
def test_a_shell_command_is_made_after_a_wait_for_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(name: str) -> str:
        return f"echo {name} {{{{ params.n }}}}"

    context = task_context()
    with pytest.raises(TaskDeferred) as deferred:
        shell_operator(words, "a", slurm_conn_id="alps").execute(context)
    jobs: list[Job] = []

    def job_attempts(job: Job, log: Any) -> None:
        jobs.append(job)
        raise LoginRefusedError("enough")

    monkeypatch.setattr(slurm_job, "job_attempts", job_attempts)
    resumed = shell_operator(words, "a", cluster="local")  # another process
    with pytest.raises(AirflowFailException, match="enough"):
        resumed.resume_execution(deferred.value.method_name, {}, context)
    assert [job.command for job in jobs] == [("bash", "-c", "echo a 4")]


def test_a_coroutine_function_returns_a_shell_command() -> None:
    async def words(name: str) -> str:
        return f"echo {name}"

    job = shell_operator(words, "a", cluster="local").described_job(task_context())
    assert job.command[-1] == "echo a"


def test_a_shell_command_leaves_rendered_arguments_alone() -> None:
    def words(name: str) -> str:
        return f"echo {{{{ params.n }}}} {len(name)}"

    made = shell_operator(words, "{{ params.n }}", cluster="local", env={"DATA": "{{ params.n }}"})
    job = made.described_job(task_context())  # Airflow has rendered the fields before
    assert (job.command[-1], job.env["DATA"], made.op_args) == (
        "echo 4 14",
        "{{ params.n }}",
        ("{{ params.n }}",),
    )
