"""Why a job waits, by squeue's reason: which waits end by themselves, and which need a person.

Names are those of ``squeue(1)``, "JOB REASON CODES", Slurm 20.02 to 25.05, and of ``slurm_protocol_defs.c``.
"""

from __future__ import annotations

import re
from typing import Final

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
    "PartitionNodeLimit": "it asks for more nodes than the partition gives",
    "PartitionTimeLimit": "it asks for more time than the partition gives",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than its account may",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than its QOS gives",
    "AssocMaxCpuPerJobLimit": "it asks for more processors than its account may",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than its account may",
    "AssocMaxGRESPerJob": "it asks for more GPUs than its account may",
    "QOSMaxCpuPerJobLimit": "it asks for more processors than its QOS gives",
    "QOSMaxNodePerJobLimit": "it asks for more nodes than its QOS gives",
    "QOSMaxGRESPerJob": "it asks for more GPUs than its QOS gives",
    "QOSMinGRES": "it asks for fewer GPUs than its QOS takes",
    "ReservationDeleted": "its reservation was deleted",
    "launch_failed_requeued_held": "it could not be started: scontrol release after the mend",
    "user_env_retrieval_failed_requeued_held": "the account's environment could not be read: scontrol release",
    "job_requeued_in_held_state": "it was put back and held: scontrol release",
    "JobHoldMaxRequeue": "it was put back too often: scontrol release",
}


def needs_a_person(reason: str) -> str | None:
    """Return what a person has to do for a waiting job, or None when the wait may end by itself.

    :param reason: squeue's ``%r``: ``Resources``, ``JobHeldUser``, ``(launch failed requeued held)``,
        ``ReqNodeNotAvail, UnavailableNodes:n[1-4]`` …
    """
    name = "_".join(_WORD.findall(reason.partition(",")[0].partition(":")[0]))
    return _NEEDS_A_PERSON.get(name)
