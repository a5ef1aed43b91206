"""A transport whose key may run only the programs of this package."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_megatron.hooks.restricted.dispatcher import LEFT_OUT, PROTOCOL, REFUSED
from airflow_megatron.hooks.restricted.programs import digest, request_for
from airflow_megatron.slurm.remote.framing import BEGIN
from airflow_megatron.slurm.remote.transport import CommandResult, Transport, TransportError

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.profile import SlurmCommands


def remote_command(commands: SlurmCommands) -> str:
    """Return the command line that names this version's programs; their requests follow on standard input."""
    return f"{PROTOCOL} 1 {digest(commands)}"


class RestrictedTransport:
    """A transport that sends the name of a program and its values instead of each script.

    :param transport: runs :func:`remote_command`
    :param commands: how Slurm's commands are called on the cluster
    :param conn_id: id of the Airflow connection, for messages
    """

    def __init__(self, transport: Transport, commands: SlurmCommands, conn_id: str) -> None:
        self._transport, self._commands, self._conn_id = transport, commands, conn_id

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run *script*, which must be one of the programs.

        :raises TransportError: if it is not one, if the cluster refuses it, or if the outcome is unknown
        """
        # in a thread, because a poll of thousands of jobs is a long script
        request = await asyncio.to_thread(request_for, script, self._commands)
        if request is None:
            raise TransportError(
                f"the key of connection {self._conn_id!r} is restricted, and this is not one of its programs "
                "(docs/security.md, Restricted keys); use a connection with an unrestricted key"
            )
        result = await self._transport.run(json.dumps(request), timeout=timeout)
        refusal = next((line for line in result.stderr.split("\n") if line.startswith(f"{PROTOCOL}: ")), "")
        if result.exit_status == REFUSED and refusal:
            raise TransportError(
                f"the restricted key of connection {self._conn_id!r} is refused: "
                f"{refusal.removeprefix(f'{PROTOCOL}: refused: ')}"
            )
        return replace(result, left_out=left_out_of(result.stdout))

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()


def left_out_of(answer: str) -> tuple[str, ...]:
    """Return the files that the cluster's side has left out, from an answer; texts of jobs follow its first marker."""
    before = answer.partition(f"\n{BEGIN}\n")[0].split("\n")
    lists = [line.removeprefix(LEFT_OUT) for line in before if line.startswith(LEFT_OUT)]
    return tuple(json.loads(lists[-1])) if lists else ()
