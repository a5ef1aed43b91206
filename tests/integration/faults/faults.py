"""The faults: their effects on the cluster, the connection to it, and the processes that use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from proxied_site import ProxiedSite

WEIGHTS = {
    "kill_worker": 25,
    "kill_triggerer": 6,
    "cut_connections": 15,
    "cut_next_connection": 20,
    "black_hole": 4,
    "delay": 4,
    "refuse_connections": 5,
    "kill_remote_process": 25,
    "kill_ssh_session": 8,
    "kill_sshd": 2,
    "kill_slurmctld": 3,
    "kill_slurmdbd": 4,
    "kill_slurmd": 4,
    "kill_node": 2,
    "kill_job": 3,
    "fill_disk": 2,
    "damage_file": 8,
}
"""How often each kind strikes, relative to the others: what is cheap and frequent on real sites more often."""

GARBAGE = (b"", b"\0" * 64, b"garbage \xff\xfe {\n")
SHORT_S = (0.3, 2.0)
"""How long something is away: shorter than Slurm's and SSH's patience, so that the sweep goes on meanwhile."""


@dataclass(frozen=True)
class Fault:
    """A line of the journal.

    :param at: seconds since the start of the storm.
    :param target: the affected process, connection or file.
    """

    at: float
    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.at:8.2f} s  {self.kind:<20} {self.target}"


@dataclass
class Storm:
    """Injects random faults.

    :param site: the site with its cluster and connection.
    :param chance: random number generator.
    :param living: returns pid → name of the task and triggerer processes.
    :param weights: kind → relative frequency.
    """

    site: ProxiedSite
    chance: random.Random
    living: Callable[[], dict[int, str]]
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    journal: list[Fault] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _repairs: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)

    def strike(self) -> Fault:
        """Choose a fault that is possible now, and inject it."""
        kinds, weights = list(self.weights), list(self.weights.values())
        while True:
            self.repair()
            (kind,) = self.chance.choices(kinds, weights)
            target = getattr(self, kind)()
            if target is not None:
                fault = Fault(time.monotonic() - self.began, kind, target)
                self.journal.append(fault)
                return fault
            time.sleep(0.01)

    def repair(self, *, wait: bool = False) -> None:
        """Restart services whose outage has lasted long enough.

        :param wait: restart all of them.
        """
        due = [repair for at, repair in self._repairs if wait or time.monotonic() >= at]
        self._repairs = [(at, repair) for at, repair in self._repairs if repair not in due]
        for repair in due:
            repair()
        if due:
            self._resume_nodes()

    def end(self) -> None:
        """End all outages."""
        self.repair(wait=True)
        self.site.proxy.pass_on()

    def _resume_nodes(self) -> None:
        """Resume nodes that Slurm drained after a job could not start on a full disk, as an administrator does."""
        states = self.site.cluster.slurm("sinfo", "-h", "-N", "-o", "%N|%T") if not self._away else ""
        drained = {
            line.partition("|")[0] for line in states.splitlines() if "drain" in line or "down" in line
        }
        for node in drained:
            with suppress(subprocess.CalledProcessError):  # it recovered by itself
                self.site.cluster.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def _later(self, what: str, repair: Callable[[], None], seconds: tuple[float, float] = SHORT_S) -> None:
        def back() -> None:
            repair()
            self._away.discard(what)

        self._away.add(what)
        self._repairs.append((time.monotonic() + self.chance.uniform(*seconds), back))

    # ---- processes of Airflow

    def kill_worker(self) -> str | None:
        """SIGKILL of a task's process."""
        return self._kill_one([pid for pid, name in self.living().items() if name != "triggerer"])

    def kill_triggerer(self) -> str | None:
        return self._kill_one([pid for pid, name in self.living().items() if name == "triggerer"])

    def _kill_one(self, pids: list[int]) -> str | None:
        if not pids:
            return None
        pid = self.chance.choice(sorted(pids))
        name = self.living().get(pid, "")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return f"{name} ({pid})"
        return None

    # ---- the connection to the login node

    def cut_connections(self) -> str | None:
        count = self.site.proxy.cut()
        return f"{count} connections" if count else None

    def cut_next_connection(self) -> str:
        direction = self.chance.choice(("up", "down"))
        count = round(10 ** self.chance.uniform(0, 4.5))
        self.site.proxy.cut_next_after(direction, count)
        return f"after {count} bytes {direction}"

    def black_hole(self) -> str | None:
        return self._way("black_hole", self.site.proxy.black_hole)

    def delay(self) -> str | None:
        return self._way("delay", lambda: self.site.proxy.delay(0.2))

    def refuse_connections(self) -> str | None:
        return self._way("refuse", self.site.proxy.refuse)

    def _way(self, what: str, do: Callable[[], None]) -> str | None:
        if "way" in self._away:
            return None
        do()
        self._later("way", self.site.proxy.pass_on)
        return what

    # ---- the login node

    def kill_remote_process(self) -> str | None:
        """SIGKILL of the login shell that runs a script of the package, or of a command of the script."""
        return self._kill_process([each for each in self._below_sshd() if not _is_sshd(each)])

    def kill_ssh_session(self) -> str | None:
        return self._kill_process([each for each in self._below_sshd() if _is_sshd(each)])

    def _below_sshd(self) -> list[psutil.Process]:
        return [] if "sshd" in self._away else _children(self.site.cluster.daemon("sshd"))

    def _kill_process(self, found: list[psutil.Process]) -> str | None:
        if not found:
            return None
        victim = self.chance.choice(found)
        with suppress(psutil.NoSuchProcess):
            words = " ".join(victim.cmdline())[:60].replace("\n", " ")
            victim.kill()
            return f"{words or victim.pid}"
        return None

    def kill_sshd(self) -> str | None:
        """The listener, all sessions and the commands in them."""
        return self._daemon("sshd")

    # ---- Slurm

    def kill_slurmctld(self) -> str | None:
        return self._daemon("slurmctld")

    def kill_slurmdbd(self) -> str | None:
        return self._daemon("slurmdbd")

    def kill_slurmd(self) -> str | None:
        """Jobs on the node continue."""
        return self._daemon(f"slurmd:{self.chance.choice(self.site.cluster.description['nodes'])}")

    def kill_node(self) -> str | None:
        """A node loses power, with all jobs on it."""
        node = self.chance.choice(self.site.cluster.description["nodes"])
        return self._daemon(f"slurmd:{node}", f"node:{node}")

    def _daemon(self, name: str, target: str | None = None) -> str | None:
        if name in self._away:
            return None
        self.site.cluster.control("kill", target or name)
        self._later(name, lambda: self._start(name))
        return target or name

    def _start(self, name: str) -> None:
        if (
            name == "slurmctld"
        ):  # in its first minutes it has no saved state, and does not start without the controller
            self.site.cluster.control("start", "slurmdbd")
        self.site.cluster.control("start", name)

    def kill_job(self) -> str | None:
        """SIGKILL of a training."""
        conf = str(self.site.cluster.description["slurm_conf"])
        found = []
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                if process.info["name"] == "pretend_trainin" and process.environ().get("SLURM_CONF") == conf:
                    found.append(process)
        return self._kill_process(found)

    # ---- files

    def fill_disk(self) -> str | None:
        """The file system of the runs has no space left."""
        if "disk" in self._away:
            return None
        filler = self.site.runs / "filler"
        fill(filler)
        self._later("disk", filler.unlink)
        return str(self.site.runs)

    def damage_file(self) -> str | None:
        """A small file of the submission protocol loses its content."""
        patterns = (
            "*/.jobs/*/*/jobid",
            "*/.jobs/*/*/exit.json",
            "*/.jobs/*/verdict.json",
            "*/.jobs/*/*/job.json",
        )
        if "disk" in self._away:
            return None
        with suppress(FileNotFoundError):  # jobs and tasks move and delete files concurrently
            sweeps = [folder for folder in self.site.runs.iterdir() if folder.is_dir()]
            files = [file for sweep in sweeps for pattern in patterns for file in sweep.glob(pattern)]
            files += [file for sweep in sweeps for pattern in patterns for file in sweep.glob(f"*/{pattern}")]
            if files:
                newest = sorted(files, key=lambda file: file.stat().st_mtime)[-40:]
                damaged = self.chance.choice(newest)
                with damaged.open("r+b") as file:  # do not create a new file
                    file.truncate()
                    file.write(self.chance.choice(GARBAGE))
                return str(damaged.relative_to(self.site.runs))
        return None


def fill(filler: Path) -> None:
    """Use all free space of a file's file system."""
    free = shutil.disk_usage(filler.parent).free
    with filler.open("wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(free, 1))
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 4096):
            pass


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _is_sshd(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("sshd")
    return True
