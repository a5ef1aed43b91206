"""Rename a run's checkpoints and the outputs made from them, so that the next attempt starts from scratch."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError


class FreshStartError(AirflowMegatronError):
    """The login node could not rename the folder."""


def fresh_start_script(folder: str, attempt: int) -> str:
    """Return the remote script that renames a folder ``….before_<attempt>``; nothing is deleted.

    It is idempotent until that attempt is submitted. It must run only while no job writes to the folder.

    :param folder: absolute path of Megatron's ``--save`` directory, or of an output made from its checkpoints.
    :param attempt: number of the attempt that starts from scratch.
    """
    return framed(
        f"am_from={quote_path(folder.rstrip('/'))}\nam_to=$am_from.before_{int(attempt)}\n"
        'if [ ! -e "$am_from" ] || [ -e "$am_to" ]; then\n  printf \'nothing\\n\'\n'
        'elif am_said=$(mv "$am_from" "$am_to" 2>&1); then\n  printf \'aside %s\\n\' "$am_to"\n'
        "else\n  printf 'failed %s\\n' \"$am_said\"\nfi"
    )


def parse_fresh_start(result: CommandResult) -> str | None:
    """Return the folder's new path, None if there was nothing to rename.

    :raises FreshStartError: if the folder could not be renamed.
    :raises TransportError: if the output is incomplete; run the script again.
    """
    for line in unframed(result):
        word, _, detail = line.partition(" ")
        match word:
            case "aside":
                return detail
            case "nothing":
                return None
            case "failed":
                raise FreshStartError(detail or "no reason given")
            case _:
                pass
    raise TransportError("the answer on setting checkpoints aside holds no result")
