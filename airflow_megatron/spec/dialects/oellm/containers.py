"""The ``container:`` section of an oellm-autoexp point as the container of its job.

Upstream's launchers start each command by ``<runtime> exec … --bind … <image>`` (``config/slurm/*.yaml``, c6d0cc0). An
image is taken over where the path says which file is meant on every machine, and the runtime is one that profiles have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.foreign.interpolation.configuration import ConfigurationError
from airflow_megatron.spec.model.schema import ContainerSection

if TYPE_CHECKING:
    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration

_SECTION: Final = "container"
_RUNTIMES: Final = ("apptainer", "singularity")
_RUNTIME: Final = "singularity"  # upstream's default
_KNOWN: Final = {
    "Container": ("class_name", "image", "runtime", "bind", "env", "pwd", "python"),
    "Conda": ("class_name", "env_name", "env_path", "conda_prefix", "activate_script", "env", "python"),
    "Venv": ("class_name", "venv_path", "activate_script", "env", "python"),
}
"""Upstream's classes and their fields (``config/schema.py``)."""
_PROFILES: Final = "the cluster profile's container is used"


def container_of(configuration: Configuration, warnings: list[str]) -> ContainerSection | None:
    """Return the container that a point names; None for that of the cluster profile.

    :param warnings: warnings about ignored keys are added to this list, with the reason
    :raises JobError: for a misspelt key, or a value of the wrong kind
    """
    section = configuration.raw(_SECTION)
    if section in (None, {}, "none"):
        return None
    if not isinstance(section, dict):
        raise JobError(
            f"{_SECTION} is {section!r}, not keys with values",
            _SECTION,
            f"{_SECTION}: {{image: /path/of.sif}}",
        )
    name = str(section.get("class_name") or "Container")
    _check_keys(section, name, warnings)
    if name != "Container":
        if _given(section, *_KNOWN[name][1:]):
            warnings.append(
                f"{_SECTION} ({name}): the cluster profile says which Python runs and what is set up before it: "
                "python, setup"
            )
        return None
    if not _given(section, "image"):
        if unused := _given(section, "runtime", "bind", "env", "pwd", "python"):
            named = ", ".join(f"{_SECTION}.{key}" for key in unused)
            warnings.append(f"{named}: {_PROFILES}, since there is no image")
        return None
    try:
        image, runtime, binds = (
            configuration.get(f"{_SECTION}.{key}") for key in ("image", "runtime", "bind")
        )
    except ConfigurationError:
        warnings.append(
            f"{_SECTION} ({section.get('image')}): {_PROFILES}, since a variable of the image's path is not known here"
        )
        return None
    runtime = runtime or _RUNTIME
    if runtime not in _RUNTIMES:
        warnings.append(f"{_SECTION}.runtime: {runtime}: {_PROFILES}; known here: {', '.join(_RUNTIMES)}")
        return None
    if not str(image).startswith("/") and "://" not in str(image):
        warnings.append(f"{_SECTION} ({image}): {_PROFILES}, since the path of the image is not absolute")
        return None
    if not isinstance(binds, list | None) or not all(isinstance(bind, str) for bind in binds or ()):
        raise JobError(
            f"{_SECTION}.bind is {binds!r}, not a list of paths", f"{_SECTION}.bind", 'write ["/scratch"]'
        )
    if ignored := _given(section, "pwd", "python", "env"):
        warnings.append(
            f"{', '.join(f'{_SECTION}.{key}' for key in ignored)}: commands run in the run directory, by the cluster "
            "profile's python, with the variables of slurm.env and backend.env"
        )
    given = {"runtime": runtime, "image": str(image), "binds": list(binds or ())}
    return ContainerSection.model_validate(given)


def _check_keys(section: dict[str, Any], name: str, warnings: list[str]) -> None:
    if name not in _KNOWN:
        key = f"{_SECTION}.class_name"
        raise JobError(
            f"there is no container {name!r}",
            key,
            did_you_mean(name, _KNOWN) or f"known: {', '.join(_KNOWN)}",
        )
    known = {key for keys in _KNOWN.values() for key in keys}  # one class may be merged over another
    unknown = [str(key) for key in section if key not in known]
    for key in unknown:
        if near := did_you_mean(key, known, limit=1, alike=0.75):
            raise JobError(f"there is no key '{_SECTION}.{key}'", f"{_SECTION}.{key}", near)
    unknown += _given(section, *sorted(known - {*_KNOWN[name]}))
    if unknown:
        warnings.append(f"{', '.join(f'{_SECTION}.{key}' for key in unknown)}: nothing here reads it")


def _given(section: dict[str, Any], *keys: str) -> list[str]:
    """Return the given keys that have a value; the path of Python is part of every profile."""
    return [key for key in keys if section.get(key) not in (None, "", [], {}, ".", "python")]
