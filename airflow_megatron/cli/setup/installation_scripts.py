"""The remote scripts of an installation, and what they answer."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult

LONGEST_S: Final = 7200.0
"""Seconds that one script may take: making an environment on a slow file system."""


class InstallationError(AirflowMegatronError):
    """Something could not be put onto the cluster; nothing is half done."""


class LoginNode(NamedTuple):
    """Where the scripts run.

    :param run: runs a script
    :param preparation: shell lines before every script: the modules that the site's jobs load
    """

    run: Callable[[str], CommandResult]
    preparation: str = ""

    def call(self, function: str, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Call a function of ``shell/installation.sh`` and return what it prints.

        :param variables: of its environment
        :raises InstallationError: when it could not do its work
        :raises airflow_megatron.slurm.remote.transport.TransportError: when its answer did not arrive
        """
        exports = [f"export {name}={quote(value)}" for name, value in (variables or {}).items()]
        words = " ".join([function, *(quote(argument) for argument in arguments)])
        body = "\n".join([_functions(), self.preparation, *exports, words])
        answer = "\n".join(unframed(self.run(framed(body)))).strip()
        if answer.startswith("failed "):
            raise InstallationError(answer.removeprefix("failed "))
        return answer


def encoded(content: bytes) -> str:
    """Return bytes as a word of a script."""
    return base64.b64encode(content).decode("ascii")


def module_lines(modules: Sequence[str]) -> str:
    """Return shell lines that load environment modules where the shell does not know them yet."""
    if not modules:
        return ""
    words = " ".join(quote(module) for module in modules)
    return f"command -v module >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1\nmodule load {words} >&2"


@cache
def _functions() -> str:
    text = (Path(__file__).parent / "shell" / "installation.sh").read_text(encoding="utf-8")
    return text.partition("\n\n")[2]
