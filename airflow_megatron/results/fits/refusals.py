"""Refusals of fits: each says what the data lack and what to train."""

from __future__ import annotations

import importlib.util

from airflow_megatron.errors import AirflowMegatronError


class FitRefusedError(AirflowMegatronError):
    """The data do not determine what was asked for; the message says why and what would."""


class EdgeOptimumError(FitRefusedError):
    """The optimum is at the edge of the tested values, or beyond it."""


def missing_for_fits() -> str:
    """Return what to install before anything can be fitted; empty where it is there."""
    if importlib.util.find_spec("scipy") is not None:
        return ""
    return "there are no fits without scipy: pip install 'airflow-megatron[fits]'"
