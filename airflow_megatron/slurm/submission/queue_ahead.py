"""Attempts that wait in Slurm's own queue for the end of the stage before theirs, so that the chain waits for nobody.

Each is submitted exactly once like any other attempt, with a dependency on all jobs of the stage before that are in the
queue. It has a file ``ahead`` in its directory (:class:`QueuedBehind`). Slurm says only that those jobs have ended: at
its start the job looks itself whether that stage has finished (``shell/ahead_guard.sh``), and steps back if not.

Four may decide about such an attempt: its job, which starts or steps back; its own task, which takes it up once the
stage before has been judged finished; and whoever withdraws it because that stage goes on, or was stopped. The link
``ahead_decision``, which only one of them can make, settles it. What is withdrawn or has stepped back is cancelled and
its directory renamed to ``<number>.withdrawn.<time>``, so that the number is free again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import checked_job_id, checked_path, quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.exit_codes import STEPPED_BACK_EXIT_CODE
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTLE_S: Final = 10
"""Seconds for which a job that was started looks again for files of the stage before: they may show late."""

Decision = Literal["start", "back", "due"]
"""``start``: the job found the stage before finished, and runs. ``back``: it steps back, or was withdrawn. ``due``: its
own task has taken it up."""

_DECISIONS: Final[dict[str, Decision]] = {f"decided.{word}": word for word in ("start", "back", "due")}
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class QueuedBehind:
    """The attempts of the stage before that an attempt waits for.

    :param stage: name of that stage
    :param first: the oldest of its attempts that were in the queue
    :param last: the newest
    :param job_ids: their jobs
    :param token: distinguishes this submission from another of the same attempt
    """

    stage: str
    first: int
    last: int
    job_ids: tuple[str, ...]
    token: str

    def to_record(self, job_name: str) -> str:
        """Return the line of the file ``ahead``.

        :param job_name: Slurm's name of the attempt that waits
        """
        return f"{job_name} {self.token} {self.stage} {self.first} {self.last} {','.join(self.job_ids)}"

    @classmethod
    def from_record(cls, text: str | None) -> QueuedBehind | None:
        """Return what :meth:`to_record` wrote, None for anything else."""
        words = (text or "").split()
        if len(words) != 6:
            return None
        _, token, stage, first, last, ids = words
        numbers = whole(first), whole(last)
        if numbers[0] is None or numbers[1] is None:
            return None
        return cls(stage, numbers[0], numbers[1], tuple(ids.split(",")), token)


@dataclass(frozen=True)
class StageBefore:
    """What a job that was queued ahead asks at its start.

    :param behind: what it waits for
    :param stage_dir: directory of that stage's attempts
    :param tracker: of a training: Megatron's ``latest_checkpointed_iteration.txt``; empty for a command
    :param iteration: of a training: the last iteration
    :param outputs: files that it has to leave
    """

    behind: QueuedBehind
    stage_dir: str
    tracker: str = ""
    iteration: int | None = None
    outputs: tuple[str, ...] = ()

    @property
    def dependency(self) -> str:
        """The dependency for sbatch.

        A command has finished only when Slurm says so too, a training when its last checkpoint is there.
        """
        kind = "afterany" if self.tracker or len(self.behind.job_ids) > 1 else "afterok"
        return ":".join((kind, *map(checked_job_id, self.behind.job_ids)))


def decision_in(text: str | None) -> Decision | None:
    """Return what the target of the link ``ahead_decision`` says."""
    return _DECISIONS.get(text or "")


def ahead_identity(attempt_dir: str, token: str) -> str:
    """Return the lines that the script of an attempt queued ahead has before the guard of all jobs.

    They end the job (:data:`STEPPED_BACK_EXIT_CODE`) when its attempt was withdrawn.

    :raises ValueError: for a token that a shell could misread
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"token {token!r} may hold letters, digits, '-' and '_' only")
    return (
        f"am_attempt_dir={quote_path(attempt_dir)}\n"
        f"am_ahead_token={quote(token)}\n"
        f"am_stepped_back_status={STEPPED_BACK_EXIT_CODE}\n"
        f"{shell_file('ahead_identity')}\n"
    )


def ahead_guard(before: StageBefore, settle_s: int = SETTLE_S) -> str:
    """Return the lines that the script of an attempt queued ahead has after the guard of all jobs.

    They end the job (:data:`STEPPED_BACK_EXIT_CODE`) unless the stage before has finished.

    :param settle_s: seconds for which files that are missing may still show
    """
    outputs = "\n".join(map(checked_path, before.outputs))
    printing = f"cat {here_document(outputs)}" if outputs else ":\n"
    return (
        f"am_settle_s={settle_s}\n"
        f"am_before={quote(before.behind.stage)}\n"
        f"am_before_dir={quote_path(before.stage_dir)}\n"
        f"am_before_first={before.behind.first}\n"
        f"am_before_last={before.behind.last}\n"
        f"am_before_tracker={quote_path(before.tracker) if before.tracker else ''}\n"
        f"am_before_iteration={before.iteration or 0}\n"
        f"am_before_outputs() {{\n  {printing}}}\n"
        f"{shell_file('ahead_guard')}\n"
    )


def take_up_script(attempt_dir: str, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script by which the task of an attempt that was queued ahead takes it up; safe to repeat.

    One that cannot start any more (it has stepped back, was cancelled before its start, or waits for a job that goes
    on although its stage was marked) is cancelled, and its number free.
    """
    return framed(
        f"{slurm_functions(commands)}\n{shell_file('ahead_queue')}\nam_take_up {quote_path(attempt_dir)}"
    )


def parse_take_up(result: CommandResult) -> bool:
    """Return whether the attempt was taken up; its number is free otherwise.

    :raises TransportError: if the queue could not be read, nothing be written, or the answer is not whole
    """
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"an attempt that was queued ahead could not be taken up: {rest}")
        if word in ("taken", "freed"):
            return word == "taken"
    raise TransportError(f"taking up an attempt gave no answer: {result.stderr.strip()}")


def withdraw_ahead_script(stage_dirs: Sequence[str], commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that withdraws what stages have queued ahead; safe to repeat.

    Jobs that have started are left, and so are attempts that their own tasks have taken up.

    :param stage_dirs: stages that wait for others before those
    """
    words = " ".join(quote_path(path.rstrip("/")) for path in stage_dirs)
    return framed(f"{slurm_functions(commands)}\n{shell_file('ahead_queue')}\nam_withdraw {words}")


@dataclass(frozen=True)
class WithdrawnAhead:
    """What became of attempts that were queued ahead: stage directory and number of each.

    :param withdrawn: their numbers are free
    :param started: their jobs have found the stage before finished, and run or have run
    """

    withdrawn: tuple[tuple[str, int], ...] = ()
    started: tuple[tuple[str, int], ...] = ()


def parse_withdrawn_ahead(stage_dirs: Sequence[str], result: CommandResult) -> WithdrawnAhead:
    """Return what a withdrawing script did.

    :raises TransportError: if the queue could not be read, a directory not be renamed, or the answer is not whole
    """
    found: dict[str, list[tuple[str, int]]] = {"withdrawn": [], "started": []}
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"attempts that were queued ahead could not be withdrawn: {rest}")
        if word in found:
            index, _, number = rest.partition(" ")
            found[word].append((stage_dirs[int(index)], int(number)))
    return WithdrawnAhead(tuple(found["withdrawn"]), tuple(found["started"]))
