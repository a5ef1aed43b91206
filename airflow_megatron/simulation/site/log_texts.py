"""The last log lines of a job by the cause of its end, in the words of PyTorch, NCCL, Megatron and Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.simulation.site.site import IncidentKind

_NCCL: Final = (
    "[{other}:1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error\n"
)
_CHILD: Final = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: pretrain_gpt.py FAILED\n"

_LINES: Final[Mapping[IncidentKind, str]] = {
    "gpu": "[{node}:3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
    + _NCCL
    + _CHILD,
    "network": _NCCL + _CHILD,
    "software": "[{node}:0]: RuntimeError: DataLoader worker (pid 91) exited unexpectedly\n" + _CHILD,
    "bug": "[{node}:0]: IndexError: index 50304 is out of bounds for dimension 0 with size 50304\n" + _CHILD,
    "file_system": "[{node}:2]: OSError: [Errno 116] Stale file handle\n" + _CHILD,
    "nan": "[{node}:5]: RuntimeError: found NaN in local grad norm in backward pass\n" + _CHILD,
    "hang": "[{other}:1]: [rank9]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
    + _CHILD,
    "node_down": (
        "srun: error: Node failure on {node}\n"
        "slurmstepd: error: *** JOB 7 ON {other} CANCELLED AT 2026-01-05T10:00:00 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***\n"
    ),
    "preemption": (
        "slurmstepd: error: *** JOB 7 ON {other} CANCELLED AT 2026-01-05T10:00:00 DUE TO PREEMPTION ***\n"
    ),
}

WALLTIME_STOP: Final = b"exiting program after receiving SIGTERM.\n"
WALLTIME_KILL: Final = (
    b"slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026-01-05T10:00:00 DUE TO TIME LIMIT ***\n"
)


def last_lines(kind: IncidentKind, node: str, other: str, *, named: bool = True) -> bytes:
    """Return the last log lines after an incident.

    :param kind: what happened.
    :param node: the failed node.
    :param other: another node of the job.
    :param named: whether the failing rank logs an error; otherwise only other ranks report a broken connection.
    """
    text = _LINES[kind] if named else _NCCL + _CHILD
    return text.format(node=node, other=other).encode()


def unreadable_checkpoint(iteration: int) -> bytes:
    """Return the last log lines when a checkpoint cannot be loaded."""
    return (
        "[n00000:0]: megatron.core.dist_checkpointing.core.CheckpointingException: "
        f"cannot read checkpoints/iter_{iteration:07d}\n{_CHILD}"
    ).encode()
