"""The remote scripts of an installation, and their answers."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.slurm.remote.transport import CommandResult

LONGEST_S: Final = 7200.0
"""Timeout of one script in seconds, for creating an environment on a slow file system."""


class InstallationError(AirflowMegatronError):
    """A part could not be installed on the cluster; nothing is left incomplete."""


class LoginNode(NamedTuple):
    """The login node that runs the scripts.

    :param run: runs a script
    :param preparation: shell lines before every script: the modules that the site's jobs load
    """

    run: Callable[[str], CommandResult]
    preparation: str = ""

    def call(self, function: str, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Call a function of ``shell/installation.sh`` and return what it prints.

        :param variables: environment variables of the script
        :raises InstallationError: if the function failed
        :raises airflow_megatron.slurm.remote.transport.TransportError: if the answer did not arrive
        """
        exports = [f"export {name}={quote(value)}" for name, value in (variables or {}).items()]
        words = " ".join([function, *(quote(argument) for argument in arguments)])
        body = "\n".join([_functions(), self.preparation, *exports, words])
        answer = "\n".join(unframed(self.run(framed(body)))).strip()
        if answer.startswith("failed "):
            raise InstallationError(answer.removeprefix("failed "))
        return answer


def encoded(content: bytes) -> str:
    """Return bytes encoded as a word for a script."""
    return base64.b64encode(content).decode("ascii")


@cache
def _functions() -> str:
    text = (Path(__file__).parent / "shell" / "installation.sh").read_text(encoding="utf-8")
    return text.partition("\n\n")[2]
