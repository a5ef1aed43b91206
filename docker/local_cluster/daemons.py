"""The daemons of a cluster: their commands and readiness checks."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local_cluster import processes
from local_cluster.configuration import LOOPBACK, Machine, mariadbd_arguments
from local_cluster.errors import ClusterError
from local_cluster.packages import program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from local_cluster.layout import Layout
    from local_cluster.settings import Settings

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOG_LINES_SHOWN = 15
#: Seconds in which a daemon should stop after a signal.
STOP_PATIENCE = 20.0


@dataclass(frozen=True)
class Daemon:
    """One daemon.

    :param name: ``munged``, ``slurmd:n1``, ...
    :param argv: the command that runs it in the foreground.
    :param is_ready: returns whether it is ready.
    :param node: the node whose slurmd it is.
    :param patience: seconds it may take to become ready.
    """

    name: str
    argv: list[str]
    is_ready: Callable[[], bool]
    node: str | None = None
    patience: float = 120.0


def daemons_of(layout: Layout, settings: Settings, machine: Machine) -> dict[str, Daemon]:
    """Return all daemons by name, in the order of starting; they stop in the reverse order."""

    def listens(name: str) -> Callable[[], bool]:
        # A connection would be simpler, but would cause an error message in the daemon's log.
        return lambda: processes.is_listening(settings.ports[name])

    conf = str(layout.slurm_conf)
    found = [
        Daemon(
            "munged",
            [
                program("munged"),
                "--foreground",
                "--force",  # munged warns that the socket's directory is not accessible to other users
                f"--socket={layout.munge_socket}",
                f"--key-file={layout.munge_key}",
                f"--pid-file={layout.runtime / 'munged.pid'}",
                f"--log-file={layout.log('munged')}",
                f"--seed-file={layout.directory / 'munged.seed'}",
            ],
            lambda: _socket_answers(layout.munge_socket),
        ),
        Daemon(
            "mariadbd",
            [program("mariadbd"), *mariadbd_arguments(layout, settings, machine)],
            # It listens before it has executed the grants.
            lambda: "ready for connections" in _printed("mariadbd", layout),
            patience=180.0,
        ),
        Daemon("slurmdbd", [program("slurmdbd"), "-D"], listens("slurmdbd"), patience=180.0),
        Daemon(
            "slurmctld",
            [program("slurmctld"), "-D", "-f", conf, *controller_tolerance(layout)],
            listens("slurmctld"),
        ),
        *(
            Daemon(
                f"slurmd:{node}",
                [program("slurmd"), "-D", "-N", node, "-f", conf],
                listens(f"slurmd:{node}"),
                node,
            )
            for node in settings.size.node_names
        ),
        Daemon(
            "sshd",
            [program("sshd"), "-D", "-f", str(layout.sshd_config), "-E", str(layout.log("sshd"))],
            listens("sshd"),
        ),
    ]
    return {daemon.name: daemon for daemon in found}


def controller_tolerance(layout: Layout) -> list[str]:
    """Return slurmctld's option ``-i`` (ignore errors in the state) if it was killed before it could save everything.

    It saves jobs soon after each change, but the usage of accounts later, at its end at the latest. Without that file,
    slurmctld 26.05 ends with "No Assoc usage file to recover".
    """
    state = layout.controller_state
    return ["-i"] if (state / "job_state").exists() and not (state / "assoc_usage").exists() else []


def start(daemon: Daemon, layout: Layout) -> processes.ProcessIdentity:
    """Start a daemon in its own session and record its process; do not wait until it is ready.

    :raises ClusterError: if it ends immediately.
    """
    log = layout.log(daemon.name)
    _set_aside(log)
    errors = log.with_suffix(".err")
    environment = daemon_environment(layout)
    if daemon.node is not None:
        environment[processes.NODE_MARKER] = daemon.node
    with errors.open("wb") as output:
        child = subprocess.Popen(
            daemon.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=layout.log("any").parent,
            start_new_session=True,
        )
    process = processes.identify(child.pid)
    # The daemon continues after this program, so this object must not wait for it or warn that it still runs.
    child.returncode = 0
    if process is None:
        raise ClusterError(f"{daemon.name} ended immediately\n{log_tail(daemon.name, layout)}")
    processes.write_record(record_path(daemon.name, layout), process)
    return process


def await_ready(daemon: Daemon, process: processes.ProcessIdentity, layout: Layout) -> None:
    """Wait until a daemon is ready.

    :raises ClusterError: with its last log lines, if it ends or takes too long.
    """

    def settled() -> bool:
        return daemon.is_ready() or not processes.is_running(process)

    in_time = processes.wait_until(settled, daemon.patience)
    if not processes.is_running(process):
        raise ClusterError(f"{daemon.name} ended while starting\n{log_tail(daemon.name, layout)}")
    if not in_time:
        raise ClusterError(
            f"{daemon.name} is not ready after {daemon.patience:.0f} s\n{log_tail(daemon.name, layout)}"
        )


def record_path(name: str, layout: Layout) -> Path:
    """Return the file that records a daemon's process."""
    return layout.records / f"{name.replace(':', '-')}.json"


def running_process(name: str, layout: Layout) -> processes.ProcessIdentity | None:
    """Return the process of a daemon, if it runs."""
    process = processes.read_record(record_path(name, layout))
    return process if process is not None and processes.is_running(process) else None


def log_tail(name: str, layout: Layout) -> str:
    """Return the last lines of a daemon's log, or of its output if it did not start to log."""
    log = layout.log(name)
    for path in (log, log.with_suffix(".err")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            if lines:
                return "\n".join([f"last lines of {path}:", *(f"  {line}" for line in lines)])
    return f"(nothing in {log})"


def login_environment() -> dict[str, str]:
    """Return the environment of every login shell of this user."""
    user = pwd.getpwuid(os.geteuid())
    return {
        "PATH": SYSTEM_PATH,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
    }


def daemon_environment(layout: Layout) -> dict[str, str]:
    """Return the environment of daemons and of Slurm's commands; it has no variables of the caller."""
    return {
        **login_environment(),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(layout.slurm_conf),
        processes.MARKER: str(layout.directory),
    }


def ask_slurm(layout: Layout, *command: str, timeout: float = 120.0) -> str:
    """Run a command of Slurm and return its output.

    :raises ClusterError: if it fails or takes longer than *timeout* seconds.
    """
    try:
        result = subprocess.run(
            [program(command[0]), *command[1:]],
            env=daemon_environment(layout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(command)} did not answer within {timeout:.0f} s") from error
    if result.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def describe_machine(layout: Layout) -> Machine:
    """Return the properties of this machine and user that the configuration files need.

    :raises ClusterError: if Slurm cannot run on this machine because it has no address.
    """
    _check_address()
    user = pwd.getpwuid(os.geteuid()).pw_name
    loopback = _loopback_address(socket.gethostname())
    return Machine(
        host=socket.gethostname().partition(".")[0],
        user=user,
        slurm_version=_version([program("slurmctld"), "-V"]),
        openssh_version=_version([program("ssh"), "-V"]),
        private_path=_only_owner_writes(layout.ssh),
        password_locked=_password_is_locked(user),
        address=loopback or LOOPBACK,
        only_loopback=loopback is not None,
    )


def _check_address() -> None:
    """Check that a network interface besides loopback has an address: Slurm resolves names with AI_ADDRCONFIG."""
    wanted = socket.AI_PASSIVE | socket.AI_ADDRCONFIG
    try:
        socket.getaddrinfo(None, 1, socket.AF_INET, socket.SOCK_STREAM, 0, wanted)
    except OSError as error:
        raise ClusterError(
            "Slurm does not run on a machine whose only network interface is loopback: connect to a network, or add "
            "one as root: ip link add slurm0 type veth; ip addr add 192.0.2.1/24 dev slurm0; ip link set slurm0 up"
        ) from error


def _loopback_address(host: str) -> str | None:
    """Return the loopback address of a host's name, None if the name has an address that other machines can reach."""
    try:
        found = {
            str(each[4][0]) for each in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
        }
    except OSError:
        return None
    return found.pop() if len(found) == 1 and all(one.startswith("127.") for one in found) else None


def _printed(name: str, layout: Layout) -> str:
    try:
        return layout.log(name).with_suffix(".err").read_text(errors="replace")
    except OSError:
        return ""


def _version(command: list[str]) -> tuple[int, int]:
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    text = output.stdout + output.stderr
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ClusterError(f"the output of {' '.join(command)} contains no version: {text.strip()}")
    return int(found[1]), int(found[2])


def _only_owner_writes(path: Path) -> bool:
    """Apply sshd's StrictModes rule: no parent directory is writable by group or others."""
    for place in (path, *path.parents):
        found = place.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            return False
    return True


def _password_is_locked(user: str) -> bool:
    """Return whether ``/etc/shadow`` locks the account; an sshd that cannot read the file ignores the lock, too."""
    with contextlib.suppress(OSError), open("/etc/shadow", encoding="utf-8", errors="replace") as shadow:
        for line in shadow:
            name, _, rest = line.partition(":")
            if name == user:
                return rest.startswith("!")
    return False


def _socket_answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _set_aside(log: Path) -> None:
    """Rename the log, so that one older log is kept."""
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))
