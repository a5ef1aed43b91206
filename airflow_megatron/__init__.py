"""Megatron-LM experiment sweeps on Slurm clusters, driven from Apache Airflow."""

from __future__ import annotations

__version__ = "0.1.0"
