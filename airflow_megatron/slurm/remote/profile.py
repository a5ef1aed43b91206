"""The location of a cluster's Slurm commands, how to call them, and how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.remote.quoting import checked_path, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATER: Final = frozenset({"login_budget", "min_poll_interval"})
"""Fields that triggers in the databases of earlier versions lack."""


@dataclass(frozen=True)
class SlurmCommands:
    """The location of Slurm's commands, the shell that runs them, and how often the site permits polls.

    :param cluster: the profile's name, for messages.
    :param slurm_bin: directory of ``sbatch``, ``squeue`` …; empty if they are on the login node's ``PATH``.
    :param login_shell: read the account's login profile first (sites that put Slurm on ``PATH`` only there).
    :param login_budget: maximum logins per hour of all processes of a machine, 0 for no limit.
    :param min_poll_interval: shortest time between two polls, in seconds.
    """

    cluster: str = ""
    slurm_bin: str = ""
    login_shell: bool = False
    login_budget: int = 0
    min_poll_interval: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a relative ``slurm_bin``."""
        if self.slurm_bin:
            checked_path(self.slurm_bin)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SlurmCommands:
        """Parse the output of :meth:`to_json` of any version; unknown keys are ignored."""
        return cls(**{each.name: value[each.name] for each in fields(cls) if each.name in value})

    def to_json(self) -> dict[str, Any]:
        """Return keyword arguments; those that later versions have added only if they are set."""
        return {name: item for name, item in asdict(self).items() if item or name not in _LATER}

    def command(self, name: str) -> str:
        """Return the shell word that runs the Slurm command *name*."""
        return quote(f"{self.slurm_bin.rstrip('/')}/{name}" if self.slurm_bin else name)

    def remote_shell(self) -> str:
        """Return the command line that runs a script given on its standard input.

        The shell reads the complete script before it runs it: bash would otherwise read a piped script one byte per
        system call, and a command in the script could consume the rest of the script.
        """
        read_whole = "exec /bin/sh -c 'script=$(cat) && eval \"$script\" </dev/null'"
        if self.login_shell:
            return f"bash -l -c {quote(read_whole)}"
        return read_whole


DEFAULT_COMMANDS = SlurmCommands()
"""Slurm on the login node's ``PATH``."""


_SETTINGS = "SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0 SQUEUE_ALL=1 SCONTROL_ALL=1"


def slurm_functions(commands: SlurmCommands) -> str:
    """Return shell functions ``am_squeue``, ``am_sacct``, ``am_scontrol`` and ``am_scancel``; times are printed
    as Unix seconds, the indices of an array's waiting tasks in full, and jobs in hidden partitions like others.
    """
    return "\n".join(
        f'am_{name}() {{ {_SETTINGS} {commands.command(name)} "$@"; }}'
        for name in ("squeue", "sacct", "scontrol", "scancel")
    )
