"""The guard in every job script: it runs an attempt once, forwards stop signals and records how the job ended."""

from __future__ import annotations

from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.states.exit_codes import DUPLICATE_EXIT_CODE, UNWRITABLE_EXIT_CODE


def job_prologue(attempt_dir: str, *, stop_signal: str = "TERM") -> str:
    """Return the lines that follow the ``#SBATCH`` lines of a job script.

    They end the job if another job owns the attempt or it counts as ended (status :data:`DUPLICATE_EXIT_CODE`), if the
    directory is not writable (:data:`UNWRITABLE_EXIT_CODE`), and if the same job ran before and succeeded (status 0).
    If the same job still runs because Slurm launched it twice, they first wait for its end.
    Otherwise they write ``exit.json`` at every end of the script except SIGKILL. They define ``am_run COMMAND…``, with
    which the script must start its main command: it forwards TERM, USR1 and USR2 as *stop_signal* and returns the
    status of the command.

    :param attempt_dir: the attempt's directory on the cluster.
    :param stop_signal: the signal on which the command saves and stops (Megatron-LM's ``--exit-signal-handler``: TERM).
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
    """Return the last lines of a job script, which end it with the status of the preceding command."""
    return 'am_status=$?\nexit "$am_status"\n'
