"""Slurm's job states: names, short codes, truncated forms and forms with suffixes.

Source of the names: ``squeue(1)`` and ``sacct(1)``, section "JOB STATE CODES" (Slurm 20.02 to 25.05).
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """A state that squeue or sacct can print."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"
    """A state that this package does not know; it never triggers an action."""

    @property
    def ended(self) -> bool:
        """Whether the job will not run again under this record (a requeue creates a new record)."""
        return self in _ENDED

    @property
    def active(self) -> bool:
        """Whether the job is pending, running, or in transition between the two."""
        return self is not JobState.UNKNOWN and self not in _ENDED

    @property
    def waits_for_a_person(self) -> bool:
        """Whether the job stays in this state until a user runs ``scontrol release``."""
        return self in {JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD}


_ENDED = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
)

_SHORT_CODES = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING,
    "DL": JobState.DEADLINE,
    "EX": JobState.EXPEDITING,
    "F": JobState.FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD,
    "RF": JobState.REQUEUE_FED,
    "RH": JobState.REQUEUE_HOLD,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "SE": JobState.SPECIAL_EXIT,
    "SI": JobState.SIGNALING,
    "SO": JobState.STAGE_OUT,
    "ST": JobState.STOPPED,
    "TO": JobState.TIMEOUT,
}

_BY_THE_WAY = frozenset(
    {JobState.LAUNCH_FAILED, JobState.RECONFIG_FAIL, JobState.UPDATE_DB, JobState.UNKNOWN}
)
"""Flags that do not change the outcome of the job."""

_SHORTEST_TRUNCATION = 4
"""Minimum length of a truncated state: shorter ones (``COMP+``) are ambiguous."""


def parse_state(text: str) -> JobState:
    """Return the state named by *text*.

    Accepts full names, short codes, sacct's suffixes (``CANCELLED by 1000``), names truncated by fixed-width columns
    (``OUT_OF_ME+``, ``CANCELLED+``), and a state followed by flags (``RUNNING,COMPLETING``,
    ``job_state_string_complete`` of Slurm 23.11), where the flag is more specific. Any other text, and a truncated name
    that matches several states, is ``UNKNOWN``.
    """
    words = text.strip().upper().split(None, 1)
    if not words:
        return JobState.UNKNOWN
    name = words[0]
    if "," in name:
        base, *flags = (parse_state(part) for part in name.split(","))
        known = [flag for flag in flags if flag not in _BY_THE_WAY]
        return known[0] if known and base is not JobState.UNKNOWN else base
    if name in JobState.__members__:
        return JobState[name]
    if name in _SHORT_CODES:
        return _SHORT_CODES[name]
    if name.endswith("+") and len(stem := name[:-1]) >= _SHORTEST_TRUNCATION:
        if stem in JobState.__members__:
            return JobState[stem]
        fitting = [state for state in JobState if state.startswith(stem)]
        if len(fitting) == 1:
            return fitting[0]
    return JobState.UNKNOWN


def cancelled_by(text: str) -> str | None:
    """Return the user id in sacct's ``CANCELLED by <uid>``, or None."""
    words = text.split()
    if len(words) == 3 and words[0].upper().startswith("CANCEL") and words[1] == "by":
        return words[2]
    return None
