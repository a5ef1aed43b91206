"""Find ended jobs without a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.slurm.remote.transport import CommandResult


def stages_without_verdict(
    stage_dirs: Sequence[str], commands: SlurmCommands, run: Callable[[str], CommandResult]
) -> list[str]:
    """Return the stages whose newest attempt has left the queue and has no verdict.

    :param stage_dirs: directories of stages' attempts
    :param run: runs a script on the login node
    :raises TransportError: if the login node does not answer
    """
    states = parse_stage_states(stage_dirs, run(stage_state_script(stage_dirs)))
    watches = [
        Watch(key=stage_dir, job_id=state.job_id)
        for stage_dir, state in states.items()
        if state.job_id and state.verdict_on_newest is None
    ]
    if not watches:
        return []
    found = parse_poll(watches, run(poll_script(watches, commands)))
    return [
        stage_dir
        for stage_dir, seen in found.items()
        if seen.queue_ok and (not seen.queue or seen.queue.state.ended)
    ]
