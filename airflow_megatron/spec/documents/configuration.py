"""The section ``[megatron]`` of Airflow's configuration, read without Airflow.

As in Airflow, an environment variable ``AIRFLOW__MEGATRON__<OPTION>`` overrides ``airflow.cfg``, which is the file in
``AIRFLOW_CONFIG``, else the one in ``AIRFLOW_HOME`` (``airflow.configuration``: ``get_airflow_home``,
``get_airflow_config``, ``expand_env_var``). :mod:`airflow_megatron.get_provider_info` declares the options.
"""

from __future__ import annotations

import configparser
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

SECTION: Final = "megatron"
SWEEP_SPECS_FOLDER: Final = "sweep_specs_folder"
CLUSTERS_FOLDER: Final = "clusters_folder"
TEMPLATES_FOLDER: Final = "templates_folder"
RESULTS_URL: Final = "results_url"
RESULTS_STORE: Final = "results_store"
OPTIONS: Final = (SWEEP_SPECS_FOLDER, CLUSTERS_FOLDER, TEMPLATES_FOLDER, RESULTS_URL, RESULTS_STORE)


def airflow_home() -> Path:
    """Return Airflow's home: ``AIRFLOW_HOME``, else ``~/airflow``."""
    return Path(expanded(os.environ.get("AIRFLOW_HOME") or "~/airflow")).absolute()


def airflow_configuration() -> Path:
    """Return the path of Airflow's configuration file, which need not exist."""
    named = os.environ.get("AIRFLOW_CONFIG")
    return Path(expanded(named)).absolute() if named else airflow_home() / "airflow.cfg"


def option_variable(option: str, section: str = SECTION) -> str:
    """Return the environment variable of an option."""
    return f"AIRFLOW__{section.upper()}__{option.upper()}"


def configured(option: str, section: str = SECTION) -> str:
    """Return the value of an option; empty if it is not set.

    :raises SpecError: if ``airflow.cfg`` cannot be read
    """
    named = os.environ.get(option_variable(option, section))
    if named is None:
        path = airflow_configuration()
        try:
            status = path.stat()
        except OSError:
            return ""
        named = _values(path, section, status.st_mtime_ns, status.st_size).get(option, "")
    return expanded(named.strip())


def configured_folder(option: str) -> Path | None:
    """Return the folder in an option, None if it is not set; a relative path is relative to Airflow's home."""
    named = configured(option)
    return airflow_home() / named if named else None


@lru_cache(maxsize=8)
def _values(path: Path, section: str, changed: int, size: int) -> Mapping[str, str]:
    """Return the options of a section.

    :param changed: modification time of the file; this and the size are keys of the cache
    """
    del changed, size
    parser = configparser.ConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
        values = dict(parser.items(section)) if parser.has_section(section) else {}
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or 0
        reason = str(error).splitlines()[0]
        raise SpecError(
            Problem(str(path), line, 0, f"Airflow's configuration cannot be read: {reason}", _hint(error))
        ) from None
    if section == SECTION:
        for option in values.keys() - {*OPTIONS, *parser.defaults()}:
            near = did_you_mean(option, OPTIONS, limit=1) or f"its options: {', '.join(OPTIONS)}"
            log.warning("%s: [%s] has no option %r (%s)", path, section, option, near)
    return values


def _hint(error: Exception) -> str:
    """Return what to do about a configuration that cannot be read."""
    if isinstance(error, configparser.DuplicateSectionError):
        return f"[{error.section}] must not occur twice: write its options below the first one"
    if isinstance(error, configparser.DuplicateOptionError):
        return "keep one of the two lines"
    return "correct it"


def expanded(value: str) -> str:
    """Expand ``~`` and variables until nothing changes, as Airflow does."""
    for _ in range(16):  # a variable may refer to itself
        longer = os.path.expanduser(os.path.expandvars(value))  # noqa: PTH111
        if longer == value:
            break
        value = longer
    return value
