"""Setting the checkpoints of a run, and what was made of them, aside, so that its next attempt starts anew."""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError


class FreshStartError(AirflowMegatronError):
    """The login node could not rename the folder."""


def fresh_start_script(folder: str, attempt: int) -> str:
    """Return the remote script that renames a folder ``….before_<attempt>``; nothing is deleted.

    It may run any number of times before that attempt is submitted. Only while no job writes to the folder.

    :param folder: Megatron's ``--save`` directory, or one of what was made of its checkpoints; absolute.
    :param attempt: number of the attempt that starts anew.
    """
    return framed(
        f"am_from={quote_path(folder.rstrip('/'))}\nam_to=$am_from.before_{int(attempt)}\n"
        'if [ ! -e "$am_from" ] || [ -e "$am_to" ]; then\n  printf \'nothing\\n\'\n'
        'elif am_said=$(mv "$am_from" "$am_to" 2>&1); then\n  printf \'aside %s\\n\' "$am_to"\n'
        "else\n  printf 'failed %s\\n' \"$am_said\"\nfi"
    )


def parse_fresh_start(result: CommandResult) -> str | None:
    """Return the folder's new name, None when there was nothing to set aside.

    :raises FreshStartError: when it could not be renamed.
    :raises TransportError: when the answer is not whole; run the script again.
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
