"""Number of a task's try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def just_cleared(context: Context) -> bool:
    """Return whether a person cleared the task and this is its first try since.

    Airflow tries a task again by itself too: when its worker was killed, and when the scheduler handles the end of a
    process that deferred only after the trigger has fired (it takes the resumed task for one that was killed). Clearing
    sets ``max_tries`` to the tries so far plus ``retries`` (``clear_task_instances`` in
    ``airflow/models/taskinstance.py``).
    """
    task_instance = context["ti"]
    first = (task_instance.max_tries or 0) - (context["task"].retries or 0) + 1
    return first > 1 and task_instance.try_number == first
