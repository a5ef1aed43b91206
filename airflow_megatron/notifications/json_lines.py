"""Notifier that needs no account: a file with one JSON object per notice."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class JsonLinesNotifier(BaseNotifier):
    """Append a line to a file on the machine that runs the task.

    Each line is written at once, so that tasks that end together do not mix theirs (POSIX: ``O_APPEND``).

    :param path: the file; its folder is made (templated)
    :param message: added to the object as ``message`` (templated)
    """

    template_fields: Sequence[str] = ("path", "message")

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__()
        self.path = path
        self.message = message

    def notify(self, context: Context) -> None:
        """Write the notice of the context; outside of this package's tasks, the task that the callback is of."""
        values: dict[str, Any] = dict(context)
        told = values.get("notice") or {"name": values["ti"].task_id, "sweep": values["ti"].dag_id}
        line = {"time": round(time.time(), 3), **told, **({"message": self.message} if self.message else {})}
        path = Path(self.path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(line, sort_keys=True) + "\n").encode())
        finally:
            os.close(descriptor)
