"""Names of environment variables that belong to the system, to Slurm or to job scripts: no secret may have one.

A secret is exported by the job's own shell. Under one of these names it would change which programs run (``PATH``,
``LD_PRELOAD``, ``BASH_ENV``), what Slurm's commands do, or what the script itself goes by.
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


def is_reserved(name: str) -> bool:
    """Return whether an environment variable belongs to the system, to Slurm or to job scripts."""
    return name in _RESERVED or _PREFIXES.match(name) is not None
