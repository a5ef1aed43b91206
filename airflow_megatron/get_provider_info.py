"""The package's metadata for Airflow's provider manager."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata (``airflow/provider_info.schema.json``)."""
    return {
        "package-name": "airflow-megatron",
        "name": "Megatron-LM on Slurm",
        "description": "Jobs on `Slurm <https://slurm.schedmd.com/>`__ clusters, and Megatron-LM experiment sweeps.",
        "integrations": [
            {
                "integration-name": "Slurm",
                "external-doc-url": "https://slurm.schedmd.com/",
                "tags": ["service"],
            },
            {
                "integration-name": "Megatron-LM",
                "external-doc-url": "https://github.com/NVIDIA/Megatron-LM",
                "tags": ["software"],
            },
        ],
        "operators": [
            {
                "integration-name": "Slurm",
                "python-modules": [
                    "airflow_megatron.operators.cancel_left",
                    "airflow_megatron.operators.described_job",
                    "airflow_megatron.operators.slurm_job",
                    "airflow_megatron.operators.slurm_submit",
                    "airflow_megatron.operators.slurm_watch",
                    "airflow_megatron.operators.submit_arrays",
                ],
            },
            {
                "integration-name": "Megatron-LM",
                "python-modules": [
                    "airflow_megatron.operators.launch_points",
                    "airflow_megatron.operators.plan_sweep",
                    "airflow_megatron.operators.push_records",
                    "airflow_megatron.operators.resolve_point",
                    "airflow_megatron.operators.sweep_report",
                ],
            },
        ],
        "sensors": [
            {
                "integration-name": "Slurm",
                "python-modules": [
                    "airflow_megatron.sensors.condition",
                    "airflow_megatron.sensors.log",
                    "airflow_megatron.sensors.produced_file",
                    "airflow_megatron.sensors.slurm_job",
                ],
            },
            {
                "integration-name": "Megatron-LM",
                "python-modules": [
                    "airflow_megatron.sensors.checkpoint",
                    "airflow_megatron.sensors.point_runs",
                ],
            },
        ],
        "hooks": [{"integration-name": "Slurm", "python-modules": ["airflow_megatron.hooks.slurm"]}],
        "triggers": [
            {
                "integration-name": "Slurm",
                "python-modules": [
                    "airflow_megatron.triggers.condition",
                    "airflow_megatron.triggers.log_pattern",
                    "airflow_megatron.triggers.pause",
                    "airflow_megatron.triggers.queue_room",
                    "airflow_megatron.triggers.slurm_job",
                ],
            },
            {
                "integration-name": "Megatron-LM",
                "python-modules": [
                    "airflow_megatron.triggers.checkpoint",
                    "airflow_megatron.triggers.point_runs",
                ],
            },
        ],
        "connection-types": [
            {
                "connection-type": "slurm",
                "hook-class-name": "airflow_megatron.hooks.slurm.SlurmHook",
                "hook-name": "Slurm",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"host": "Login node", "login": "User"},
                    "placeholders": {"host": "login.cluster.example", "port": "22"},
                },
                "conn-fields": CONNECTION_FIELDS,
            }
        ],
        "task-decorators": [{"name": "slurm", "class-name": "airflow_megatron.decorators.slurm.slurm_task"}],
        "notifications": ["airflow_megatron.notifications.json_lines.JsonLinesNotifier"],
        "extra-links": ["airflow_megatron.links.sweep_results.SweepResultsLink"],
        "cli": ["airflow_megatron.cli.airflow_command.airflow_commands"],
        "config": {
            "megatron": {
                "description": "Megatron-LM sweeps on Slurm clusters (the package airflow-megatron).",
                "options": CONFIGURATION_OPTIONS,
            }
        },
    }


def _text(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "null"], **schema},
    }


def _switch(label: str, description: str, *, default: bool) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["boolean", "null"], "default": default},
    }


CONNECTION_FIELDS: dict[str, Any] = {
    "key_file": _text("Key file", "Private key, a path on the machines of Airflow's workers and triggerer"),
    "private_key": _text("Private key", "Text of the private key, instead of a file", format="password"),
    "private_key_passphrase": _text("Passphrase", "Of the private key", format="password"),
    "host_key": _text("Host key", "The only key that the login node may show: TYPE BASE64"),
    "known_hosts": _text("Known hosts", "File to check the host key against; ~/.ssh/known_hosts when empty"),
    "no_host_key_check": _switch(
        "No host key check", "Trust any login node: lets others run jobs as you", default=False
    ),
    "transport": _text(
        "Transport",
        "asyncssh runs inside Airflow; openssh is the system's ssh with everything its configuration can do",
        enum=["asyncssh", "openssh"],
        default="asyncssh",
    ),
    "control_path": _text(
        "Control path", "Socket of an OpenSSH session that a person has opened; with the transport openssh"
    ),
    "renew_command": _text(
        "Renewal command",
        "Program with arguments that renews the key or its certificate, run without a shell",
    ),
    "login_patience": _text(
        "Login patience",
        "How long tasks wait when a login that worked before is refused: 12h, 7d",
        default="7d",
    ),
    "ssh_config": _text("SSH configuration", "File to read in place of ~/.ssh/config"),
    "host_proxy_cmd": _text("Proxy command", "Command whose input and output are the connection"),
    "conn_timeout": {
        "label": "Connection timeout",
        "description": "Seconds",
        "schema": {"type": ["number", "null"], "default": 15},
    },
    "compress": _switch("Compression", "Allow SSH to compress", default=True),
    "work_dir": _text(
        "Directory of jobs",
        "Shared by login node and nodes; holds scripts, logs and records of jobs outside sweeps. "
        "airflow-jobs in the user's home when empty",
    ),
    "slurm_bin": _text("Directory of Slurm's commands", "Where they are not on the PATH of the login node"),
    "login_shell": _switch(
        "Login shell", "Where only a login shell has Slurm's commands on its PATH", default=False
    ),
    "restricted": _switch(
        "Restricted key",
        "The key runs only this package's programs: airflow-megatron cluster restrict",
        default=False,
    ),
}
"""Extras of a connection of type ``slurm``, as Airflow's form shows them."""


def _option(description: str, example: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": None,
        "type": "string",
        "example": example,
        "default": None,
    }


CONFIGURATION_OPTIONS: dict[str, Any] = {
    "sweep_specs_folder": _option(
        "Folder that sweep specs are dropped into. Not set: sweep_specs/ in the project.",
        "/srv/sweeps/sweep_specs",
    ),
    "clusters_folder": _option(
        "Folder of the cluster profiles. Not set: clusters/ or sbatch/clusters/ in the project, else the shipped "
        "profiles.",
        "/srv/sweeps/clusters",
    ),
    "templates_folder": _option(
        "Folder of the sbatch templates. Not set: sbatch/ in the project, else the shipped templates.",
        "/srv/sweeps/templates",
    ),
    "results_url": _option(
        "Address of the pages of results, for links. Not set: the page Sweeps below [api] base_url.",
        "https://airflow.example.org/megatron",
    ),
    "results_store": _option(
        "Where the rows of results are stored: a folder, or any URL of fsspec, as s3://bucket/sweeps. Not set: "
        "results/ in the folder of the machine's own state.",
        "s3://bucket/sweeps",
    ),
}
"""Options of the section ``[megatron]``; :mod:`airflow_megatron.spec.documents.configuration` reads them."""
