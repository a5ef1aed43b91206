"""Render every configuration file, as pure functions of the layout and the settings."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local_cluster.imitation import ABSENT_PORT

if TYPE_CHECKING:
    from local_cluster.imitation import Imitation
    from local_cluster.layout import Layout
    from local_cluster.settings import Settings, Size

CLUSTER_NAME = "local"
ACCOUNT = "local"
LOOPBACK = "127.0.0.1"
DATABASE_USER = "slurm"
DATABASE_NAME = "slurm_acct_db"

#: Name and options of each partition. Jobs of other partitions preempt those in `preemptable`.
PARTITIONS: dict[str, str] = {
    "main": "Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=10 PreemptMode=OFF",
    "short": "MaxTime=00:10:00 DefaultTime=00:05:00 PriorityTier=10 PreemptMode=OFF",
    "preemptable": "MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
}

#: Earlier releases do not have ``CgroupPlugin=disabled`` in cgroup.conf.
CGROUP_CAN_BE_DISABLED = (23, 2)
#: From this release on, sshd refuses clients for a time after failed logins, unless configured otherwise.
SSHD_HAS_PENALTIES = (9, 8)


@dataclass(frozen=True)
class Machine:
    """Properties of the machine and its user for the configuration files.

    :param host: short host name, as Slurm determines it.
    :param user: login name of the user who runs the daemons and the jobs.
    :param slurm_version: for example (22, 5).
    :param openssh_version: for example (9, 2).
    :param private_path: whether no other user can write to a parent of the SSH files, as StrictModes requires.
    :param password_locked: whether the user's account is locked, which sshd only accepts with PAM.
    :param address: loopback address for connections to Slurm's daemons.
    :param only_loopback: whether the host's name resolves to this address, so that they can listen only there.
    """

    host: str
    user: str
    slurm_version: tuple[int, int]
    openssh_version: tuple[int, int]
    private_path: bool = True
    password_locked: bool = False
    address: str = LOOPBACK
    only_loopback: bool = False


def slurm_conf(
    layout: Layout, settings: Settings, machine: Machine, imitation: Imitation | None = None
) -> str:
    """Return slurm.conf (slurm.conf(5)): several slurmd on one host, each with its name and port.

    :param imitation: the site that the cluster imitates, if any.
    """
    size = settings.size
    gpus = 0 if imitation is not None and not imitation.gpu_requests else size.gpus_per_node
    lines = [
        f"ClusterName={CLUSTER_NAME}",
        f"SlurmctldHost={machine.host}({machine.address})",
        f"SlurmctldPort={settings.ports['slurmctld']}",
        f"SlurmUser={machine.user}",
        f"SlurmdUser={machine.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        f"StateSaveLocation={layout.controller_state}",
        f"SlurmdSpoolDir={layout.spool}/%n",
        f"SlurmctldPidFile={layout.runtime}/slurmctld.pid",
        f"SlurmdPidFile={layout.runtime}/slurmd-%n.pid",
        f"SlurmctldLogFile={layout.log('slurmctld')}",
        f"SlurmdLogFile={layout.log('slurmd')}".removesuffix(".log") + "-%n.log",
        "MailProg=/bin/true",
        # processes of srun in a job get the nice value of the job, not of slurmd
        "PropagatePrioProcess=1",
        # The machine does not have the configured processors and memory of the nodes.
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        f"TaskProlog={layout.task_prolog}",
        f"Epilog={layout.epilog}",
        f"TaskEpilog={layout.epilog}",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=10",
        # Nodes stay up if the machine pauses for some seconds; a dead slurmd is detected within a minute.
        f"SlurmdTimeout={size.slurmd_timeout}",
        # slurmctld waits this long for each response of a node.
        "MessageTimeout=5",
        "KillWait=5",
        "UnkillableStepTimeout=30",
        "InactiveLimit=0",
        "MinJobAge=300",
        "OverTimeLimit=0",
        "CompleteWait=0",
        "ReturnToService=2",
        # Do not requeue a job that lost its node unless it asks for --requeue: the submitter submits it again.
        "JobRequeue=0",
        "SchedulerType=sched/backfill",
        # Start a batch job immediately instead of collecting submissions for three seconds.
        "SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5",
        "PriorityType=priority/basic",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        f"DefMemPerCPU={max(1, size.memory_mb // size.cpus_per_node)}",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={machine.address}",
        f"AccountingStoragePort={settings.ports['slurmdbd']}",
        f"AccountingStoragePass={layout.munge_socket}",
        # Refuse unknown accounts and enforce the limits of accounts and QOSs, as a real cluster does.
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStoreFlags=job_comment",
        *_only_loopback(machine),
    ]
    if gpus:
        lines += ["AccountingStorageTRES=gres/gpu", "GresTypes=gpu"]
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    if imitation is not None and imitation.features:
        gres += f" Feature={','.join(imitation.features)}"
    resources = (
        f"CPUs={size.cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={size.cpus_per_node} "
        f"ThreadsPerCore=1 RealMemory={size.memory_mb}{gres}"
    )
    for node in size.node_names:
        lines.append(
            f"NodeName={node} NodeHostname={machine.host} NodeAddr={machine.address} "
            f"Port={settings.ports[f'slurmd:{node}']} {resources} State=UNKNOWN"
        )
    nodes = ",".join(size.node_names)
    if imitation is None:
        partitions = PARTITIONS
    else:
        partitions = imitation.partitions
        lines.append("EnforcePartLimits=ALL")
        if imitation.filter:
            lines.append("JobSubmitPlugins=lua")
        if imitation.absent_nodes:
            absent = f"absent[1-{imitation.absent_nodes}]"
            lines.append(
                f"NodeName={absent} NodeHostname={machine.host} NodeAddr={machine.address} "
                f"Port={ABSENT_PORT} {resources} State=DOWN"
            )
            nodes += f",{absent}"
    lines += [
        f"PartitionName={name} Nodes={nodes} State=UP {options}" for name, options in partitions.items()
    ]
    return _text(lines)


def gres_conf(layout: Layout, size: Size, imitation: Imitation | None = None) -> str:
    """Return gres.conf.

    Slurm requires a device file for each GPU and accepts a symbolic link to one, so the user need not be root.
    """
    lines = ["AutoDetect=off"]
    if size.gpus_per_node and (imitation is None or imitation.gpu_requests):
        last = size.gpus_per_node - 1
        lines += [
            f"NodeName={node} Name=gpu File={layout.gpus}/{node}-gpu[0-{last}]" for node in size.node_names
        ]
    return _text(lines)


def cgroup_conf(machine: Machine) -> str:
    """Return cgroup.conf: no cgroups, because they need systemd or root and do not exist in containers.

    Releases that require a plugin get the one that has no effect until a step is constrained.
    """
    disabled = machine.slurm_version >= CGROUP_CAN_BE_DISABLED
    return _text([f"CgroupPlugin={'disabled' if disabled else 'cgroup/v1'}"])


def task_prolog(login: dict[str, str]) -> str:
    """Return the script that sets the variables of a login shell in a task whose job does not have them.

    With ``sbatch --export=NONE`` slurmd runs the user's login shell to get them, but only as root, and ``srun`` in such
    a job does not pass variables on. Slurm reads ``export NAME=value`` lines from the script's output.

    :param login: variables and values.
    """
    lines = ["#!/bin/sh", "# Written by docker/local_cluster; changes are lost at the next start."]
    for name, value in login.items():
        line = shlex.quote(f"export {name}={value}")
        lines.append(f"grep -qz '^{name}=' /proc/self/environ || echo {line}")
    return "\n".join(lines) + "\n"


def epilog() -> str:
    """Return the script that ends remaining processes of a task or a job on its node.

    proctrack/linuxproc does not track processes whose parents have died, for example the workers of a killed torchrun;
    clusters with cgroups do. The script identifies processes by their environment. After a task (TaskEpilog) it ends
    those of the task, and after the job (Epilog) those of the job. The batch script is a task without a step id.
    """
    return """#!/bin/sh
# Written by docker/local_cluster; changes are lost at the next start.
if [ "$SLURM_SCRIPT_CONTEXT" = epilog_slurmd ]; then
    task=
elif [ -n "$SLURM_STEP_ID" ]; then
    task=yes
else
    exit 0
fi
for file in $(grep -lzx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ 2>/dev/null); do
    has() { grep -qzx "$1" "$file" 2>/dev/null; }
    pid=${file#/proc/}
    pid=${pid%/environ}
    [ "$pid" != $$ ] && has "SLURM_CONF=$SLURM_CONF" && has "SLURMD_NODENAME=$SLURMD_NODENAME" || continue
    if [ -n "$task" ]; then
        has "SLURM_STEP_ID=$SLURM_STEP_ID" && has "SLURM_PROCID=$SLURM_PROCID" || continue
    fi
    kill -KILL "$pid" 2>/dev/null
done
exit 0
"""


def slurmdbd_conf(layout: Layout, settings: Settings, machine: Machine, password: str) -> str:
    """Return slurmdbd.conf (slurmdbd.conf(5)); it contains the database password."""
    return _text(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            f"DbdAddr={machine.address}",
            f"DbdPort={settings.ports['slurmdbd']}",
            f"SlurmUser={machine.user}",
            "StorageType=accounting_storage/mysql",
            f"StorageHost={LOOPBACK}",
            f"StoragePort={settings.ports['mariadbd']}",
            f"StorageUser={DATABASE_USER}",
            f"StoragePass={password}",
            f"StorageLoc={DATABASE_NAME}",
            f"LogFile={layout.log('slurmdbd')}",
            f"PidFile={layout.runtime}/slurmdbd.pid",
            *_only_loopback(machine),
        ]
    )


def database_grants(password: str) -> str:
    """Return the SQL that makes slurmdbd's database and its account.

    slurmdbd would create the database itself after a refused connection, but then newer MariaDB libraries (Debian 13)
    read no results.

    :param password: hexadecimal digits.
    :raises ValueError: if it has other characters, because it is inserted between quotes.
    """
    if not password or not set(password) <= set("0123456789abcdef"):
        raise ValueError("the database password must be hexadecimal digits")
    account = f"'{DATABASE_USER}'@'{LOOPBACK}'"
    return _text(
        [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE_NAME};",
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{password}';",
            f"ALTER USER {account} IDENTIFIED BY '{password}';",
            f"GRANT ALL ON {DATABASE_NAME}.* TO {account};",
        ]
    )


def mariadbd_arguments(layout: Layout, settings: Settings, machine: Machine) -> list[str]:
    """Return the options of mariadbd: a small server, only on the loopback address.

    It favours speed over durability: a crash of the machine may lose a second of accounting.
    """
    return [
        "--no-defaults",
        f"--user={machine.user}",
        f"--datadir={layout.database}",
        # At its start mariadbd deletes all temporary tables in its folder, also those of other servers.
        f"--tmpdir={layout.database_temporary}",
        f"--socket={layout.runtime / 'mariadb.socket'}",
        f"--pid-file={layout.runtime / 'mariadb.pid'}",
        f"--port={settings.ports['mariadbd']}",
        f"--bind-address={LOOPBACK}",
        f"--init-file={layout.database_grants}",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=32M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-fast-shutdown=1",
        "--max-allowed-packet=16M",
    ]


def sshd_config(
    layout: Layout, settings: Settings, machine: Machine, imitation: Imitation | None = None
) -> str:
    """Return the SSH server's configuration: one user, one key, and SLURM_CONF for Slurm's commands."""
    # With SHLVL, Debian's bash does not take a command of ssh for a login: it would read ~/.bashrc before each of them,
    # with whatever the account starts there for its terminals.
    session = {"SHLVL": "1", "SLURM_CONF": str(layout.slurm_conf)}
    session |= imitation.environment if imitation else {}
    lines = [
        # sshd uses the first value of an option, so those of the imitated site come first
        *(f"{name} {value}" for name, value in (imitation.sshd if imitation else {}).items()),
        f"ListenAddress {LOOPBACK}:{settings.ports['sshd']}",
        f"HostKey {layout.host_key}",
        f"AuthorizedKeysFile {layout.authorized_keys}",
        "PidFile none",
        f"AllowUsers {machine.user}",
        "PermitRootLogin prohibit-password",
        "AuthenticationMethods publickey",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        # on the loopback interface nobody records a connection to decrypt it in years, and ssh computes 0.2 s for these
        "KexAlgorithms -sntrup761*,mlkem768*",
        f"UsePAM {'yes' if machine.password_locked else 'no'}",
        f"StrictModes {'yes' if machine.private_path else 'no'}",
        f"SetEnv {' '.join(f'{name}={value}' for name, value in session.items())}",
        "Subsystem sftp internal-sftp",
        "UseDNS no",
        "PrintMotd no",
    ]
    if machine.openssh_version >= SSHD_HAS_PENALTIES:
        lines.append("PerSourcePenalties no")
    return _text(lines)


def _only_loopback(machine: Machine) -> list[str]:
    """Return the line that makes Slurm listen only at the address of the host's name (slurm.conf(5)).

    If other machines can reach this address, the daemons listen at all addresses; every message still needs munge's
    key.
    """
    return ["CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"] if machine.only_loopback else []


def _text(lines: list[str]) -> str:
    return (
        "\n".join(["# Written by docker/local_cluster; changes are lost at the next start.", *lines]) + "\n"
    )
