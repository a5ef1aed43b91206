"""Error of a job's command that cannot be made."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError


class CommandError(AirflowMegatronError, ValueError):
    """A job whose command cannot be made.

    :param name: the parameter at fault
    """

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)
