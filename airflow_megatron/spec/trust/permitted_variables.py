"""Environment variables that a spec may read: those that the operator lists, none inside Airflow by default.

A spec is untrusted: its author must not learn the environment of Airflow's process. The command line reads the user's
own shell, so there the usual variables of configurations (folders, accounts, partitions) are readable without any
setting; :data:`FOR_PEOPLE` lists them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Final

from airflow_megatron.spec.trust.operator_lists import listed

SETTING: Final = "AIRFLOW_MEGATRON_SPEC_VARIABLES"
"""Environment variable with further variables that specs may read: names and shell patterns, separated by commas."""

FOR_PEOPLE: Final = (
    *("HOME", "USER", "LOGNAME", "PWD", "SCRATCH", "WORK", "PROJECT", "STAGE", "CKPT_ITER", "NVRX_SIDECAR"),
    *("*_DIR", "*_HOME", "*_ROOT", "*_PROJECT", "*_EXCLUDE_NODES", "*_CACHE_PATH"),
    *("SLURM_ACCOUNT*", "SLURM_PARTITION*", "SLURM_QOS*", "SLURM_MEM", "SLURM_JOB_ID"),
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "OELLM_*", "MEGATRON_*"),
)
"""Names and patterns that the command line permits in addition to those of the setting."""

_NEVER_BY_PATTERN: Final = re.compile(
    r"(?i)AIRFLOW_|.*(?:PASSW|SECRET|TOKEN|CREDENTIAL|PRIVATE|API_?KEY)|.*(?:_KEY|_CONN)S?\Z"
)
_for_person: ContextVar[bool] = ContextVar("for_person", default=False)


class PermittedVariables(Mapping[str, str]):
    """The variables of an environment that a spec may read; the others appear not to be set.

    :param environment: the environment with the values
    :param named: names and shell patterns; a name that looks like a secret is permitted only by its exact name
    """

    def __init__(self, environment: Mapping[str, str], named: tuple[str, ...]) -> None:
        self._environment = environment
        self._names = frozenset(name for name in named if not _is_pattern(name))
        self._patterns = tuple(name for name in named if _is_pattern(name))

    def permits(self, name: str) -> bool:
        """Return whether a variable may be read, set or not."""
        if name in self._names:
            return True
        if _NEVER_BY_PATTERN.match(name):
            return False
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def __getitem__(self, name: str) -> str:
        """Return a value.

        :raises KeyError: if the variable is not set, or may not be read
        """
        if not self.permits(name):
            raise KeyError(name)
        return self._environment[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._environment if self.permits(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def permitted_variables() -> PermittedVariables:
    """Return the variables of this process that specs may read: those of the setting, and inside
    :func:`read_for_person` also :data:`FOR_PEOPLE`.
    """
    named = listed(SETTING)
    return PermittedVariables(os.environ, (*named, *FOR_PEOPLE) if _for_person.get() else named)


@contextlib.contextmanager
def read_for_person() -> Iterator[None]:
    """Permit :data:`FOR_PEOPLE`, because the environment is that of the user who runs a command."""
    token = _for_person.set(True)
    try:
        yield
    finally:
        _for_person.reset(token)


def only_for_person(name: str) -> bool:
    """Return whether a variable is readable on the command line but not inside Airflow with the current settings."""
    return _for_person.get() and not PermittedVariables({}, listed(SETTING)).permits(name)


def refusal(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return the problem of reading a variable without a value, and the hint."""
    default = f"write ${{oc.env:{name},default}}"
    if isinstance(environment, PermittedVariables) and not environment.permits(name):
        return (
            f"a spec may not read the environment variable {name}",
            f"add {name} to {SETTING} where Airflow and the command line run, or {default}",
        )
    return f"the environment variable {name} is not set", f"set it, or {default}"
