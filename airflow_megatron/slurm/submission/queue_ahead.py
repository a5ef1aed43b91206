"""Attempts that are queued ahead: they wait in Slurm's queue for the end of the previous stage.

Each is submitted exactly once like any other attempt, with a dependency on all queued jobs of the previous stage. The
file ``ahead`` in its directory holds a :class:`QueuedBehind`. Slurm reports only that those jobs have ended, so at its
start the job checks whether the stage has finished (``shell/ahead_guard.sh``), and steps back if it has not.

Three processes may decide about such an attempt: its job, which starts or steps back; its task, which takes the attempt
over after the previous stage was judged finished; and a process that withdraws it because the previous stage continues
or was stopped. The link ``ahead_decision``, which only one of them can create, records the decision. An attempt that
was withdrawn or has stepped back is cancelled, and its directory renamed to ``<number>.withdrawn.<time>``, which frees
the number.
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
"""Seconds for which a started job waits for files of the previous stage, which may become visible late."""

Decision = Literal["start", "back", "due"]
"""``start``: the previous stage has finished and the job runs. ``back``: the job stepped back or was withdrawn.
``due``: the task of the job has taken the attempt over."""

_DECISIONS: Final[dict[str, Decision]] = {f"decided.{word}": word for word in ("start", "back", "due")}
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class QueuedBehind:
    """The attempts of the previous stage for which an attempt waits.

    :param stage: name of the previous stage
    :param first: number of its oldest queued attempt
    :param last: number of its newest queued attempt
    :param job_ids: Slurm ids of these attempts
    :param token: distinguishes this submission from others of the same attempt
    """

    stage: str
    first: int
    last: int
    job_ids: tuple[str, ...]
    token: str

    def to_record(self, job_name: str) -> str:
        """Return the line of the file ``ahead``.

        :param job_name: Slurm's name of the waiting attempt
        """
        return f"{job_name} {self.token} {self.stage} {self.first} {self.last} {','.join(self.job_ids)}"

    @classmethod
    def from_record(cls, text: str | None) -> QueuedBehind | None:
        """Parse the output of :meth:`to_record`; return None for other text."""
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
    """The previous stage, as a job that was queued ahead checks it at its start.

    :param behind: the attempts for which the job waits
    :param stage_dir: directory of that stage's attempts
    :param tracker: for a training, Megatron's ``latest_checkpointed_iteration.txt``; empty for a command
    :param iteration: for a training, the last iteration
    :param outputs: required output files of the stage
    """

    behind: QueuedBehind
    stage_dir: str
    tracker: str = ""
    iteration: int | None = None
    outputs: tuple[str, ...] = ()

    @property
    def dependency(self) -> str:
        """The dependency for sbatch.

        A command has finished only if Slurm reports success; a training has finished if its last checkpoint exists.
        """
        kind = "afterany" if self.tracker or len(self.behind.job_ids) > 1 else "afterok"
        return ":".join((kind, *map(checked_job_id, self.behind.job_ids)))


def decision_in(text: str | None) -> Decision | None:
    """Parse the target of the link ``ahead_decision``."""
    return _DECISIONS.get(text or "")


def ahead_identity(attempt_dir: str, token: str) -> str:
    """Return the lines that the script of an attempt queued ahead has before the guard of all jobs.

    They end the job (:data:`STEPPED_BACK_EXIT_CODE`) when its attempt was withdrawn.

    :raises ValueError: for a token with characters that are special in a shell
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
    """Return the lines that follow the general guard in the script of an attempt queued ahead.

    They end the job (:data:`STEPPED_BACK_EXIT_CODE`) unless the previous stage has finished.

    :param settle_s: seconds to wait for missing files to become visible
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
        f"{shell_file('exit_record')}\n{shell_file('tracked_iteration')}\n{shell_file('ahead_guard')}\n"
    )


def take_up_script(attempt_dir: str, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script with which a task takes over its attempt that was queued ahead; it is idempotent.

    An attempt that can no longer start (it stepped back, was cancelled before its start, or waits for a job that still
    runs although its stage was marked) is cancelled, and its number becomes free.
    """
    return framed(
        f"{slurm_functions(commands)}\n{shell_file('ahead_queue')}\nam_take_up {quote_path(attempt_dir)}"
    )


def parse_take_up(result: CommandResult) -> bool:
    """Return whether the attempt was taken over; otherwise its number is free.

    :raises TransportError: if the queue could not be read, a file not written, or the output is incomplete
    """
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"the job of an attempt that was queued ahead could not be used: {rest}")
        if word in ("taken", "freed"):
            return word == "taken"
    raise TransportError(f"taking up an attempt gave no answer: {result.stderr.strip()}")


def withdraw_ahead_script(stage_dirs: Sequence[str], commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that withdraws the attempts that stages have queued ahead; it is idempotent.

    It keeps attempts whose jobs have started, and attempts that their tasks have taken over.

    :param stage_dirs: directories of the stages; a stage precedes the stages that it waits for
    """
    words = " ".join(quote_path(path.rstrip("/")) for path in stage_dirs)
    return framed(f"{slurm_functions(commands)}\n{shell_file('ahead_queue')}\nam_withdraw {words}")


def waiting_jobs_script(commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that lists this user's jobs that wait for a dependency."""
    return framed(f"{slurm_functions(commands)}\n{shell_file('ahead_queue')}\nam_waiting")


def parse_waiting_jobs(result: CommandResult) -> frozenset[str]:
    """Return the names of the jobs.

    :raises TransportError: if the queue could not be read, or the output is incomplete
    """
    names = set()
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"the queue could not be read: {rest}")
        if word == "waiting":
            names.add(rest)
    return frozenset(names)


@dataclass(frozen=True)
class WithdrawnAhead:
    """The result of a withdrawal: stage directory and number of each attempt that was queued ahead.

    :param withdrawn: attempts whose numbers are free now
    :param started: attempts whose jobs found the previous stage finished, and run or have run
    """

    withdrawn: tuple[tuple[str, int], ...] = ()
    started: tuple[tuple[str, int], ...] = ()


def parse_withdrawn_ahead(stage_dirs: Sequence[str], result: CommandResult) -> WithdrawnAhead:
    """Return the result of a withdrawing script.

    :raises TransportError: if the queue could not be read, a directory not renamed, or the output is incomplete
    """
    found: dict[str, list[tuple[str, int]]] = {"withdrawn": [], "started": []}
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"attempts that were queued ahead could not be withdrawn: {rest}")
        if word in found:
            index, _, number = rest.partition(" ")
            try:
                found[word].append((stage_dirs[int(index)], int(number)))
            except (ValueError, IndexError):
                raise TransportError(f"unexpected line in an answer: {line!r}") from None
    return WithdrawnAhead(tuple(found["withdrawn"]), tuple(found["started"]))
