"""Termination of ``airflow dags test`` by SIGTERM.

There, one process runs all tasks. On SIGTERM, Airflow calls only the ``on_kill`` of the current task, and the next
task would begin. As after a stop of the scheduler, jobs stay in Slurm, and the next run continues with them.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CommsDecoder

EXIT_STATUS: Final = 143
"""Exit status by which shells report an end by SIGTERM."""
_LONGEST_RECORD_S: Final = 5.0


class EndsTestRun:
    """An operator or sensor whose ``on_kill`` ends ``airflow dags test``; in a worker, ``on_kill`` does nothing."""

    def on_kill(self) -> None:
        """End the process if it runs all tasks of the run."""
        comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
        # Airflow also calls on_kill when execution_timeout has passed, and then continues with the next task
        if isinstance(comms, CommsDecoder) or isinstance(sys.exception(), AirflowTaskTimeout):
            return
        self.end_helpers()
        # the interrupted task may hold a lock of the database, so do not wait for the record
        record = threading.Thread(target=_record_end, args=(_run_of(self),), daemon=True)
        record.start()
        record.join(_LONGEST_RECORD_S)
        print(
            "stopped by SIGTERM: jobs in Slurm continue, and the next run follows them "
            "(`airflow-megatron cancel SPEC` cancels them)",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_STATUS)

    def end_helpers(self) -> None:
        """End the processes that the task has started."""


def _run_of(operator: Any) -> tuple[str, str] | None:
    """Return DAG and run of the task that is in progress."""
    from airflow.sdk import get_current_context

    try:
        return operator.dag_id, get_current_context()["ti"].run_id
    except (RuntimeError, KeyError):  # between two tasks
        return None


def _record_end(run: tuple[str, str] | None) -> None:
    """Record that a run has failed; otherwise a scheduler that starts later would continue it."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import update

    if run is None:
        return
    dag_id, run_id = run
    with create_session() as session:
        session.execute(
            update(DagRun)
            .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id, DagRun.state == DagRunState.RUNNING)
            .values(state=DagRunState.FAILED)
        )
