"""Stages that run a command of the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.spec.model.stage_kinds import StageKind

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class Command(StageKind):
    """A command; if it trains, its checkpoints are watched too."""

    needs_command = True
    reports_checkpoints = True

    def command(self, job: Job, cluster: ClusterProfile) -> NoReturn:
        """Refuse a job without a command."""
        message = f"stage {job.stage} ({job.kind}) needs a command; write command: [python, …]"
        raise CommandError("command", message)
