"""Questions of a watcher about one job, and the observation that one poll makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.remote.quoting import checked_job_id, checked_job_name, checked_path, quote_glob
from airflow_megatron.slurm.remote.records import ExitRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.states.job_states import JobState


END_OF_LOG: Final = 2**53
"""As ``log_offset``: nothing of the log is brought but its size."""


@dataclass(frozen=True)
class Watch:
    """What to look at for one job. Every part is optional: a sensor may watch files alone.

    :param key: the watcher's own name for it; unique in one poll.
    :param job_id: Slurm job id.
    :param job_name: exact Slurm job name; a row of *job_id* with another name is a recycled id and not
        reported, and without *job_id* the queue is searched by name.
    :param attempt_dir: the attempt's directory: its ``exit.json`` and ``run/job_id`` are read.
    :param checkpoint_dir: Megatron's ``--save`` directory: tracker file and the sizes of all ``iter_*`` files
        are read.
    :param checkpoint_from: iteration from which on checkpoints are listed with their files; earlier ones with
        their names alone.
    :param log_file: read from *log_offset* on.
    :param log_offset: bytes of the log already seen.
    :param read_files: small text files, sent whole (up to 64 KiB) at each poll.
    :param check_files: paths of which only the existence is asked.
    :param globs: absolute path patterns (``*``, ``?``, ``[…]``) to expand.
    :param commands: shell texts to run, all at once, each for at most 30 s.
    :param command_interval: seconds between two runs of *commands*; 0 for every poll.
    :param whole_queue: ask for all jobs of the user.
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
        """Refuse what could not be asked for safely."""
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
        if any("\0" in command for command in self.commands):
            raise ValueError("a command cannot hold a NUL")
        if self.log_offset < 0:
            raise ValueError(f"log_offset must not be negative, got {self.log_offset}")


@dataclass(frozen=True)
class QueueRow:
    """One line of ``squeue``; recently ended jobs are in it too, with their final state.

    :param submitted: Unix time, None when Slurm does not say; *started*, *ended* likewise (*ended* of a
        running job is the walltime limit).
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


@dataclass(frozen=True)
class AccountingRow:
    """One allocation line of ``sacct -X``.

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
        """Whether it shows how the job ended.

        A slurmdbd that was away hears of the job's start first: then the state of now stands beside an unknown end and
        exit code 0 (seen with Slurm 22.05).
        """
        return self.state.ended and self.ended is not None


@dataclass(frozen=True)
class ControllerRow:
    """One job as ``scontrol show job`` prints it.

    :param exit_code: first number of ``ExitCode``.
    :param exit_signal: second number: the signal that ended the script, 0 for none.
    :param requeue: whether Slurm may put the job back into the queue by itself.
    :param restarts: how often it did.
    :param batch_host: the node that ran the script.
    :param failed_node: the node that Slurm says has failed.
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
    """Answer of a command: its exit status (124: it took too long) and the first 4 KiB of its output."""

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
    """What one poll found for one :class:`Watch`. A failed question leaves its flag False and says nothing
    else.

    :param time: Unix time on the login node (of this machine when unreachable).
    :param queue: squeue's row; None with *queue_ok* means: not in the queue.
    :param queue_ok: whether squeue answered.
    :param user_jobs: ``whole_queue``: every job of the user that squeue knows, by id; ended ones too, and each
        waiting task of an array by itself.
    :param siblings_queued: whether squeue has other tasks of the watched task's array.
    :param accounting: sacct's row; asked for only when the queue has no row or an ended one.
    :param accounting_ok: whether sacct answered, or did not need to be asked.
    :param accounting_enabled: False where the site keeps no accounting.
    :param controller: what slurmctld itself remembers; asked for only where sacct did not answer about a job
        that the queue has as ended.
    :param exit: ``exit.json`` of the attempt, if the watched job wrote it.
    :param owner_job_id: the job that runs the attempt (``run/job_id``).
    :param tracker: content of ``latest_checkpointed_iteration.txt``.
    :param checkpoint_files: ``iter_*`` directory name → file path in it → bytes; without files before
        ``checkpoint_from``.
    :param log_offset: where *log_chunk* begins.
    :param log_chunk: new bytes of the log, at most 64 KiB a poll.
    :param log_size: bytes the log has now, None when it does not exist.
    :param files: ``read_files`` → text, None when absent.
    :param existing: ``check_files`` → whether it exists.
    :param matches: ``globs`` → paths found.
    :param answers: ``commands`` → their answers; those not due in this poll are absent.
    :param unreachable: set when this tick could not ask at all.
    :param errors: what Slurm's commands complained about, for the log.
    """

    time: float
    queue: QueueRow | None = None
    queue_ok: bool = False
    user_jobs: Mapping[str, QueueRow] = field(default_factory=dict)
    siblings_queued: bool = False
    accounting: AccountingRow | None = None
    accounting_ok: bool = False
    accounting_enabled: bool = True
    controller: ControllerRow | None = None
    exit: Mapping[str, Any] | None = None
    owner_job_id: str | None = None
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
    def exit_record(self) -> ExitRecord | None:
        """How the job script ended, None without a whole record."""
        return ExitRecord.from_json(self.exit)
