"""Restore a tracker file that is missing or holds no number, so that it names the newest checkpoint.

Megatron-LM writes the tracker in place (``save_checkpoint`` of ``megatron/training/checkpointing.py``), so a node
failure during the write leaves an empty file. Without the file, a training starts from scratch and overwrites existing
checkpoints; with an empty file, it ends at once with exit code 0.
"""

from __future__ import annotations

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.spec.layout.run_layout import TRACKER_FILE


class LostTrackerError(AirflowMegatronError):
    """The tracker could not be written, or another job has changed it."""


def tracker_script(checkpoint_dir: str, iteration: int) -> str:
    """Return the remote script that writes *iteration* to the tracker; it is idempotent.

    It must run only while no job writes to the folder.

    :param checkpoint_dir: absolute path of Megatron's ``--save`` directory.
    :param iteration: iteration of a complete checkpoint in it.
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
    """Check the output of the script.

    :raises LostTrackerError: if the tracker was not written.
    :raises TransportError: if the output is incomplete; run the script again.
    """
    for line in unframed(result):
        word, _, detail = line.partition(" ")
        if word == "written":
            return
        if word == "failed":
            raise LostTrackerError(f"{TRACKER_FILE} cannot be written: {detail}")
    raise TransportError("the answer on writing the tracker holds no result")
