"""Words of the commands of this project's programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.command_error import CommandError

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


def options(**values: object) -> list[str]:
    """Return ``--name value`` for each value that is not None."""
    words: list[str] = []
    for name, value in values.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def needed(job: Job, name: str) -> Any:
    """Return the param of a job.

    :raises CommandError: if the spec does not give it
    """
    value = job.params.get(name)
    if value in (None, "", []):
        raise CommandError(name, f"stage {job.stage} ({job.kind}) needs {name}", "params")
    return value
