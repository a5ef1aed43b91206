"""A watch of one job, and the observation that one poll makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.remote.quoting import (
    QuotingError,
    checked_job_id,
    checked_job_name,
    checked_path,
    checked_text,
    quote_glob,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.remote.records import ExitRecord
    from airflow_megatron.slurm.states.job_states import JobState


_LARGEST_NUMBER: Final = 2**63 - 1
END_OF_LOG: Final = 2**53
"""Value of ``log_offset`` with which a poll returns the size of the log but none of its bytes."""


@dataclass(frozen=True)
class Watch:
    """The data that a poll collects for one job. Every part is optional: a sensor may watch only files.

    :param key: identifies the watch within one poll; unique.
    :param job_id: Slurm job id.
    :param job_name: exact Slurm job name; a row of *job_id* with another name belongs to a reused id and is not
        reported. Without *job_id* the queue is searched by name.
    :param attempt_dir: directory of the attempt, of which ``exit.json`` and ``run/job_id`` are read.
    :param checkpoint_dir: Megatron's ``--save`` directory, of which the tracker file and the sizes of all ``iter_*``
        files are read.
    :param checkpoint_from: first iteration whose files are listed; of earlier checkpoints only the name is listed.
    :param log_file: log, read from *log_offset*.
    :param log_offset: number of bytes of the log that were read before.
    :param read_files: small text files; each poll reads up to 64 KiB of each.
    :param check_files: paths whose existence is checked.
    :param globs: absolute path patterns (``*``, ``?``, ``[…]``) to expand.
    :param commands: shell commands, run concurrently, each for at most 30 s.
    :param command_interval: seconds between two runs of *commands*; 0 runs them in every poll.
    :param whole_queue: return all jobs of the user.
    """

    key: str
    job_id: str | None = None
    job_name: str | None = None
    attempt_dir: str | None = None
    checkpoint_dir: str | None = None
    checkpoint_from: int = 0
    log_file: str | None = None
    log_offset: int = 0
    read_files: tuple[str, ...] = ()
    check_files: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    command_interval: float = 0.0
    whole_queue: bool = False

    def __post_init__(self) -> None:
        """Refuse paths, names, ids and commands that cannot be quoted safely: one of them would spoil every poll."""
        if self.job_id is not None:
            checked_job_id(self.job_id)
        if self.job_name is not None:
            checked_job_name(self.job_name)
        for path in (
            self.attempt_dir,
            self.checkpoint_dir,
            self.log_file,
            *self.read_files,
            *self.check_files,
        ):
            if path is not None:
                checked_path(path)
        for pattern in self.globs:
            quote_glob(pattern)
        for command in self.commands:
            checked_text(command)
        if self.checkpoint_from > _LARGEST_NUMBER:
            raise QuotingError("checkpoint_from is larger than a shell can compare")
        if self.log_offset < 0:
            raise ValueError(f"log_offset must not be negative, got {self.log_offset}")


@dataclass(frozen=True)
class QueueRow:
    """One row of ``squeue``, which also lists recently ended jobs with their final state.

    :param name: the name with which the job was submitted.
    :param renamed: the name that a user has given to a job of this package since then; empty if none has.
    :param submitted: Unix time, None if Slurm prints none; *started* and *ended* likewise (*ended* of a running job
        is its walltime limit).
    """

    job_id: str
    name: str
    state: JobState
    reason: str = ""
    node_list: str = ""
    node_count: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    renamed: str = ""


@dataclass(frozen=True)
class AccountingRow:
    """One allocation row of ``sacct -X``.

    :param state_text: as printed, for example ``CANCELLED by 1000``.
    :param exit_code: first number of ``ExitCode``.
    :param exit_signal: second number: the signal that ended the script, 0 for none.
    """

    job_id: str
    name: str
    state: JobState
    state_text: str
    exit_code: int
    exit_signal: int
    node_list: str = ""
    node_count: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    elapsed: float = 0.0
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the row shows how the job ended.

        After an outage, slurmdbd receives the start of the job first: the row then combines the current state with an
        unknown end and exit code 0 (observed with Slurm 22.05).
        """
        return self.state.ended and self.ended is not None


@dataclass(frozen=True)
class ControllerRow:
    """One job as ``scontrol show job`` prints it.

    :param exit_code: first number of ``ExitCode``.
    :param exit_signal: second number: the signal that ended the script, 0 for none.
    :param requeue: whether Slurm may requeue the job.
    :param restarts: number of requeues.
    :param batch_host: the node that ran the script.
    :param failed_node: the node that Slurm reports as failed.
    """

    job_id: str
    name: str
    state: JobState
    reason: str
    exit_code: int
    exit_signal: int
    requeue: bool = False
    restarts: int = 0
    node_list: str = ""
    batch_host: str = ""
    failed_node: str = ""
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class CommandAnswer:
    """Result of a command: its exit status (124: time limit exceeded) and the first 4 KiB of its output."""

    exit_code: int
    output: str


@dataclass(frozen=True)
class Unreachable:
    """Polls have failed since *since* (Unix time of this machine), the last time because of *reason*."""

    since: float
    reason: str
    failures: int


@dataclass(frozen=True)
class Observation:
    """The data that one poll collected for one :class:`Watch`. A failed query leaves its flag False and its data empty.

    :param time: Unix time on the login node (on this machine when unreachable).
    :param queue: squeue's row; None with *queue_ok* means that the job is not in the queue.
    :param other_name: the name of another job that squeue lists under the watched id.
    :param queue_ok: whether squeue succeeded.
    :param user_jobs: with ``whole_queue``, every job of the user that squeue lists, by id, including ended jobs and
        each pending task of an array.
    :param siblings_queued: whether squeue lists other tasks of the watched task's array.
    :param accounting: sacct's row; requested only when the queue has no row or the row of an ended job.
    :param accounting_ok: whether sacct succeeded or was not needed.
    :param accounting_enabled: False where the site has no accounting.
    :param controller: slurmctld's record; requested only where sacct returned nothing about a job that the queue lists
        as ended.
    :param exit: complete ``exit.json`` of the attempt, if the watched job wrote it.
    :param owner_job_id: the job that runs the attempt (``run/job_id``).
    :param attempt_watched: whether the watch has the directory of an attempt; without it, a missing owner does not mean
        that the script has not started.
    :param tracker: content of ``latest_checkpointed_iteration.txt``.
    :param checkpoint_files: ``iter_*`` directory name → file path in it → size in bytes; without the files of
        checkpoints before ``checkpoint_from``.
    :param log_offset: offset of *log_chunk* in the log, in bytes.
    :param log_chunk: new bytes of the log, at most 64 KiB per poll.
    :param log_size: size of the log in bytes, None if it does not exist.
    :param files: ``read_files`` → text, None if absent.
    :param existing: ``check_files`` → whether it exists.
    :param matches: ``globs`` → paths found.
    :param answers: ``commands`` → their results; commands that this poll did not run are absent.
    :param unreachable: set when this poll failed.
    :param errors: error messages of Slurm's commands, for the log.
    """

    time: float
    queue: QueueRow | None = None
    other_name: str = ""
    queue_ok: bool = False
    user_jobs: Mapping[str, QueueRow] = field(default_factory=dict)
    siblings_queued: bool = False
    accounting: AccountingRow | None = None
    accounting_ok: bool = False
    accounting_enabled: bool = True
    controller: ControllerRow | None = None
    exit: ExitRecord | None = None
    owner_job_id: str | None = None
    attempt_watched: bool = True
    tracker: str | None = None
    checkpoint_files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    log_offset: int = 0
    log_chunk: bytes = b""
    log_size: int | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)
    existing: Mapping[str, bool] = field(default_factory=dict)
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    answers: Mapping[str, CommandAnswer] = field(default_factory=dict)
    unreachable: Unreachable | None = None
    errors: tuple[str, ...] = ()

    @property
    def listing_work(self) -> int:
        """The work of judging the listed checkpoints, in bytes that a pattern searches in the same time."""
        return 3 * (len(self.checkpoint_files) + sum(map(len, self.checkpoint_files.values())))
