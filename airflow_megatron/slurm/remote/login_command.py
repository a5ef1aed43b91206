"""Shell lines that run a command on a login node in the environment of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.shell_files import shell_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def module_lines(modules: Sequence[str]) -> str:
    """Return shell lines that load environment modules; define ``module`` first if necessary."""
    if not modules:
        return ""
    words = " ".join(quote(module) for module in modules)
    return f"command -v module >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1\nmodule load {words} >&2"


def login_command(
    command: Sequence[str],
    modules: Sequence[str],
    environment: Mapping[str, str],
    secrets: Mapping[str, str],
) -> str:
    """Return lines that run a command and print its output, and its exit status last.

    :param environment: variables of the command
    :param secrets: variables with the content of private files: name → path
    """
    reading = [f"am_secret {name} {quote(path)} || exit" for name, path in secrets.items()]
    lines = [
        module_lines(modules),
        *(f"export {name}={quote(value)}" for name, value in environment.items()),
        *([shell_file("job_secret"), *reading] if reading else []),
        " ".join(map(quote, command)),
    ]
    return "\n".join(["(", *lines, ") 2>&1 </dev/null", "printf '\\n%s\\n' \"$?\""])
