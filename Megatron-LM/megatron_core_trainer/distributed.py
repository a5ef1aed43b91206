"""Process groups: the rank of this process, its connection to the others, and its random seeds."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ProcessPlace:
    """The rank of a process in its job, and the address where the processes meet."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list, for example ``n3`` of ``n[3-5,9]``.

    :param nodelist: a list in the format of ``SLURM_STEP_NODELIST``.
    """
    match = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodelist)
    if not match:
        raise ValueError(f"cannot read a host name from the node list {nodelist!r}")
    return match[1] + (match[2] or "") + (match[3] or "")


def place_from_environment(environ: Mapping[str, str]) -> ProcessPlace:
    """Read the place of a process from the variables of torchrun or srun; without these it is the only process.

    srun is recognised by ``SLURM_STEP_NUM_TASKS``, which a batch script itself does not have. The processes meet at
    ``MASTER_ADDR``/``MASTER_PORT`` if set, otherwise at the step's first host and a port derived from the job id. The
    only process of a training uses any free port (0).

    :param environ: the environment.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank = int(environ.get("LOCAL_RANK", "0"))
    elif "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        rank, world_size = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
        local_rank = int(environ.get("SLURM_LOCALID", "0"))
    else:
        rank, world_size, local_rank = 0, 1, 0
    master_addr = environ.get("MASTER_ADDR")
    if master_addr is None:
        nodelist = environ.get("SLURM_STEP_NODELIST")
        master_addr = first_host(nodelist) if nodelist and world_size > 1 else "127.0.0.1"
    job_id = int(environ.get("SLURM_JOB_ID", "0"))
    port = 10000 + job_id % 20000 if world_size > 1 else 0
    master_port = int(environ.get("MASTER_PORT", str(port)))
    return ProcessPlace(rank, world_size, local_rank, master_addr, master_port)


def initialize_process_groups(
    place: ProcessPlace,
    *,
    backend: str,
    timeout_minutes: int,
    tensor_model_parallel_size: int,
    pipeline_model_parallel_size: int,
) -> None:
    """Connect to the other processes and create megatron-core's parallel groups.

    A single process needs no fixed port, so any number of such jobs can share a host.

    :param place: this process.
    :param backend: ``gloo`` or ``nccl``.
    :param timeout_minutes: limit of one collective call.
    :param tensor_model_parallel_size: tensor parallel size.
    :param pipeline_model_parallel_size: pipeline parallel size.
    """
    import torch
    from megatron.core import parallel_state

    timeout = timedelta(minutes=timeout_minutes)
    store = None
    if place.world_size == 1:
        store = torch.distributed.HashStore()
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place.master_addr, str(place.master_port)
    torch.distributed.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size,
        pipeline_model_parallel_size,
        distributed_timeout_minutes=timeout_minutes,
        create_gloo_process_groups=True,
    )


def initialize_alone(backend: str) -> None:
    """Create the process groups and random states of a single process.

    :param backend: ``gloo`` or ``nccl``.
    """
    initialize_process_groups(
        ProcessPlace(0, 1, 0, "127.0.0.1", 0),
        backend=backend,
        timeout_minutes=10,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
    )
    set_random_seeds(1)


def set_random_seeds(seed: int) -> None:
    """Seed Python, NumPy and torch; pipeline stages get different seeds, data-parallel replicas the same.

    :param seed: ``--seed``, above zero.
    """
    import numpy as np
    import torch
    from megatron.core import parallel_state, tensor_parallel

    seed += 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def max_over_ranks(*values: float) -> list[float]:
    """Return the element-wise maximum over all processes.

    :param values: this process's values.
    """
    import torch

    if torch.distributed.get_world_size() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def leave() -> None:
    """Leave the process groups without an error if another process is slower."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
