"""The fixed part of the remote scripts: the ``.sh`` files of this package.

The file names of :mod:`airflow_megatron.spec.layout.run_layout` are passed to them as shell variables.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.spec.layout import run_layout

# read with the modules that call them: during an upgrade, a running process keeps the functions that it knows
_FILES: Final = {
    file.stem: file.read_text(encoding="utf-8") for file in (Path(__file__).parent / "shell").glob("*.sh")
}
_NAMES: Final = {
    "am_jobs_folder": run_layout.JOBS,
    "am_arrays_folder": run_layout.ARRAYS,
    "am_shared_cache_folder": run_layout.SHARED_DATA_CACHE,
    "am_prefetched_folder": run_layout.PREFETCHED,
    "am_checkpoints_folder": run_layout.CHECKPOINTS,
    "am_converted_folder": run_layout.CONVERTED,
    "am_converted_marks_folder": run_layout.CONVERTED_MARKS,
    "am_evaluations_folder": run_layout.EVALUATIONS,
    "am_tracker_file": run_layout.TRACKER_FILE,
    "am_verdict_file": run_layout.VERDICT_RECORD,
    "am_exit_file": run_layout.EXIT_RECORD,
    "am_job_file": run_layout.JOB_RECORD,
    "am_script_file": run_layout.JOB_SCRIPT,
    "am_job_id_file": run_layout.JOB_ID_RECORD,
    "am_chained_file": run_layout.CHAINED_RECORD,
    "am_began_at_file": run_layout.BEGAN_AT_RECORD,
    "am_ahead_file": run_layout.AHEAD_RECORD,
    "am_decision_file": run_layout.AHEAD_DECISION,
    "am_withdrawn_file": run_layout.WITHDRAWN,
    "am_run_folder": run_layout.RUN_FOLDER,
    "am_owner_file": run_layout.OWNER_RECORD,
    "am_secrets_folder": run_layout.SECRETS,
    "am_gpus_folder": run_layout.GPU_SAMPLES,
}
"""Variable → file name; names of attempt files are relative to the attempt's directory."""
_NAME = re.compile(rf"\b({'|'.join(_NAMES)})\b")


@cache
def shell_file(name: str) -> str:
    """Return the text of ``shell/<name>.sh`` without its leading comment.

    Assignments of the file names that it uses precede the text.

    :param name: file name without suffix.
    """
    text = _FILES[name].partition("\n\n")[2].strip("\n")
    used = dict.fromkeys(_NAME.findall(text))
    return "\n".join([*(f"{variable}={quote(_NAMES[variable])}" for variable in used), text])
