"""Interface of a connection to a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from airflow_megatron.errors import AirflowMegatronError

LONGEST_ANSWER: Final = 256 << 20
"""Maximum size of a command's output: a start-up file of the account, which jobs may write, can print without end."""


class TransportError(AirflowMegatronError):
    """The connection to the login node failed, or its output is incomplete; the outcome is unknown.

    :cvar permanent: a retry cannot succeed without a change of the configuration.
    """

    permanent = False


class SessionRefusedError(TransportError):
    """The login node permits no further command on this connection (``MaxSessions`` of sshd) while others run."""


class LongAnswerError(TransportError):
    """The output of a command is longer than :data:`LONGEST_ANSWER`.

    :param address: the login node
    """

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address}: the answer is longer than {LONGEST_ANSWER >> 20} MiB; "
            "see whether a start-up file of the account (~/.bashrc, ~/.profile) prints without end"
        )


class LoginRefusedError(TransportError):
    """The host key or the credentials of the connection are refused."""

    permanent = True


class LoginExpiredError(TransportError):
    """A login that worked before is refused, or ``login_budget`` is used up; tasks wait for the next login."""

    permanent = True


@dataclass(frozen=True)
class CommandResult:
    """The result of a remote script.

    :param exit_status: of the remote shell; -1 when a signal ended it.
    :param stdout: decoded as UTF-8, invalid bytes replaced (scripts send raw bytes as base64).
    :param stderr: likewise.
    :param left_out: files in the script to which the connection has no access; they appear to be missing.
    """

    exit_status: int
    stdout: str
    stderr: str
    left_out: tuple[str, ...] = ()


class Transport(Protocol):
    """A way to run scripts on one login node.

    ``run`` starts :meth:`airflow_megatron.slurm.remote.profile.SlurmCommands.remote_shell` on the login node, feeds
    it *script* on standard input, closes that, and waits for its end.
    """

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run *script*.

        :param script: POSIX shell text.
        :param timeout: time limit in seconds.
        :raises TransportError: cannot connect, connection lost, or time-out; the script may or may not have run.
        """
        ...

    async def close(self) -> None:
        """Close the connection; repeated calls have no effect."""
        ...
