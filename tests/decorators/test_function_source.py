"""The source text of a function of ``@task.slurm``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import airflow.sdk as sdk
from airflow.sdk import DAG, setup, task

from airflow_megatron.decorators.slurm import SlurmDecoratedOperator

if TYPE_CHECKING:
    from collections.abc import Callable


def unchanged(function: Callable[[], int]) -> Callable[[], int]:
    """Return a function that calls another."""

    @functools.wraps(function)
    def call() -> int:
        return function()

    return call


def sent(dag: DAG) -> Any:
    """Return what the function returns that the only task of a DAG sends to the cluster."""
    (made,) = dag.tasks
    assert isinstance(made, SlurmDecoratedOperator)
    files = made.job_files({})  # type: ignore[typeddict-item]
    names: dict[str, Any] = {}
    exec(compile(files["function.py"], "function.py", "exec"), names)
    return names[made.python_callable.__name__]()


def test_a_text_keeps_all_its_lines() -> None:
    with DAG("d", schedule=None) as dag:

        @task.slurm(slurm_conn_id="c")
        def script() -> str:
            # a comment
            return """#!/bin/sh
# kept
    #SBATCH --nodes=1
hostname
"""

        script()
    assert sent(dag) == "#!/bin/sh\n# kept\n    #SBATCH --nodes=1\nhostname\n"


def test_every_spelling_of_the_decorator_is_left_out() -> None:
    with DAG("d", schedule=None) as dag:

        @setup
        @sdk.task.slurm(
            slurm_conn_id="c",
        )
        def answer() -> int:
            return 42

        answer()
    assert sent(dag) == 42


def test_decorators_of_the_function_itself_stay() -> None:
    with DAG("d", schedule=None) as dag:

        @task.slurm(slurm_conn_id="c")
        @unchanged
        def answer() -> int:
            return 42

        answer()
    assert "@unchanged" in dag.tasks[0].job_files({})["function.py"]


def test_an_undecorated_function_stays_as_it_is() -> None:
    def answer() -> int:
        return 42

    with DAG("d", schedule=None) as dag:
        task.slurm(slurm_conn_id="c")(answer)()
    assert sent(dag) == 42
