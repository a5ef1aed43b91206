"""Naming the newest checkpoint again where the tracker file that named it is gone or holds no number.

Megatron-LM writes the tracker in place (``save_checkpoint`` of ``megatron/training/checkpointing.py``): a node that
dies in that moment leaves it empty. Without it a training begins from scratch and overwrites what it finds; with an
empty one it ends at once, with exit code 0.
"""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.spec.layout.run_layout import TRACKER_FILE


class LostTrackerError(AirflowMegatronError):
    """The tracker could not be written, or another job has written it meanwhile."""


def tracker_script(checkpoint_dir: str, iteration: int) -> str:
    """Return the remote script that makes the tracker hold *iteration*; safe to repeat.

    Only while no job writes to the folder.

    :param checkpoint_dir: Megatron's ``--save`` directory, absolute.
    :param iteration: of a complete checkpoint in it.
    """
    return framed(
        f"am_dir={quote_path(checkpoint_dir.rstrip('/'))}\nam_iteration={int(iteration)}\n"
        f"{shell_file('checkpoint_folder')}\n"
        "am_tracker_read || am_tracker=directory\n"
        "case $am_tracker in\n  \"$am_iteration\") printf 'written\\n' ;;\n"
        "  *[0-9]*) printf 'failed it holds %s by now: another job saves here\\n' \"$am_tracker\" ;;\n"
        "  *)\n    am_said=$(am_tracker_write \"$am_iteration\" 2>&1) && printf 'written\\n' ||\n"
        "      printf 'failed %s\\n' \"$am_said\"\n    ;;\nesac"
    )


def parse_tracker(result: CommandResult) -> None:
    """Read the answer.

    :raises LostTrackerError: when the tracker was not written.
    :raises TransportError: when the answer is not whole; run the script again.
    """
    for line in unframed(result):
        word, _, detail = line.partition(" ")
        if word == "written":
            return
        if word == "failed":
            raise LostTrackerError(f"{TRACKER_FILE} cannot be written: {detail}")
    raise TransportError("the answer on writing the tracker holds no result")
