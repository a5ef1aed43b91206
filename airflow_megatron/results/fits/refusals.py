"""Refusals of fits; each message explains what the data lack and what to train."""

from __future__ import annotations

import importlib.util

from airflow_megatron.errors import AirflowMegatronError


class FitRefusedError(AirflowMegatronError):
    """The data do not determine the requested fit; the message explains why, and which data would."""


class EdgeOptimumError(FitRefusedError):
    """The optimum is at the edge of the tested values, or beyond it."""


def missing_for_fits() -> str:
    """Return what to install to make fits, empty if nothing is missing."""
    if importlib.util.find_spec("scipy") is not None:
        return ""
    return "fits need scipy: pip install 'airflow-megatron[fits]'"
