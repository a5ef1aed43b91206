"""Room for a job on a cluster: the user's queue, the partition's state, and Slurm's estimate of the start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.spec.trust.json_records import real, whole, word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.slurm.remote.transport import CommandResult

_CLOSED = frozenset({"down", "drain", "drained", "inact", "inactive"})


@dataclass(frozen=True)
class ClusterRoom:
    """The room on a cluster for a job at one moment.

    :param queued: names of the user's jobs that wait or run; every task of an array counts
    :param pending: number of those that wait
    :param ended: names of the user's jobs that have ended and that squeue still lists
    :param partition: state of the job's partition by sinfo; empty if unknown
    :param wait_s: seconds until Slurm would start the job, None without an estimate
    :param refused: why Slurm would refuse the job; empty if it would not
    :param problem: why the cluster did not answer; empty if it did
    :param is_final: whether it cannot answer before a user changes something
    """

    queued: tuple[str, ...] = ()
    pending: int = 0
    ended: tuple[str, ...] = ()
    partition: str = ""
    wait_s: float | None = None
    refused: str = ""
    problem: str = ""
    is_final: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether the partition starts no jobs."""
        return self.partition.rstrip("*") in _CLOSED

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClusterRoom:
        """Return what :meth:`to_json` described; a missing key has its default."""
        return cls(
            queued=tuple(map(str, data.get("queued") or ())),
            pending=whole(data.get("pending"), 0),
            ended=tuple(map(str, data.get("ended") or ())),
            partition=word(data.get("partition")) or "",
            wait_s=real(data.get("wait_s")),
            refused=word(data.get("refused")) or "",
            problem=word(data.get("problem")) or "",
            is_final=data.get("is_final") is True,
        )


def room_script(directives: Sequence[str], partition: str | None, commands: SlurmCommands) -> str:
    """Return the remote script that queries the partition's state and an estimate.

    :param directives: options of ``#SBATCH`` lines of the job
    :param partition: the job's partition, None for the default one
    :param commands: how Slurm's commands are called
    """
    script = "\n".join(["#!/bin/sh", *(f"#SBATCH {directive}" for directive in directives), "true"])
    functions = "\n".join(f'am_{name}() {{ {commands.command(name)} "$@"; }}' for name in ("sinfo", "sbatch"))
    calls = f"am_partition {quote(partition or '')}\nam_estimate {here_document(script)}"
    return framed("\n".join([functions, shell_file("cluster_room"), calls]))


def cluster_room(
    directives: Sequence[str],
    partition: str | None,
    commands: SlurmCommands,
    run: Callable[[str], CommandResult],
) -> ClusterRoom:
    """Query the room for a job on a cluster, with two remote commands that change nothing.

    :param run: runs a script on the login node
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    watch = Watch("queue", whole_queue=True)
    seen = parse_poll([watch], run(poll_script([watch], commands)))[watch.key]
    if not seen.queue_ok:
        return ClusterRoom(problem="squeue does not answer")
    jobs = seen.user_jobs.values()
    found: dict[str, str] = {}
    for line in unframed(run(room_script(directives, partition, commands))):
        key, _, value = line.partition(" ")
        found.setdefault(key, value.strip())
    return ClusterRoom(
        queued=tuple(row.name for row in jobs if not row.state.ended),
        pending=sum(row.state.value == "PENDING" for row in jobs),
        ended=tuple(row.name for row in jobs if row.state.ended),
        partition=found.get("partition", ""),
        wait_s=real(found.get("wait")),
        refused=found.get("refused", "")[:300],
    )
