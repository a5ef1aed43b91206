"""Layout of a cluster's files: a persistent directory, and a private directory with a short path for sockets."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

#: Characters that slurm.conf, gres.conf (host-list syntax) and sshd_config all interpret literally.
PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@:~-]+")

#: Possible parents of the runtime directory. ``$TMPDIR`` is not one of them: it differs between shells, but ``down``
#: must find the directory that ``up`` created.
RUNTIME_PARENTS = (Path("/tmp"), Path("/var/tmp"))


@dataclass(frozen=True)
class Layout:
    """Paths of one cluster.

    :param directory: configuration, keys, logs, accounting database, controller state; survives ``down``.
    :param runtime: Unix sockets and slurmd's spool, which contains the sockets of steps; removed by ``down``. Paths of
        sockets are limited to 107 bytes, and checkouts may have long paths.
    """

    directory: Path
    runtime: Path

    @classmethod
    def at(cls, directory: Path) -> Layout:
        """Return the layout of the cluster in *directory*, creating nothing.

        :raises ClusterError: if the path has characters that Slurm's configuration files do not support.
        """
        resolved = directory.expanduser().resolve()
        if not PLAIN_PATH.fullmatch(str(resolved)):
            raise ClusterError(
                f"{resolved}: Slurm's configuration files do not support this path "
                "(only letters, digits and _./+@:~-); choose another folder: with --dir of this program, or "
                "with AIRFLOW_MEGATRON_LOCAL for Airflow and airflow-megatron"
            )
        digest = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:10]
        name = f"airflow-megatron-{os.geteuid()}-{digest}"
        return cls(resolved, _runtime_parent() / name)

    @property
    def slurm_conf(self) -> Path:
        """Slurm's configuration; slurmdbd.conf, gres.conf and cgroup.conf must be in the same folder."""
        return self.directory / "etc" / "slurm.conf"

    @property
    def imitation(self) -> Path:
        """Description of the imitated site, if there is one."""
        return self.directory / "imitation.json"

    @property
    def submission_filter(self) -> Path:
        """Slurm's filter of submissions; it must be in the folder of slurm.conf."""
        return self.directory / "etc" / "job_submit.lua"

    @property
    def task_prolog(self) -> Path:
        """The script that slurmd runs before each task."""
        return self.directory / "etc" / "task_prolog.sh"

    @property
    def epilog(self) -> Path:
        """The script that slurmd runs after each task and after each job."""
        return self.directory / "etc" / "epilog.sh"

    @property
    def sshd_config(self) -> Path:
        """The SSH server's configuration."""
        return self.directory / "etc" / "sshd_config"

    @property
    def munge_key(self) -> Path:
        """The secret shared by all Slurm daemons."""
        return self.directory / "munge.key"

    @property
    def munge_socket(self) -> Path:
        """The socket of munged."""
        return self.runtime / "munge.socket"

    @property
    def database(self) -> Path:
        """MariaDB's data directory."""
        return self.directory / "database"

    @property
    def database_temporary(self) -> Path:
        """MariaDB's temporary tables."""
        return self.directory / "database.tmp"

    @property
    def database_password(self) -> Path:
        """Password of slurmdbd's database user."""
        return self.directory / "database.password"

    @property
    def database_grants(self) -> Path:
        """SQL that MariaDB runs at each start."""
        return self.directory / "etc" / "grants.sql"

    @property
    def controller_state(self) -> Path:
        """Slurmctld's StateSaveLocation."""
        return self.directory / "state"

    @property
    def gpus(self) -> Path:
        """Links to /dev/null that represent GPUs."""
        return self.directory / "gpus"

    @property
    def spool(self) -> Path:
        """Parent of each slurmd's spool directory."""
        return self.runtime / "spool"

    @property
    def ssh(self) -> Path:
        """Host key, user key, authorized_keys and known_hosts."""
        return self.directory / "ssh"

    @property
    def host_key(self) -> Path:
        """The SSH server's private key."""
        return self.ssh / "host_key"

    @property
    def user_key(self) -> Path:
        """The private key for logins at the SSH server."""
        return self.ssh / "user_key"

    @property
    def authorized_keys(self) -> Path:
        """Public keys that the SSH server accepts."""
        return self.ssh / "authorized_keys"

    @property
    def known_hosts(self) -> Path:
        """The server's host key in the format of SSH clients."""
        return self.ssh / "known_hosts"

    @property
    def records(self) -> Path:
        """One JSON file for each daemon that was started."""
        return self.directory / "daemons"

    @property
    def settings(self) -> Path:
        """The size and the ports chosen at the first ``up``."""
        return self.directory / "settings.json"

    @property
    def description(self) -> Path:
        """Connection data for clients; exists while the cluster is up."""
        return self.directory / "cluster.json"

    def log(self, daemon: str) -> Path:
        """Return the log file of a daemon."""
        return self.directory / "log" / f"{daemon.replace(':', '-')}.log"

    def make_own_directory(self) -> None:
        """Create the cluster's directory, or make it private: it contains keys, passwords and the output of jobs."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.directory.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o077:
            self.directory.chmod(stat.S_IMODE(found.st_mode) & ~0o077)

    def make_directories(self) -> None:
        """Create the directories, private to this user.

        :raises ClusterError: if the runtime directory exists and is not private to this user.
        """
        self.make_own_directory()
        for path in (
            self.slurm_conf.parent,
            self.controller_state,
            self.database_temporary,
            self.gpus,
            self.ssh,
            self.records,
            self.log("any").parent,
        ):
            path.mkdir(mode=0o700, exist_ok=True)
        self.check_runtime()
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.check_runtime()
        self.spool.mkdir(mode=0o700, exist_ok=True)

    def check_runtime(self) -> None:
        """Refuse a runtime directory that is not a private directory of this user.

        :raises ClusterError: if it is a link, belongs to somebody else, or is open to others.
        """
        try:
            found = self.runtime.lstat()
        except FileNotFoundError:
            return
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid():
            raise ClusterError(
                f"{self.runtime} is not a private directory of this user: remove it and try again"
            )


def _runtime_parent() -> Path:
    for parent in RUNTIME_PARENTS:
        # slurmd executes job scripts from its spool, so the file system must not be mounted noexec.
        if parent.is_dir() and not os.statvfs(parent).f_flag & os.ST_NOEXEC:
            return parent
    raise ClusterError(
        f"every one of {', '.join(map(str, RUNTIME_PARENTS))} is mounted noexec: jobs could not start"
    )
