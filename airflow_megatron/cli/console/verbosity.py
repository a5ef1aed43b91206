"""Verbosity of the command line: the flags, or ``AIRFLOW_MEGATRON_LOG_LEVEL``, or by default warnings."""

from __future__ import annotations

import logging
import os
import sys

import typer

VARIABLE = "AIRFLOW_MEGATRON_LOG_LEVEL"
FLAGS = ("--quiet", "--verbose", "--debug")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

log = logging.getLogger("airflow_megatron")


def set_verbosity(*, quiet: bool, verbose: bool, debug: bool) -> None:
    """Send this package's log to standard error at the requested level; the most verbose flag has precedence.

    :raises typer.BadParameter: if the environment variable is not a valid level
    """
    named = os.environ.get(VARIABLE, "").strip().upper() or "WARNING"
    if named not in LEVELS:
        raise typer.BadParameter(f"{VARIABLE} is {named!r}; use one of {', '.join(LEVELS)}")
    level = "DEBUG" if debug else "INFO" if verbose else "ERROR" if quiet else named
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LowerCaseLevel())
    log.handlers[:] = [handler]
    log.setLevel(level)
    log.propagate = False


def log_to_standard_error() -> None:
    """Redirect Airflow's log, which its import sets up, away from standard output, which is for the output of a
    command. Airflow's notices, for example about its configuration, are shown only with ``--verbose``.
    """
    streams = (sys.stdout, sys.__stdout__, sys.stderr)  # the last one if it was redirected during the import
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams:
            handler.setStream(sys.stderr)
            handler.addFilter(_is_shown)


def says_warnings() -> bool:
    """Return whether warnings are shown."""
    return log.isEnabledFor(logging.WARNING)


def _is_shown(record: logging.LogRecord) -> bool:
    of_airflow = record.name.partition(".")[0] == "airflow"
    return not of_airflow or record.levelno >= logging.ERROR or log.isEnabledFor(logging.INFO)


class _LowerCaseLevel(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"
