"""The environment variables of an oellm-autoexp point, from ``slurm.env`` and ``backend.env``.

Upstream writes each as ``export NAME=value`` into the script, so a shell computes the values. Here values are plain
text; the cluster profile sets what depends on the site, and the job script what the launcher needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.foreign.interpolation.configuration import MISSING, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration

_SECTIONS: Final = ("slurm.env", "backend.env")
_MACHINE: Final = "slurm.env.MACHINE_NAME"  # names the cluster profile
_MANAGED: Final = re.compile(
    r"(?:MASTER_(?:ADDR|PORT)|NUM_(?:NODES|GPUS|GPUS_PER_NODE)|GPUS_PER_NODE|MACHINE_NAME|ARCH|SLURM_\w+"
    r"|PYTHONPATH|PROJECT_DIR|RUN_DIR|LOCAL_ADDR)\Z"
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_REASONS: Final = {
    "managed": "the job script or the cluster profile sets it",
    "shell": "variables that a shell would compute belong into the cluster profile's setup",
    "unset": "null is no value, so the variable is not set",
}


def environment_of(configuration: Configuration, warnings: list[str]) -> dict[str, str]:
    """Return the variables with plain values.

    :param warnings: warnings about variables that are not taken over are added to this list, with the reason
    :raises JobError: for a section without keys, a name that no variable can have, and a value that is no plain one
    """
    environment: dict[str, str] = {}
    passed_over: dict[str, list[str]] = {}
    for section in _SECTIONS:
        for name, value in _variables(configuration, section, warnings):
            key = f"{section}.{name}"
            reason = _reason(name, value)
            if reason is None:
                environment[name] = str(value)
            elif key != _MACHINE:
                passed_over.setdefault(reason, []).append(key)
    warnings.extend(f"{', '.join(keys)}: {_REASONS[reason]}" for reason, keys in passed_over.items())
    return environment


def _reason(name: str, value: Any) -> str | None:
    if _MANAGED.match(name):
        return "managed"
    if value is None:
        return "unset"
    return "shell" if "$" in str(value) else None


def _variables(configuration: Configuration, section: str, warnings: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that can be resolved; those of a site may be unknown on this machine."""
    written = configuration.raw(section)
    if written is not None and not isinstance(written, dict):
        raise JobError(
            f"{section} is {written!r}, not variables", section, f"write {section}: {{NAME: value}}"
        )
    for name in written or ():
        key = f"{section}.{name}"
        if not isinstance(name, str) or not _NAME.match(name):
            raise JobError(
                f"{key}: {name!r} cannot be the name of a variable", key, "use letters, digits and '_'"
            )
        try:
            value = configuration.value(tuple(key.split(".")))
        except ConfigurationError as error:
            if not _MANAGED.match(name):
                warnings.append(f"{key}: not set, since it cannot be resolved: {error}")
            continue
        if value == MISSING:
            raise JobError(
                f"{key} is ???, which has to be filled in", key, f"write its value, or --set {key}=…"
            )
        if isinstance(value, list | dict):
            raise JobError(f"{key} is {value!r}, not a text or a number", key, "quote the text that is meant")
        yield name, value
