"""Program of a test: a task's process that runs a SlurmJobOperator as Airflow's task runner does.

Arguments: the command of the job, and whether the operator is deferrable. ``TASK_STORE`` is its state store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CommsDecoder
from airflow.sdk.execution_time.context import set_current_context

from airflow_megatron.operators.slurm_job import SlurmJobOperator


class FileStore:
    """A task's state store in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _all(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, key: str) -> Any:
        return self._all().get(key)

    def set(self, key: str, value: Any) -> None:
        self.path.write_text(json.dumps({**self._all(), key: value}))


def main() -> None:
    task = SlurmJobOperator(
        task_id="t",
        command=sys.argv[1],
        slurm_conn_id="site",
        deferrable=sys.argv[2] == "deferrable",
        poll_interval=1,
    )
    task_runner.SUPERVISOR_COMMS = object.__new__(CommsDecoder)  # as in a worker
    signal.signal(signal.SIGTERM, lambda number, frame: task.on_kill())
    instance = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="t",
        map_index=-1,
        try_number=1,
        max_tries=0,
        xcom_push=lambda **value: None,
    )
    store = FileStore(Path(os.environ["TASK_STORE"]))
    context: Any = {"ti": instance, "task": SimpleNamespace(retries=0), "task_state_store": store}
    with set_current_context(context), suppress(TaskDeferred):
        task.execute(context)


if __name__ == "__main__":
    main()
