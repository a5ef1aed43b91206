"""Errors of a point of an oellm-autoexp sweep."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError


class JobError(AirflowMegatronError, ValueError):
    """A point that cannot become a job.

    :param message: what is wrong
    :param key: dotted configuration key at fault
    :param hint: what to write instead
    """

    def __init__(self, message: str, key: str, hint: str = "") -> None:
        self.key, self.hint = key, hint
        super().__init__(message)
