"""Shell text inside every job script: runs an attempt once, passes stop signals on, and records how it
ended.
"""

from __future__ import annotations

from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.states.exit_codes import DUPLICATE_EXIT_CODE, UNWRITABLE_EXIT_CODE


def job_prologue(attempt_dir: str, *, stop_signal: str = "TERM") -> str:
    """Return the lines that a job script has right after its ``#SBATCH`` lines.

    They end the job when another job owns the attempt (status :data:`DUPLICATE_EXIT_CODE`), when nothing can
    be written there (:data:`UNWRITABLE_EXIT_CODE`), and when the same job ran before and ended well (status 0);
    when the same job still runs, started once more by Slurm, they wait for its end first.
    Otherwise they write ``exit.json`` when the script ends, however it does short of SIGKILL. They define
    ``am_run COMMAND…``, with which the script must start its long command: it forwards TERM, USR1 and USR2 as
    *stop_signal* and returns the command's own status.

    :param attempt_dir: the attempt's directory on the cluster.
    :param stop_signal: what the command understands as "save and stop" (Megatron-LM's
        ``--exit-signal-handler``: TERM).
    """
    if stop_signal not in {"TERM", "INT", "USR1", "USR2"}:
        raise ValueError(f"stop_signal must be TERM, INT, USR1 or USR2, not {stop_signal!r}")
    return (
        f"am_attempt_dir={quote_path(attempt_dir)}\n"
        f"am_stop_signal={stop_signal}\n"
        f"am_duplicate_status={DUPLICATE_EXIT_CODE}\n"
        f"am_unwritable_status={UNWRITABLE_EXIT_CODE}\n"
        f"{shell_file('job_guard')}\n"
    )


def job_epilogue() -> str:
    """Return the last lines of a job script: it ends with the status of the command before them."""
    return 'am_status=$?\nexit "$am_status"\n'
