"""The command lines of a cluster's Slurm commands."""

from __future__ import annotations

from airflow_megatron.slurm.remote.profile import SlurmCommands


def test_later_fields_are_serialized_only_if_they_are_set() -> None:
    """Triggers of earlier versions lack them; triggers of later ones may hold more."""
    assert SlurmCommands("site", "/opt/bin").to_json() == {
        "cluster": "site",
        "slurm_bin": "/opt/bin",
        "login_shell": False,
    }
    budget = SlurmCommands("site", login_budget=6, min_poll_interval=60.0)
    assert SlurmCommands.from_json(budget.to_json()) == budget
    assert SlurmCommands.from_json({"cluster": "site", "of_later": 1}) == SlurmCommands("site")
