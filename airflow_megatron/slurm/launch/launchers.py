"""Programs that start the processes of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.model.launch import COMMAND, WITHOUT_PYTHON, Launcher

if TYPE_CHECKING:
    from airflow_megatron.spec.model.launch import Launch

_RANKS: Final = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"


class Torchrun(Launcher):
    """PyTorch's ``torchrun``, one on each node; under srun on several nodes."""

    def under_srun(self, nodes: int) -> bool:
        """Return whether there are several nodes."""
        return nodes > 1

    def words(self, launch: Launch) -> list[str]:
        """Return torchrun itself, after a shell for values that are known only on each node.

        Torchrun finds the node that hosts the rendezvous by comparing the address with the node's own names. An
        address that the profile gives, such as that of another network, may not be one of them, so the first node is
        declared the host.
        """
        several = [f"--nnodes={launch.nodes}"] if launch.nodes > 1 else ["--standalone"]
        torchrun = [launch.python, "-m", "torch.distributed.run"]
        words = [*torchrun, f"--nproc-per-node={launch.per_node}", *several]
        on_node = []
        if launch.nodes > 1 and launch.named:
            on_node.append('--rdzv-conf="is_host=$((SLURM_NODEID == 0))"')
        if launch.nodes > 1 and launch.local_addr:
            on_node.append(f'--local-addr="{launch.local_addr}"')
        if not on_node:
            return words
        shell = f'exec "${{@:1:{len(torchrun)}}}" {" ".join(on_node)} "${{@:{len(torchrun) + 1}}}"'
        return ["bash", "-c", shell, "torchrun", *words]

    def rest(self, launch: Launch) -> str:
        """Return the rendezvous options and the program; torchrun starts Python unless a wrapper precedes it."""
        meet = (
            '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" '
            if launch.nodes > 1
            else ""
        )
        return f"{meet}{f'--no-python {COMMAND}' if launch.wrapped else WITHOUT_PYTHON}"


class Srun(Launcher):
    """Slurm's srun, a task for each process."""

    one_task_per_process = True

    def under_srun(self, nodes: int) -> bool:
        """Return true: it is srun."""
        return True

    def rest(self, launch: Launch) -> str:
        """Return a shell that gives the process its rank."""
        return f"bash -c '{_RANKS}; exec \"$@\"' rank {COMMAND}"


class Mpiexec(Launcher):
    """An MPI launcher that uses Slurm's list of nodes; trainers read their ranks from MPI."""

    for_every_trainer = False
    one_task_per_process = True
    reaches_srun_containers = False

    def words_before_container(self, launch: Launch) -> list[str]:
        """Return mpiexec itself, which starts a container for each process."""
        return ["mpiexec", "-n", str(launch.processes), "-ppn", str(launch.per_node)]


class DeepSpeed(Launcher):
    """DeepSpeed's launcher over MPICH; its other modes start the processes of one node without MPI."""

    for_every_trainer = False

    def words(self, launch: Launch) -> list[str]:
        """Return the launcher itself."""
        return [
            *(launch.python, "-m", "deepspeed.launcher.runner"),
            *("--force_multi", "--no_ssh_check", "--launcher", "MPICH"),
        ]

    def preparation(self, launch: Launch) -> str:
        """Return lines that write the nodes into a file."""
        slots = launch.processes // launch.nodes
        return f"hosts={launch.hosts_file}\nscontrol show hostnames | sed 's/$/ slots={slots}/' >\"$hosts\"\n"

    def rest(self, launch: Launch) -> str:
        """Return the rendezvous options and the program; the launcher starts Python unless a wrapper precedes it."""
        meet = '--hostfile "$hosts" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"'
        return f"{meet} {f'--no_python {COMMAND}' if launch.wrapped else WITHOUT_PYTHON}"
