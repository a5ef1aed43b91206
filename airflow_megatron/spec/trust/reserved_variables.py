"""Names of environment variables that belong to the system, to Slurm or to job scripts.

A secret is exported by the job's own shell. Under one of these names it would change which programs run (``PATH``,
``LD_PRELOAD``, ``BASH_ENV``), what Slurm's commands do, or the behaviour of the script itself. ``env`` sets plain
values, so that most of these names are allowed there.
"""

from __future__ import annotations

import re
from typing import Final

_RESERVED: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", "LANG", "TERM", "HOSTNAME"),
        *(
            "ENV",
            "BASH",
            "IFS",
            "CDPATH",
            "GLOBIGNORE",
            "SHELLOPTS",
            "BASHOPTS",
            "PROMPT_COMMAND",
            "POSIXLY_CORRECT",
        ),
        *("PS1", "PS2", "PS4", "UID", "EUID", "PPID", "OPTIND", "OPTARG", "RANDOM", "SECONDS", "LINENO"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONUSERBASE", "VIRTUAL_ENV"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        *("command", "hosts", "iteration", "LOAD"),  # of the templates in sbatch/
    )
)
_PREFIXES: Final = re.compile(
    r"(?:LD|DYLD|BASH|LC|SLURM|SLURMD|SBATCH|SRUN|PMI|PMIX|TORCHELASTIC|AIRFLOW_MEGATRON|am)_"
)
_IDENTITY: Final = re.compile(
    r"SLURM_(?:JOB_?ID|RESTART_COUNT|ARRAY_(?:JOB|TASK)_ID|(?:JOB_)?NODELIST|PROCID|LOCALID|NODEID|STEP_?ID)\Z"
)
"""With another value, ``srun`` starts its processes in another job, or a process has the place of another."""
_READ_ONLY: Final = frozenset(("UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"))
_NEEDED_ON_PATH: Final = ("/usr/bin", "/bin")


def is_reserved(name: str) -> bool:
    """Return whether an environment variable belongs to the system, to Slurm or to job scripts."""
    return name in _RESERVED or _PREFIXES.match(name) is not None


def fixed_by(name: str) -> str | None:
    """Return the program that sets an environment variable in each job and allows no other value, or None."""
    if _IDENTITY.match(name):
        return "Slurm"
    return "bash" if name in _READ_ONLY else None


def lacks_system_programs(path: str) -> bool:
    """Return whether a value of ``PATH`` has no folder with the programs that job scripts call."""
    return not set(_NEEDED_ON_PATH) & set(path.split(":"))
