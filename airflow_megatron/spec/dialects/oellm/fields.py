"""The fields of oellm-autoexp's conditions, actions and events, and the Slurm states in them.

As in ``monitor/{conditions,actions}.py`` (c6d0cc0; ``progress_…``, ``MaxActionFires``, ``QuarantineCheckpoint`` and
the further fields of ``RestartAction`` are of later revisions). Upstream refuses other fields.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EVERY: Final = ("class_name", "persistent_pass", "persistent_fail")
CONDITION_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "AlwaysTrueCondition": ("message",),
    "AndCondition": ("conditions",),
    "BlockingFileExistsCondition": ("path", "blocking", "timeout_seconds", "poll_interval_seconds"),
    "CommandCondition": ("command",),
    "CompositeCondition": ("mode", "conditions"),
    "CooldownCondition": ("cooldown_seconds", "note"),
    "FileContentCondition": ("path", "pattern", "mode"),
    "FileExistsCondition": ("path",),
    "GlobExistsCondition": ("pattern", "min_matches"),
    "LogPatternCondition": ("log_path", "pattern", "tail_lines"),
    "MaxActionFiresCondition": ("max_fires",),
    "MaxAttemptsCondition": ("max_attempts",),
    "MetadataCondition": ("key", "equals", "within"),
    "NotCondition": ("condition",),
    "OrCondition": ("conditions",),
    "ShellCommandCondition": ("command",),
    "SlurmStateCondition": ("job_name", "state"),
    "TimeoutCondition": ("timeout_seconds", "message"),
}
ACTION_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Finish": ("reason",),
    "Cancel": ("reason",),
    "Restart": ("reason", "wait_for_job_end", "cancel_first", "pre_command", "exclude_file"),
    "Log": ("message", "level"),
    "AppendToFile": ("path", "content", "dedup", "create_parents", "reason"),
    "UpdateChainExcludes": ("exclude_file", "reason"),
    "QuarantineCheckpoint": (
        *("checkpoint_dir", "iteration", "quarantine_prefix", "tracker_name", "max_rollbacks", "dry_run"),
        "reason",
    ),
    "NewJob": ("job_config", "reason"),
    "RunAutoexp": ("script", "overrides", "config_path", "no_monitor", "reason"),
}
_EVENT: Final = ("class_name", "name", "action", "metadata", "condition")
LOG_EVENT_FIELDS: Final = (
    *(*_EVENT, "pattern", "pattern_type", "extract_groups", "match_once"),
    *("inactivity_polls", "inactivity_timeout_s", "progress_polls", "progress_timeout_s", "progress_mode"),
    "progress_group",
)
STATE_EVENT_FIELDS: Final = (*_EVENT, "transition")
_UNREAD: Final = frozenset(
    {
        "metadata",
        "level",
        "tail_lines",
        "progress_mode",
        "progress_group",
        "wait_for_job_end",
        "cancel_first",
        "pre_command",
    }
    | {"persistent_fail", "blocking", "timeout_seconds", "poll_interval_seconds"}
)
GOOD_STATES: Final = frozenset({"COMPLETED", "SUCCESS", "FINISHED"})
# squeue(1), JOB STATE CODES, and oellm-autoexp's own two words
STATES: Final = GOOD_STATES | frozenset(
    """BOOT_FAIL CANCELLED COMPLETING CONFIGURING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED REQUEUED
    REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED
    TIMEOUT""".split()  # noqa: SIM905
)


class FieldError(AirflowMegatronError, ValueError):
    """An unknown field or state.

    ``key`` is the dotted key of the condition or event that has it, empty if that is unknown.
    """

    key = ""


@contextmanager
def placed(key: str) -> Iterator[None]:
    """Add the key to an error in the block, unless the error has one."""
    try:
        yield
    except FieldError as error:
        error.key = error.key or key
        raise


def condition_fields(name: str) -> tuple[str, ...]:
    """Return the fields of a condition's class."""
    return (*_EVERY, *CONDITION_FIELDS[name])


def unread_fields(what: str, data: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[str]:
    """Yield the given fields that have no effect in this package.

    :param what: names the owner in messages
    :param known: its fields
    :raises FieldError: for a field that it does not have
    """
    for field, value in data.items():
        if field not in known:
            near = did_you_mean(str(field), known) or f"known: {', '.join(known)}"
            raise FieldError(f"{what} has no {field!r}; {near}")
        if field in _UNREAD and value not in (None, {}, [], "", False):
            yield field


def checked_state(state: object, what: str) -> str:
    """Return a state of Slurm in capitals.

    :raises FieldError: for a word that is none
    """
    word = str(state).upper()
    if word not in STATES:
        near = did_you_mean(word, STATES) or "states are those of squeue: FAILED, TIMEOUT, …"
        raise FieldError(f"{what}: Slurm has no state {state!r}; {near}")
    return word
