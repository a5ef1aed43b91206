"""Cancellations that are carried out later: the login node did not answer, or refused the login, when they were due.

Each stage of a cluster has at most one file in ``<local>/cancellations/`` (folder 0700, files 0600). It contains the
cancellation, and the run that has used the stage's job since then; in that case the job is not cancelled. The file is
locked during the cancellation, so that only one process cancels the job.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.file_lock import lock_file
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.submission.attempt_chain import parse_withdrawn, withdraw_chain_script
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel, withdraw_script
from airflow_megatron.slurm.submission.queue_ahead import parse_withdrawn_ahead, withdraw_ahead_script
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    RemoteWriteError,
    parse_stage_states,
    parse_written,
    stage_state_script,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.layout.run_layout import AttemptDir
from airflow_megatron.spec.trust.json_records import read_object, whole, word

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from airflow_megatron.slurm.remote.transport import Transport
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord

KEPT_S: Final = 30 * 86400.0
"""Age in seconds after which a record is deleted."""

MARKED_OR_CLEARED: Final = "its task was marked or cleared"
"""Reason in the verdict on an attempt that is cancelled after an action of a user."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cancellation:
    """The cancellation of an attempt whose task was marked or cleared.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.remote.profile.SlurmCommands`
    :param job_id: Slurm id; None if the attempt may still be in submission
    :param job_name: exact Slurm name
    :param attempt_dir: the attempt's directory on the cluster
    :param chained: whether attempts may be queued behind this one
    :param behind: directories of stages whose queued attempts are cancelled too
    """

    ssh_conn_id: str
    commands: Mapping[str, Any]
    job_id: str | None
    job_name: str
    attempt_dir: str
    chained: bool = False
    behind: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: object) -> Cancellation | None:
        """Read a record; None if it is damaged."""
        if not isinstance(data, dict):
            return None
        names = ("ssh_conn_id", "job_name", "attempt_dir")
        texts = {name: text for name in names if (text := word(data.get(name))) is not None}
        commands, behind = data.get("commands"), data.get("behind")
        job_id = word(data.get("job_id"))
        if job_id is None and data.get("job_id", "") is not None:
            return None
        if len(texts) < len(names) or not isinstance(commands, dict) or not isinstance(behind, list):
            return None
        if AttemptDir.from_path(texts["attempt_dir"]) is None or not all(map(word, behind)):
            return None
        return cls(
            **texts,
            job_id=job_id,
            commands=commands,
            chained=data.get("chained") is True,
            behind=tuple(behind),
        )

    @property
    def job(self) -> str:
        """The job's Slurm id if it is known, else its name, for messages."""
        return self.job_id or self.job_name

    @property
    def stage_dir(self) -> str:
        """Directory of the job's stage."""
        return AttemptDir.of(self.attempt_dir).stage_dir


@dataclass(frozen=True)
class StageClaim:
    """The record of one stage.

    :param cancellation: the pending cancellation, None if there is none
    :param taken: number of times that the stage has used its job again while a cancellation was or may have been
        pending
    :param taken_by: DAG and run that used it again last
    """

    cancellation: Cancellation | None = None
    taken: int = 0
    taken_by: str = ""

    @classmethod
    def read(cls, text: str) -> StageClaim:
        """Read a record; damaged values count as absent."""
        data = read_object(text) or {}
        return cls(
            Cancellation.from_json(data.get("cancellation")),
            whole(data.get("taken"), 0),
            word(data.get("taken_by")) or "",
        )


def remember(cancellation: Cancellation, taken: int = 0) -> bool:
    """Record a cancellation before it is tried.

    :param taken: :attr:`StageClaim.taken` when the task began to wait for the job
    :return: whether it must be carried out; False if the stage has used the job again since then
    :raises OSError: if no file can be written
    """
    with _claim(_path(cancellation.ssh_conn_id, cancellation.stage_dir)) as claim:
        if claim.value.taken > taken:
            return False
        claim.value = replace(claim.value, cancellation=cancellation)
        return True


def drop_cancellation(ssh_conn_id: str, stage_dir: str, by: str, *, unseen: bool = False) -> None:
    """Discard the cancellation of a stage's job, because the stage watches or submits it again.

    Blocks while another process cancels the job.

    :param by: DAG and run of the task
    :param unseen: whether the job's state cannot be read now; a cancellation by an earlier try that is recorded after
        this call is then discarded too
    """
    path = _path(ssh_conn_id, stage_dir)
    if not unseen and not path.exists():
        return
    try:
        with _claim(path) as claim:
            if claim.value.cancellation is not None:
                log.info("job %s is not cancelled: its stage uses it again", claim.value.cancellation.job)
            claim.value = StageClaim(None, claim.value.taken + 1, by)
    except OSError as error:
        log.warning("cancellations cannot be read or written: %s", error)


def claim_of(ssh_conn_id: str, stage_dir: str) -> StageClaim:
    """Return the record of a stage, an empty one if there is none."""
    with suppress(OSError):
        return StageClaim.read(_path(ssh_conn_id, stage_dir).read_text(errors="replace"))
    return StageClaim()


def remembered() -> list[Cancellation]:
    """Return the pending cancellations; delete records that are too old."""
    found: list[Cancellation] = []
    for path in sorted(cancellations_dir().glob("*.json")):
        with suppress(OSError):
            claim = StageClaim.read(path.read_text(errors="replace"))
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()
            elif claim.cancellation is not None:
                found.append(claim.cancellation)
    return found


async def carry_out(cancellation: Cancellation, transport: Transport, *, step_s: float) -> bool:
    """Cancel the job of a cancellation, unless another process has done so or the stage uses the job again.

    :param step_s: time limit of a remote command in seconds
    :return: whether the job was in Slurm and is cancelled
    :raises TransportError: if that is unknown; the cancellation stays remembered
    :raises RemoteWriteError: if the job is cancelled, but the verdict could not be written
    """
    async with _claim_async(_path(cancellation.ssh_conn_id, cancellation.stage_dir)) as claim:
        if claim.value.cancellation != cancellation:
            return False
        done = replace(claim.value, cancellation=None)
        try:
            cancelled = await cancel_attempt(cancellation, transport, step_s=step_s)
        except RemoteWriteError:
            claim.value = done
            raise
        claim.value = done
        return cancelled


async def cancel_attempt(cancellation: Cancellation, transport: Transport, *, step_s: float) -> bool:
    """Cancel a job and the jobs queued behind it, and record the verdict; the call may be repeated.

    :param step_s: time limit of a remote command in seconds
    :return: whether the job was in Slurm
    :raises TransportError: if that is unknown
    :raises RemoteWriteError: if the verdict could not be written
    """
    commands = SlurmCommands.from_json(cancellation.commands)
    own = AttemptDir.of(cancellation.attempt_dir)
    if cancellation.behind:
        script = withdraw_ahead_script(cancellation.behind, commands)
        parse_withdrawn_ahead(cancellation.behind, await transport.run(script, timeout=step_s))
    if cancellation.chained:
        script = withdraw_chain_script(own.stage_dir, own.number, commands)
        parse_withdrawn(await transport.run(script, timeout=step_s))
    job_id = cancellation.job_id
    if job_id is not None:
        jobs = [(job_id, cancellation.job_name)]
        script = cancel_script(jobs, commands)
    else:
        attempts = (await _recorded(own, transport, step_s)).attempts
        found = next((each for each in attempts if each.number == own.number), None)
        if found is None or found.judged is not None or not (found.claimed or found.job_id):
            return False  # it was not submitted, or has ended
        job_id = found.job_id
        jobs = [(job_id, found.job_name or cancellation.job_name)] if job_id else []
        script = withdraw_script(Attempt(cancellation.job_name, own.stage_dir, own.number), jobs, commands)
    cancelled = parse_cancel(jobs, await transport.run(script, timeout=step_s)).cancelled
    if not cancelled and job_id:
        return False
    # no task will write the verdict, which makes the job's next run start a new attempt
    if (await _recorded(own, transport, step_s)).latest_attempt == own.number:
        verdict = Verdict(Outcome.CANCELLED, MARKED_OR_CLEARED, job_id=job_id)
        record = RecordedVerdict.of(verdict, own.number)
        parse_written(await transport.run(write_verdict_script(own.stage_dir, record), timeout=step_s))
    return True


async def _recorded(own: AttemptDir, transport: Transport, step_s: float) -> StageRecord:
    answer = await transport.run(stage_state_script([own.stage_dir]), timeout=step_s)
    return parse_stage_states([own.stage_dir], answer)[own.stage_dir]


def cancellations_dir() -> Path:
    """Return the folder of the records."""
    return local_dir() / "cancellations"


def _path(ssh_conn_id: str, stage_dir: str) -> Path:
    own = json.dumps([ssh_conn_id, stage_dir.rstrip("/")])
    return cancellations_dir() / f"{hashlib.sha256(own.encode()).hexdigest()[:24]}.json"


class _Claim:
    """A locked record; :attr:`value` is written at the end if it has changed."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file = path, file
        self._before = self.value = StageClaim.read(os.pread(file, 1 << 20, 0).decode(errors="replace"))

    def write(self) -> None:
        """Write a changed record in one call, so that a killed process leaves no partial record."""
        if self.value.cancellation is None and not self.value.taken:
            self._path.unlink(missing_ok=True)
        elif self.value != self._before:
            content = json.dumps(asdict(self.value)).encode()
            os.pwrite(self._file, content.ljust(os.fstat(self._file).st_size), 0)
            os.fsync(self._file)


def _opened(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_current(path: Path, file: int) -> bool:
    """Return whether an opened file still has its name; the previous holder of the lock may have deleted it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


@contextmanager
def _claim(path: Path) -> Iterator[_Claim]:
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_current(path, file):
                continue
            claim = _Claim(path, file)
            try:
                yield claim
            finally:
                claim.write()
            return
        finally:
            os.close(file)


@asynccontextmanager
async def _claim_async(path: Path) -> AsyncIterator[_Claim]:
    """Yield a record like :func:`_claim`; other coroutines run while it waits."""
    while True:
        file = _opened(path)
        try:
            await lock_file(file)
            if not _is_current(path, file):
                continue
            claim = _Claim(path, file)
            try:
                yield claim
            finally:
                claim.write()
            return
        finally:
            os.close(file)
