"""Tries of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


def just_cleared(context: Context) -> bool:
    """Return whether a user cleared the task and this is its first try since then.

    Airflow also retries a task by itself. It does so after its worker was killed, and if the scheduler handles the end
    of the deferring process only after the trigger has fired (the resumed task then looks like a killed one). Clearing
    sets ``max_tries`` to the tries so far plus ``retries`` (``clear_task_instances`` in
    ``airflow/models/taskinstance.py``).
    """
    task_instance = context["ti"]
    first = (task_instance.max_tries or 0) - (context["task"].retries or 0) + 1
    return first > 1 and task_instance.try_number == first
