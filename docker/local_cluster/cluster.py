"""A cluster as a whole: up, down, status, and fault injection for tests."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_cluster import configuration, credentials, daemons, processes, settings
from local_cluster.errors import ClusterError
from local_cluster.imitation import Imitation, load_imitation
from local_cluster.packages import missing_packages, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from local_cluster.layout import Layout

#: A status request must not hang if the controller is stopped or overloaded.
STATUS_TIMEOUT = 15.0
#: How long ``down`` waits for cancelled jobs: Slurm's KillWait and a little more.
CANCEL_PATIENCE = 10.0
#: States of a node that runs jobs, as sinfo shows them.
_IN_SERVICE = frozenset({"idle", "mixed", "allocated", "completing"})
#: How long ``down`` kills processes that those that end leave behind.
SURVIVORS_PATIENCE = 10.0


class Cluster:
    """The cluster in one directory.

    :param layout: paths of its files.
    :param say: receives one line for each step.
    """

    def __init__(self, layout: Layout, say: Callable[[str], None]) -> None:
        self.layout = layout
        self.say = say

    # ---- up and down

    def up(self, wanted: dict[str, int], imitate: Path | None = None) -> None:
        """Start the daemons that are not running.

        :param wanted: requested fields of :class:`settings.Size`; the others keep their previous values.
        :param imitate: description of a site (:mod:`local_cluster.imitation`), kept for later starts.
        :raises ClusterError: if it cannot be started; what was started is stopped again.
        """
        began = time.monotonic()
        missing = missing_packages()
        if missing:
            raise ClusterError(f"not installed: {', '.join(missing)}; run the install command first")
        with self._locked():
            saved = settings.load_settings(self.layout.settings)
            size = dataclasses.replace(saved.size if saved else settings.Size(), **wanted)
            if saved and self._is_up(saved):
                if size != saved.size:
                    raise ClusterError("the cluster is up with another size: run down first, then up")
                self.say(f"already up: {self.layout.description}")
                return
            if self._processes():
                self.say("found parts of an earlier start; stopping them")
                self._stop(saved)
            if imitate is not None:
                self._keep_imitation(imitate)
            while not self._started(size, saved):
                saved = settings.load_settings(self.layout.settings)
        self.say(f"up in {time.monotonic() - began:.1f} s: {self.layout.description}")

    def _started(self, size: settings.Size, saved: settings.Settings | None) -> bool:
        """Start all daemons, or stop those that have started.

        :return: False if other processes have taken chosen ports meanwhile, so that another start chooses others
        """
        try:
            self._start(size, saved)
        except BaseException as error:
            self.say("stopping what was started")
            chosen = settings.load_settings(self.layout.settings)
            self._stop(chosen)
            taken = chosen.taken_ports() if chosen and isinstance(error, ClusterError) else []
            if not taken:
                raise
            self.say(f"other processes have taken the ports of {', '.join(taken)}; trying again")
            return False
        return True

    def _keep_imitation(self, described: Path) -> None:
        if load_imitation(described) is None:
            raise ClusterError(f"{described} does not exist")
        credentials.write_private(self.layout.imitation, described.read_text())

    def down(self, *, purge: bool = False) -> None:
        """Stop all processes of the cluster, and check that none is left.

        :param purge: delete the directory too: accounting database, logs, keys.
        :raises ClusterError: if a process survives.
        """
        if not self.layout.directory.exists():
            self.say(f"there is no cluster in {self.layout.directory}")
            return
        if purge:
            self._check_purgeable()
        with self._locked():
            was_running = bool(self._processes())
            self._stop(
                settings.load_settings(self.layout.settings) if not purge else self._settings_or_none()
            )
            if purge:
                shutil.rmtree(self.layout.directory)
        self.say(("down" if was_running else "was not running") + (", files deleted" if purge else ""))

    def _check_purgeable(self) -> None:
        """Refuse to delete a directory that is not a cluster's, such as a home directory that was given by mistake."""
        if not self._lock_file().exists():
            raise ClusterError(
                f"{self.layout.directory} is not the directory of a cluster; it was not deleted"
            )

    def _settings_or_none(self) -> settings.Settings | None:
        try:
            return settings.load_settings(self.layout.settings)
        except ClusterError:  # damaged, but about to be deleted
            return None

    def _start(self, size: settings.Size, saved: settings.Settings | None) -> None:
        kept = saved.ports if saved else {}
        self.layout.make_directories()
        chosen = settings.Settings(size, settings.choose_ports(size, kept))
        moved = sorted(name for name, port in chosen.ports.items() if kept.get(name, port) != port)
        if moved:
            self.say(f"other processes use the previous ports of {', '.join(moved)}; chose other ports")
        chosen.save(self.layout.settings)
        machine = daemons.describe_machine(self.layout)
        if not machine.private_path:
            self.say(f"others may write to a parent of {self.layout.ssh}: sshd's StrictModes is off")
        self.say("writing configuration and keys")
        imitation = load_imitation(self.layout.imitation)
        self._write_configuration(chosen, machine, imitation)
        every = daemons.daemons_of(self.layout, chosen, machine)
        self._initialise_database(machine)
        for name in ("munged", "mariadbd"):
            self.say(f"starting {name}")
        self._start_daemons(every["munged"], every["mariadbd"])
        self.say("starting slurmdbd")
        self._start_daemons(every["slurmdbd"])
        self._add_account(machine.user, imitation)
        self.say("starting slurmctld and sshd")
        self._start_daemons(every["slurmctld"], every["sshd"])
        nodes = [daemon for name, daemon in every.items() if name.startswith("slurmd:")]
        self.say(f"starting {', '.join(daemon.name for daemon in nodes)}")
        self._start_daemons(*nodes)
        self._await_nodes(size.node_names)
        self._write_description(chosen, machine, imitation)

    def _start_daemons(self, *several: daemons.Daemon) -> None:
        started = [(daemon, daemons.start(daemon, self.layout)) for daemon in several]
        for daemon, process in started:
            daemons.await_ready(daemon, process, self.layout)

    def _write_configuration(
        self, chosen: settings.Settings, machine: configuration.Machine, imitation: Imitation | None
    ) -> None:
        layout = self.layout
        credentials.make_munge_key(layout)
        credentials.make_ssh_keys(layout, chosen.ports["sshd"])
        password = credentials.database_password(layout)
        etc = layout.slurm_conf.parent
        slurm_conf = configuration.slurm_conf(layout, chosen, machine, imitation)
        credentials.write_private(layout.slurm_conf, slurm_conf)
        if imitation is not None and imitation.filter:
            credentials.write_private(layout.submission_filter, imitation.filter)
        credentials.write_private(etc / "gres.conf", configuration.gres_conf(layout, chosen.size, imitation))
        credentials.write_private(etc / "cgroup.conf", configuration.cgroup_conf(machine))
        slurmdbd_conf = configuration.slurmdbd_conf(layout, chosen, machine, password)
        credentials.write_private(etc / "slurmdbd.conf", slurmdbd_conf)
        credentials.write_private(layout.database_grants, configuration.database_grants(password))
        sshd_config = configuration.sshd_config(layout, chosen, machine, imitation)
        credentials.write_private(layout.sshd_config, sshd_config)
        scripts = {
            layout.task_prolog: configuration.task_prolog(daemons.login_environment()),
            layout.epilog: configuration.epilog(),
        }
        for script, text in scripts.items():
            credentials.write_private(script, text)
            script.chmod(0o700)
        for node in chosen.size.node_names:
            (layout.spool / node).mkdir(mode=0o700, exist_ok=True)
            for number in range(chosen.size.gpus_per_node):
                gpu = layout.gpus / f"{node}-gpu{number}"
                gpu.unlink(missing_ok=True)
                gpu.symlink_to("/dev/null")
        if os.geteuid() == 0:
            # sshd needs this directory if root starts it; on most systems a boot script creates it.
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)

    def _initialise_database(self, machine: configuration.Machine) -> None:
        if self.layout.database.exists():
            return
        self.say("creating the accounting database")
        new = self.layout.database.with_name("database.new")
        shutil.rmtree(new, ignore_errors=True)
        command = [
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={new}",
            f"--user={machine.user}",
            "--skip-test-db",
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={machine.user}",
            "--skip-name-resolve",
            "--innodb-log-file-size=32M",
        ]
        result = subprocess.run(
            command,
            # its temporary files have the same names in all installations
            env={**daemons.daemon_environment(self.layout), "TMPDIR": str(self.layout.database_temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode != 0:
            raise ClusterError(f"mariadb-install-db failed:\n{result.stdout.strip()}")
        new.replace(self.layout.database)

    def _add_account(self, user: str, imitation: Imitation | None) -> None:
        """Add the cluster, the account, the user and qualities of service to accounting, unless they exist."""
        layout, name, account = self.layout, configuration.CLUSTER_NAME, configuration.ACCOUNT
        associations = ("--noheader", "--parsable2", "show", "associations", "format=cluster,account,user")
        known = daemons.ask_slurm(layout, "sacctmgr", *associations).splitlines()
        if f"{name}|{account}|{user}" in known:
            return
        self.say(f"adding account {account} and user {user}")
        if f"{name}|root|" not in known:
            daemons.ask_slurm(layout, "sacctmgr", "--immediate", "add", "cluster", name)
        if f"{name}|{account}|" not in known:
            daemons.ask_slurm(
                layout, "sacctmgr", "--immediate", "add", "account", account, f"Cluster={name}",
                "Description=local cluster", "Organization=local",
            )  # fmt: skip
        daemons.ask_slurm(
            layout, "sacctmgr", "--immediate", "add", "user", user, f"Account={account}", f"Cluster={name}",
            f"DefaultAccount={account}", "AdminLevel=Administrator",
        )  # fmt: skip
        if imitation is None:
            return
        settings = []
        if imitation.qualities:
            names = ",".join(imitation.qualities)
            daemons.ask_slurm(layout, "sacctmgr", "--immediate", "add", "qos", names)
            settings.append(f"qos+={names}")
        for quality, most in imitation.queued_of_quality.items():
            daemons.ask_slurm(
                layout,
                "sacctmgr",
                "--immediate",
                "modify",
                "qos",
                quality,
                "set",
                f"MaxSubmitJobsPerUser={most}",
            )
        if imitation.queued:
            settings.append(f"MaxSubmitJobs={imitation.queued}")
        if settings:
            daemons.ask_slurm(layout, "sacctmgr", "--immediate", "modify", "user", user, "set", *settings)

    def _await_nodes(self, names: list[str]) -> None:
        states: dict[str, str] = {}

        def all_respond() -> bool:
            states.update(self._node_states())
            return all(states.get(name) in _IN_SERVICE for name in names)

        def ended() -> list[str]:
            return [name for name in names if daemons.running_process(f"slurmd:{name}", self.layout) is None]

        processes.wait_until(lambda: bool(ended()) or all_respond(), 120.0, interval=0.1)
        without_daemon = ended()
        waiting = without_daemon or [name for name in names if states.get(name) not in _IN_SERVICE]
        if waiting:
            tails = "\n".join(
                daemons.log_tail(daemon, self.layout) for daemon in ("slurmctld", f"slurmd:{waiting[0]}")
            )
            why = dict.fromkeys(without_daemon, "its slurmd has ended") or states
            shown = ", ".join(f"{name} ({why.get(name, 'no state')})" for name in waiting)
            raise ClusterError(f"nodes did not come up: {shown}\n{tails}")

    def _write_description(
        self, chosen: settings.Settings, machine: configuration.Machine, imitation: Imitation | None
    ) -> None:
        layout = self.layout
        description = {
            "ssh": {
                "host": configuration.LOOPBACK,
                "port": chosen.ports["sshd"],
                "user": machine.user,
                "key_file": str(layout.user_key),
                "known_hosts": str(layout.known_hosts),
                "host_key": credentials.host_key_line(layout),
            },
            "slurm_conf": str(layout.slurm_conf),
            "account": configuration.ACCOUNT,
            "nodes": chosen.size.node_names,
            "partitions": list(imitation.partitions if imitation else configuration.PARTITIONS),
            "dir": str(layout.directory),
            "runtime_dir": str(layout.runtime),
        }
        credentials.write_private(layout.description, json.dumps(description, indent=1) + "\n")

    # ---- stopping

    def _stop(self, saved: settings.Settings | None) -> None:
        layout = self.layout
        layout.description.unlink(missing_ok=True)
        if daemons.running_process("slurmctld", layout):
            self._cancel_jobs()
        names = self._daemon_names(saved) if saved else []
        for name in reversed(names):
            process = daemons.running_process(name, layout)
            if process is not None:
                self.say(f"stopping {name}")
                processes.end([process], daemons.STOP_PATIENCE)
        leftovers = self._processes()
        if leftovers:
            self.say(f"stopping {len(leftovers)} more processes (jobs, sessions)")
            processes.end(leftovers, 3.0)
        # a process may start another one before it ends, and that one another
        deadline = time.monotonic() + SURVIVORS_PATIENCE
        while survivors := self._processes():
            if time.monotonic() > deadline:
                numbers = ", ".join(str(process.pid) for process in survivors)
                raise ClusterError(f"new processes of the cluster keep starting: {numbers}")
            processes.end(survivors, 0.0, first=signal.SIGKILL)
        for record in layout.records.glob("*.json"):
            record.unlink()
        layout.check_runtime()
        shutil.rmtree(layout.runtime, ignore_errors=True)

    def _cancel_jobs(self) -> None:
        """Cancel all jobs; otherwise accounting would show them as running until the next start."""
        # Continue even if the controller does not answer because it is stopped or was just killed.
        with contextlib.suppress(ClusterError):
            jobs = self._job_ids()
            if not jobs:
                return
            self.say(f"cancelling {len(jobs)} jobs")
            daemons.ask_slurm(self.layout, "scancel", *jobs, timeout=STATUS_TIMEOUT)
            processes.wait_until(lambda: not self._job_ids(), CANCEL_PATIENCE, interval=0.2)

    def _job_ids(self) -> list[str]:
        active = "--states=pending,running,suspended,completing,configuring"
        return daemons.ask_slurm(
            self.layout, "squeue", "--noheader", "--all", active, "--format=%A", timeout=STATUS_TIMEOUT
        ).split()

    def _processes(self) -> list[processes.ProcessIdentity]:
        """Return every running process of this cluster."""
        try:
            saved = settings.load_settings(self.layout.settings)
        except ClusterError:
            saved = None
        layout = self.layout
        port = saved.ports.get("sshd") if saved else None
        pids = processes.cluster_pids(layout.directory, layout.slurm_conf, layout.sshd_config, port)
        return [process for process in map(processes.identify, pids) if process is not None]

    # ---- status

    def status(self) -> dict[str, Any]:
        """Return the state of daemons, nodes and jobs.

        :returns: ``{"up": bool, "dir": str, "daemons": {name: pid or None}, "nodes": {name: state}, "jobs": {state:
            number}}``; nodes and jobs are empty if slurmctld does not answer.
        """
        saved = settings.load_settings(self.layout.settings)
        found = {
            name: daemons.running_process(name, self.layout)
            for name in (self._daemon_names(saved) if saved else [])
        }
        nodes: dict[str, str] = {}
        jobs: dict[str, int] = {}
        answers = False
        if found.get("slurmctld") is not None:
            with contextlib.suppress(ClusterError):
                nodes = self._node_states()
                states = daemons.ask_slurm(
                    self.layout,
                    "squeue",
                    "--noheader",
                    "--all",
                    "--array",
                    "--format=%T",
                    timeout=STATUS_TIMEOUT,
                )
                jobs = dict(Counter(states.split()))
                answers = True
        return {
            "up": answers and all(found.values()),
            "dir": str(self.layout.directory),
            "daemons": {name: process.pid if process else None for name, process in found.items()},
            "nodes": nodes,
            "jobs": jobs,
        }

    def _node_states(self) -> dict[str, str]:
        lines = daemons.ask_slurm(
            self.layout, "sinfo", "--noheader", "--all", "--Node", "--format=%N|%T", timeout=STATUS_TIMEOUT
        )
        return dict(line.split("|") for line in lines.splitlines())

    def _is_up(self, saved: settings.Settings) -> bool:
        running = all(daemons.running_process(name, self.layout) for name in self._daemon_names(saved))
        return running and self.layout.description.exists()

    @staticmethod
    def _daemon_names(saved: settings.Settings) -> list[str]:
        nodes = [f"slurmd:{node}" for node in saved.size.node_names]
        return ["munged", "mariadbd", "slurmdbd", "slurmctld", *nodes, "sshd"]

    # ---- faults

    def kill(self, target: str) -> None:
        """Kill (SIGKILL) a daemon, ``slurmd:n1`` for one node's; the processes of its jobs continue.

        Killing ``sshd`` also ends its sessions and their commands. ``node:n1`` stands for a node that loses power:
        slurmd and all processes of jobs on it are killed.

        :raises ClusterError: if there is no such daemon, or it does not run.
        """
        kind, _, node = target.partition(":")
        self._check_exists()
        with self._locked():
            saved = self._settings_of_existing()
            process = self._find(f"slurmd:{node}" if kind == "node" else target, saved)
            pids = [process.pid] if process else []
            if kind == "node":
                pids += processes.node_pids([process.pid for process in self._processes()], node)
            elif kind == "sshd":
                pids += processes.descendants(pids)
            victims = {found for found in map(processes.identify, pids) if found is not None}
            if not victims:
                raise ClusterError(f"{target} is not running")
            if kind == "node":
                processes.freeze(victims)  # else a step daemon may report the end of its tasks
            processes.end(victims, 5.0, first=signal.SIGKILL)
        self.say(f"killed {target}: {len(victims)} processes")

    def start(self, name: str) -> None:
        """Start a daemon that was killed, and wait until it is ready.

        :raises ClusterError: if there is no such daemon, or it cannot be started.
        """
        self._check_exists()
        with self._locked():
            saved = self._settings_of_existing()
            if self._find(name, saved) is not None:
                self.say(f"{name} is running")
                return
            machine = daemons.describe_machine(self.layout)
            self._start_daemons(daemons.daemons_of(self.layout, saved, machine)[name])
        self.say(f"started {name}")

    def _find(self, name: str, saved: settings.Settings) -> processes.ProcessIdentity | None:
        names = self._daemon_names(saved)
        if name not in names:
            raise ClusterError(f"no daemon {name}; there are {', '.join(names)}")
        return daemons.running_process(name, self.layout)

    def _check_exists(self) -> None:
        if not self.layout.directory.exists():
            raise ClusterError(f"there is no cluster in {self.layout.directory}")

    def _settings_of_existing(self) -> settings.Settings:
        saved = settings.load_settings(self.layout.settings)
        if saved is None or not self.layout.description.exists():
            raise ClusterError(f"the cluster in {self.layout.directory} is not up")
        return saved

    # ---- one command at a time

    def _lock_file(self) -> Path:
        return self.layout.directory / ".local_cluster.lock"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the cluster, so that commands run one after the other."""
        self.layout.make_own_directory()
        with self._lock_file().open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("another command works on this cluster; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
