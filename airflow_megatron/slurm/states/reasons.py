"""squeue's reasons of pending jobs: which of them need the action of a user or administrator.

Source of the names: ``squeue(1)``, "JOB REASON CODES", Slurm 20.02 to 25.05, and ``slurm_protocol_defs.c``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.states.job_states import JobState

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import QueueRow

_REASONS: Final = re.compile(r",(?! )")
"""Separates the reasons of the pending tasks of an array, which squeue prints in one row."""
_WORD: Final = re.compile(r"[A-Za-z_]+")

_NEEDS_A_PERSON: Final = {
    "JobHeldUser": "release it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "DependencyNeverSatisfied": "the job it depends on has failed: cancel it",
    "BadConstraints": "no node fits its constraints: change them",
    "InactiveLimit": "it was stopped by the site's InactiveLimit",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not use the partition",
    "PartitionNodeLimit": "it requests more nodes than the partition allows",
    "PartitionTimeLimit": "it requests more time than the partition allows",
    "PartitionConfig": "it requests more than the partition allows",
    "MaxMemPerLimit": "it requests more memory than the partition allows",
    "ReservationDeleted": "its reservation was deleted",
    "launch_failed_requeued_held": "it could not be started: repair the cause, then scontrol release",
    "user_env_retrieval_failed_requeued_held": "the account's environment could not be read: scontrol release",
    "job_requeued_in_held_state": "it was requeued and held: scontrol release",
    "JobHoldMaxRequeue": "it was requeued too often: scontrol release",
}


# A job that exceeds a limit on all jobs of a group, user or account starts later; a limit on one job always blocks it.
_TOO_MUCH: Final = re.compile(r"(Assoc|QOS)Max([A-Za-z]+?)(Minutes)?Per(Job|Node)(?:Limit)?")
_TOO_LITTLE: Final = re.compile(r"QOSMin([A-Za-z]+?)(?:NotSatisfied)?")
_RESOURCES: Final = {
    "BB": "burst buffer",
    "Cpu": "processors",
    "GRES": "GPUs",
    "License": "licenses",
    "Mem": "memory",
    "Node": "nodes",
    "Unknown": "of something",
    "WallDuration": "time",
}


def needs_a_person(reason: str) -> str | None:
    """Return why a pending job cannot start without action, or None if it may start later by itself.

    :param reason: squeue's ``%r``: ``Resources``, ``JobHeldUser``, ``(launch failed requeued held)``,
        ``ReqNodeNotAvail, UnavailableNodes:n[1-4]`` …
    """
    name = "_".join(_WORD.findall(reason.partition(",")[0].partition(":")[0]))
    if match := _TOO_MUCH.fullmatch(name):
        limit = "than its account may" if match[1] == "Assoc" else "than its QOS gives"
        much = f"minutes of {_resource(match[2])}" if match[3] else _resource(match[2])
        return f"it requests more {much} {limit}{' on a node' if match[4] == 'Node' else ''}"
    if match := _TOO_LITTLE.fullmatch(name):
        return f"it requests fewer {_resource(match[1])} than its QOS requires"
    return _NEEDS_A_PERSON.get(name)


def help_needed(row: QueueRow) -> str:
    """Return what a user or administrator has to do so that a queued job runs; empty if it may run by itself."""
    if row.state.waits_for_a_person:
        return "it waits for 'scontrol release'"
    if row.state is not JobState.PENDING:  # a task that runs keeps the reason of its held array
        return ""
    reasons = _REASONS.split(row.reason)
    hints = [hint for reason in reasons if (hint := needs_a_person(reason)) is not None]
    which = "it" if len(reasons) == 1 else "a task of its array"
    return f"{which} does not start by itself: {hints[0]}" if hints else ""


def _resource(name: str) -> str:
    return _RESOURCES.get(name.replace("Memory", "Mem"), name.lower())
