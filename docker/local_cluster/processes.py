"""Find and end the processes of a cluster, but never a later process with a reused number."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROC = Path("/proc")
#: The kernel's TCP_LISTEN, in the format of ``/proc/net/tcp``.
TCP_LISTEN = "0A"

#: Set in the environment of every daemon, to the cluster's directory.
MARKER = "AIRFLOW_MEGATRON_LOCAL_CLUSTER"
#: Set in the environment of each slurmd, and inherited by its step daemons: the node's name.
NODE_MARKER = "AIRFLOW_MEGATRON_LOCAL_CLUSTER_NODE"


@dataclass(frozen=True)
class ProcessIdentity:
    """The identity of a process, different from that of any later process.

    :param pid: process number, which the kernel reuses after the process has ended.
    :param started: clock ticks from boot to its start (field 22 of proc(5)'s ``stat``).
    :param boot: the kernel's ``boot_id``.
    """

    pid: int
    started: int
    boot: str


def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process; None if there is none or only its zombie."""
    stat = _stat_fields(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return ProcessIdentity(pid, int(stat[19]), boot_id())


def parent_of(pid: int) -> int | None:
    """Return the number of a process's parent; None if there is no such process."""
    stat = _stat_fields(pid)
    return None if stat is None else int(stat[1])


def is_running(process: ProcessIdentity) -> bool:
    """Return whether exactly this process still runs."""
    return identify(process.pid) == process


def arguments(pid: int) -> list[str]:
    """Return a process's command line; empty if it has none or may not be read."""
    return _nul_separated(PROC / str(pid) / "cmdline")


def environment(pid: int) -> dict[str, str]:
    """Return the environment at the start of a process; empty if it may not be read."""
    pairs = (item.partition("=") for item in _nul_separated(PROC / str(pid) / "environ"))
    return {name: value for name, _, value in pairs}


def own_pids() -> list[int]:
    """Return the processes of this user, without this one and its ancestors."""
    ancestors = set()
    pid: int | None = os.getpid()
    while pid:
        ancestors.add(pid)
        pid = parent_of(pid)
    found = []
    for entry in PROC.iterdir():
        try:
            if (
                entry.name.isdigit()
                and entry.stat().st_uid == os.geteuid()
                and int(entry.name) not in ancestors
            ):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile
            continue
    return sorted(found)


def descendants(roots: Iterable[int]) -> list[int]:
    """Return all current descendants of the given processes."""
    parents = {pid: parent_of(pid) for pid in own_pids()}
    found: set[int] = set()
    level = set(roots)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return sorted(found)


def cluster_pids(directory: Path, slurm_conf: Path, sshd_config: Path, ssh_port: int | None) -> list[int]:
    """Return every process of a cluster, even if its parent crashed: daemons, job steps, jobs, SSH sessions.

    :param directory: folder of the cluster; daemons have it in their environment (:data:`MARKER`).
    :param slurm_conf: a process with this SLURM_CONF and a SLURM_JOB_ID is part of a job.
    :param sshd_config: sshd overwrites its environment with its title, but the title contains this path.
    :param ssh_port: port of the SSH server; its sessions have connections to it.
    """
    sockets = {inode for port, _, inode in _tcp_sockets() if port == ssh_port and inode != "0"}
    found = []
    for pid in own_pids():
        surroundings = environment(pid)
        is_job = "SLURM_JOB_ID" in surroundings and surroundings.get("SLURM_CONF") == str(slurm_conf)
        if (
            surroundings.get(MARKER) == str(directory)
            or is_job
            or (_is_sshd(pid) and (str(sshd_config) in _title_words(pid) or sockets & _sockets_held_by(pid)))
        ):
            found.append(pid)
    return sorted({*found, *_step_daemons(found)})


def _step_daemons(tasks: Iterable[int]) -> set[int]:
    """Return the step daemons of tasks; those of Slurm 26.05 overwrite their environment with their title."""
    parents = {parent for parent in map(parent_of, tasks) if parent is not None}
    return {pid for pid in parents if next(iter(arguments(pid)), "").startswith("slurmstepd:")}


def is_listening(port: int) -> bool:
    """Return whether something on this machine listens on an IPv4 TCP port."""
    return any(local == port and state == TCP_LISTEN for local, state, _ in _tcp_sockets())


def node_pids(cluster: Iterable[int], node: str) -> list[int]:
    """Return the processes of a cluster that would end if one node lost power.

    :param cluster: result of :func:`cluster_pids`.
    :param node: name of the node; slurmd and its step daemons have :data:`NODE_MARKER` in their environment, tasks have
        Slurm's SLURMD_NODENAME.
    """
    here = set()
    for pid in cluster:
        surroundings = environment(pid)
        if node in (surroundings.get(NODE_MARKER), surroundings.get("SLURMD_NODENAME")):
            here.add(pid)
    here |= _step_daemons(here)
    return sorted(here.union(descendants(here)))


def end(
    processes: Iterable[ProcessIdentity], patience: float, first: signal.Signals = signal.SIGTERM
) -> None:
    """End processes: send a signal, wait, then kill.

    :param processes: the processes to end; later processes with the same numbers are not signalled.
    :param patience: seconds between the first signal and SIGKILL.
    :param first: the signal to send first; SIGKILL ends the processes at once.
    :raises ClusterError: if one survives.
    """
    remaining = _signal_and_wait(processes, first, patience)
    remaining = _signal_and_wait(remaining, signal.SIGKILL, 5.0)
    if remaining:
        raise ClusterError(f"could not end process {', '.join(str(process.pid) for process in remaining)}")


def freeze(processes: Iterable[ProcessIdentity]) -> None:
    """Stop processes, so that none of them sees another one end while they are killed one after the other."""
    for process in processes:
        _send(process, signal.SIGSTOP)


def _signal_and_wait(
    processes: Iterable[ProcessIdentity], how: signal.Signals, seconds: float
) -> list[ProcessIdentity]:
    """Signal processes, wait until they have ended, and return those that have not."""
    targets = [process for process in processes if is_running(process)]
    for process in targets:
        _send(process, how)
    wait_until(lambda: not any(map(is_running, targets)), seconds)
    return [process for process in targets if is_running(process)]


def wait_until(condition: Callable[[], bool], seconds: float, interval: float = 0.05) -> bool:
    """Wait until a condition holds; return whether it did within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


def write_record(path: Path, process: ProcessIdentity) -> None:
    """Record the process of a daemon on disk."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(asdict(process)) + "\n")
    temporary.replace(path)


def read_record(path: Path) -> ProcessIdentity | None:
    """Return the recorded process; None if there is no record or it is damaged."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return ProcessIdentity(int(found["pid"]), int(found["started"]), str(found["boot"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _send(process: ProcessIdentity, how: signal.Signals) -> None:
    """Signal exactly this process: unlike a number, a pidfd cannot refer to another process after the check."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if is_running(process):
            signal.pidfd_send_signal(descriptor, how)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the state on; None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may contain blanks and parentheses.
    return text.rpartition(")")[2].split()


def _nul_separated(path: Path) -> list[str]:
    try:
        return [os.fsdecode(item) for item in path.read_bytes().split(b"\0") if item]
    except OSError:
        return []


def _is_sshd(pid: int) -> bool:
    """Return whether a process runs OpenSSH's server; from 9.8 on, sessions run ``sshd-session``."""
    words = _title_words(pid)
    return bool(words) and Path(words[0].removesuffix(":")).name.startswith("sshd")


def _title_words(pid: int) -> list[str]:
    return " ".join(arguments(pid)).split()


def _tcp_sockets() -> list[tuple[int, str, str]]:
    """Return local port, state and inode of every IPv4 TCP socket of this machine (proc(5), ``net/tcp``)."""
    try:
        rows = [line.split() for line in (PROC / "net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return []
    return [(int(row[1].rpartition(":")[2], 16), row[3], row[9]) for row in rows]


def _sockets_held_by(pid: int) -> set[str]:
    held = set()
    try:
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                held.add(target[len("socket:[") : -1])
    except OSError:  # ended meanwhile, or not readable
        pass
    return held
