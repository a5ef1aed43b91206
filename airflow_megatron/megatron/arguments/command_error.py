"""Error of an invalid job command."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError


class CommandError(AirflowMegatronError, ValueError):
    """The command of a job cannot be made.

    :param name: the invalid parameter
    :param message: what is wrong
    :param section: the section of a stage to which the parameter must be added; empty if it is there
    """

    def __init__(self, name: str, message: str, section: str = "") -> None:
        self.name, self.message, self.section = name, message, section
        super().__init__(f"{message}; add {section}: {{{name}: …}}" if section else message)
