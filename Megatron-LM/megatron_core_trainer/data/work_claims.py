"""Claims on pieces of work in a shared folder: one worker at a time, while that worker is alive.

A claim is a file ``<name>.claim.<n>`` that describes its owner. It is created by ``link``, which is also atomic on NFS.
The claim with the highest ``n`` is valid. Claims of others are never deleted: a worker that finds the owner of ``n``
dead creates ``n + 1``, and only one of several such workers succeeds.

Workers on the same machine and in the same pid namespace consider an owner dead if no process has its pid and start
time. Other workers consider it dead if it has not touched its claim for :data:`EXPIRY_S`; a living owner touches it
every :data:`HEARTBEAT_S`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT_S = 30.0
EXPIRY_S = 600.0


@dataclass(frozen=True)
class Owner:
    """A process on a node of the cluster.

    :param host: for messages
    :param machine: boot id and pid namespace; a pid is unique within these
    :param pid: pid in that namespace
    :param started: its start time, in clock ticks since boot
    :param job_id: Slurm's job id, empty outside of a job
    """

    host: str
    machine: str
    pid: int
    started: int
    job_id: str

    @classmethod
    def this_process(cls) -> Owner:
        """Return the owner that stands for the current process."""
        pid = os.getpid()
        return cls(
            socket.gethostname(), _machine(), pid, _start_time(pid) or 0, os.environ.get("SLURM_JOB_ID", "")
        )

    def __str__(self) -> str:
        job = f"job {self.job_id}, " if self.job_id else ""
        return f"{job}process {self.pid} on {self.host}"


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Owner | None]:
    """Claim a piece of work during the block.

    :param path: prefix of the claim's path, in a shared folder; the folder is created.
    :returns: None if this process has the claim, otherwise the living owner.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number, owner = _newest(path)
    claim = path.with_name(f"{path.name}.claim.{number + 1}")
    if owner is not None or not _made(claim):
        yield owner or _newest(path)[1] or Owner("another host", "", 0, 0, "")
        return
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(claim, stop), daemon=True)
    heart.start()
    try:
        yield None
    finally:
        stop.set()
        heart.join()
        for other, old in _claims(path):
            if other <= number + 1:
                old.unlink(missing_ok=True)


def _newest(path: Path) -> tuple[int, Owner | None]:
    """Return the number of the newest claim, 0 without one, and its owner if that is alive."""
    claims = _claims(path)
    if not claims:
        return 0, None
    number, claim = claims[-1]
    try:
        owner = Owner(**json.loads(claim.read_text(encoding="utf-8")))
        lives = _lives(owner, claim)
    except FileNotFoundError:
        return _newest(path)  # released between the two checks
    return number, owner if lives else None


def _claims(path: Path) -> list[tuple[int, Path]]:
    name = re.compile(re.escape(path.name) + r"\.claim\.(\d+)")
    found = ((name.fullmatch(entry.name), entry) for entry in path.parent.iterdir())
    return sorted((int(match[1]), entry) for match, entry in found if match)


def _made(claim: Path) -> bool:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{claim.name}.", dir=claim.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(asdict(Owner.this_process()), stream)
        os.link(temporary, claim)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink()
    return True


def _beat(claim: Path, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(claim)


def _lives(owner: Owner, claim: Path) -> bool:
    if owner.machine == _machine():
        return _start_time(owner.pid) == owner.started
    # compare times of the file server only: the clocks of two nodes may differ
    with tempfile.NamedTemporaryFile(prefix=f".{claim.name}.", dir=claim.parent) as now:
        return Path(now.name).stat().st_mtime - claim.stat().st_mtime < EXPIRY_S


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot (``proc(5)``: field 22); None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
