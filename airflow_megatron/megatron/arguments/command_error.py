"""Error of an invalid job command."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError


class CommandError(AirflowMegatronError, ValueError):
    """The command of a job cannot be made.


    :param name: the invalid parameter
    """

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)
