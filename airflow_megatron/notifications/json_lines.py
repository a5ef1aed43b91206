"""Notifier without an account: it appends one JSON object per notice to a file."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_megatron.notices.notice_files import append_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class JsonLinesNotifier(BaseNotifier):
    """Append a line to a file on the machine that runs the task, below one folder.

    The folder is ``notices/`` in the folder of the machine's state, or the one in ``AIRFLOW_MEGATRON_NOTICES``; see
    :func:`airflow_megatron.notices.notice_files.append_line`.

    :param path: the file, relative to that folder; missing folders are created (templated, in your own DAGs)
    :param message: added to the object as ``message`` (templated likewise)
    """

    template_fields: Sequence[str] = ("path", "message")

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__()
        self.path = path
        self.message = message

    def notify(self, context: Context) -> None:
        """Write the notice of the context; outside of this package's tasks, the data of the callback's task."""
        values: dict[str, Any] = dict(context)
        notice = values.get("notice") or _of_a_callback(values)
        line = {
            "time": round(time.time(), 3),
            **notice,
            **({"message": self.message} if self.message else {}),
        }
        append_line(self.path, json.dumps(line, sort_keys=True))


def _of_a_callback(values: dict[str, Any]) -> dict[str, str]:
    """Return the task of a callback, or the run: Airflow may call a DAG's callbacks without a task."""
    task = values.get("ti")
    if task is None:
        return {"name": values["run_id"], "sweep": values["dag"].dag_id}
    return {"name": task.task_id, "sweep": task.dag_id}
