"""``@task.slurm``: the files that are sent to the cluster, and the execution there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.decorators import run_function
from airflow_megatron.decorators.slurm import SlurmDecoratedOperator

if TYPE_CHECKING:
    from collections.abc import Callable


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
