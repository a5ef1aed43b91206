"""Interface of a connection to a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_megatron.errors import AirflowMegatronError


class TransportError(AirflowMegatronError):
    """The login node could not be asked, or its answer did not arrive whole: nothing is known about the
    outcome.

    :cvar permanent: trying again cannot help before somebody changes something.
    """

    permanent = False


class LoginRefusedError(TransportError):
    """The connection cannot be used as it is set up: its host key or credentials are not accepted."""

    permanent = True


@dataclass(frozen=True)
class CommandResult:
    """What a remote script answered.

    :param exit_status: of the remote shell; -1 when a signal ended it.
    :param stdout: decoded as UTF-8, invalid bytes replaced (scripts send raw bytes as base64).
    :param stderr: likewise.
    """

    exit_status: int
    stdout: str
    stderr: str


class Transport(Protocol):
    """A way to run scripts on one login node.

    ``run`` starts :meth:`airflow_megatron.slurm.remote.profile.SlurmCommands.remote_shell` on the login node, feeds
    it *script* on standard input, closes that, and waits for its end.
    """

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run *script*.

        :param script: POSIX shell text.
        :param timeout: seconds after which the answer is given up.
        :raises TransportError: cannot connect, connection lost, or time-out; the script may or may not have
            run.
        """
        ...

    async def close(self) -> None:
        """Give the connection back; closing twice does no harm."""
        ...
