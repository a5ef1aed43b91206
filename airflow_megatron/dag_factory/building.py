"""The DAGs of one sweep, from its outline."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_megatron.dag_factory.callbacks import callbacks
from airflow_megatron.dag_factory.point_dag import build_point_dag
from airflow_megatron.dag_factory.sweep_dag import build_sweep_dag
from airflow_megatron.spec.documents.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_megatron.spec.model.outline import SweepOutline


def build_dags(sweep: SweepOutline) -> list[DAG]:
    """Build both DAGs of a sweep.

    :raises SpecError: if Airflow refuses them
    """
    defaults = default_args(sweep)
    try:
        return [build_sweep_dag(sweep, defaults), build_point_dag(sweep, defaults)]
    except (Exception, RecursionError) as error:
        text = f"Airflow cannot build the DAGs of this sweep: {error}"
        raise SpecError(
            Problem(sweep.file, *sweep.place, text, "check the names of stages and tags")
        ) from error


def default_args(sweep: SweepOutline) -> dict[str, Any]:
    """Return the ``default_args`` of a sweep's DAGs.

    A busy scheduler may count a task that a trigger has resumed as a killed one, which uses up a try. Retries are
    harmless, because no task submits twice. Errors that a retry cannot solve fail at once.
    """
    return {
        "owner": "megatron",
        "retries": 5,
        "retry_delay": timedelta(seconds=20),
        "on_failure_callback": callbacks(sweep, "failure", always=True),
    }
