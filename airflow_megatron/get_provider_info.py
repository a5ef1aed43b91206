"""What Airflow's provider manager is told about this package."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata (``airflow/provider_info.schema.json``)."""
    return {
        "package-name": "airflow-megatron",
        "name": "Megatron-LM on Slurm",
        "description": "Megatron-LM experiment sweeps on Slurm clusters.",
        "operators": [
            {
                "integration-name": "Slurm",
                "python-modules": [
                    "airflow_megatron.operators.slurm_submit",
                    "airflow_megatron.operators.slurm_watch",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Megatron-LM",
                "python-modules": ["airflow_megatron.sensors.checkpoint", "airflow_megatron.sensors.log"],
            }
        ],
        "hooks": [{"integration-name": "Slurm", "python-modules": ["airflow_megatron.hooks.slurm"]}],
        "triggers": [
            {
                "integration-name": "Slurm",
                "python-modules": [
                    "airflow_megatron.triggers.slurm_job",
                    "airflow_megatron.triggers.checkpoint",
                    "airflow_megatron.triggers.log_pattern",
                ],
            }
        ],
        "notifications": ["airflow_megatron.notifications.json_lines.JsonLinesNotifier"],
        "extra-links": ["airflow_megatron.links.sweep_results.SweepResultsLink"],
    }
