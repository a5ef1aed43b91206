"""The start of the commands of a job: the container runtime, and the launcher of the processes of a training.

Both are classes, found by their names in a cluster profile. Those of this package are in
:mod:`airflow_megatron.slurm.launch`; another package registers its own with entry points of the groups
``airflow_megatron.container_runtimes`` and ``airflow_megatron.launchers``, as CONTRIBUTING.md shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_megatron.spec.registry.registry import Registry

if TYPE_CHECKING:
    from airflow_megatron.spec.model.schema import ContainerSection


@dataclass(frozen=True)
class ContainedJob:
    """The properties of a job for its container runtime.

    :param gpus: whether the job requests GPUs
    :param variables: names of the variables that the profile, the spec and its secrets set in the job
    """

    gpus: bool = False
    variables: tuple[str, ...] = ()


class ContainerRuntime:
    """A container runtime: the words that run a command in a container."""

    by_srun: ClassVar[bool] = False
    """Whether it is a plugin of Slurm: srun starts the container, and :meth:`words` are options of srun."""
    takes_env: ClassVar[bool] = False
    """Whether it supports ``container.env``, names of variables whose values in the job replace those of the image."""

    instead_of_binds: ClassVar[str] = ""
    """What to write instead of ``container.binds``; empty if it supports them."""
    inherits: ClassVar[bool] = True
    """Whether the command inherits the environment and open files of the process that starts the container."""

    def problem(self, container: ContainerSection) -> str:
        """Return what to write instead of a container that the runtime cannot start; empty if it can."""
        return ""

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return the words before a command, each of which is quoted in a script."""
        raise NotImplementedError(f"{type(self).__name__} has no words")

    def alone(self, container: ContainerSection) -> list[str]:
        """Return the words that run a separate command in the container, on the first node of a job.

        The command needs no GPUs and no variables.
        """
        beside = ["srun", "--overlap", "--nodes=1", "--ntasks=1"] if self.by_srun else []
        return [*beside, *self.words(container, ContainedJob())]


@dataclass(frozen=True)
class Launch:
    """The processes of a training to start, more than one.

    :param python: Python interpreter of the trainer
    :param processes: total number of processes
    :param per_node: number of processes on each node
    :param nodes: number of nodes
    :param hosts_file: path for a list of the nodes, quoted for the shell
    :param wrapped: whether a wrapper of the spec precedes the interpreter
    :param named: whether the profile sets the rendezvous address, ``$MASTER_ADDR``, which a node may not recognise as
        its own
    :param local_addr: shell text that prints the address of a node, run on the node; None for its host name
    """

    python: str
    processes: int
    per_node: int
    nodes: int
    hosts_file: str
    wrapped: bool
    named: bool = False
    local_addr: str | None = None


COMMAND: Final = '"${command[@]}"'
"""All words of the command, in a job's script."""
WITHOUT_PYTHON: Final = '"${command[@]:1}"'


class Launcher:
    """A program that starts the processes of a training."""

    for_every_trainer: ClassVar[bool] = True
    """Whether every trainer reads its ranks from it; otherwise only trainers that list it in ``launchers``."""
    one_task_per_process: ClassVar[bool] = False
    """Whether Slurm starts one task per process instead of one per node."""
    reaches_srun_containers: ClassVar[bool] = True
    """Whether it can start processes in a container that srun or a daemon starts."""

    def under_srun(self, nodes: int) -> bool:
        """Return whether srun starts it, or the processes: with ``ntasks-per-node`` as its tasks are."""
        return False

    def words_before_container(self, launch: Launch) -> list[str]:
        """Return the words before those of the container."""
        return []

    def words(self, launch: Launch) -> list[str]:
        """Return the words before the command, in the container."""
        return []

    def preparation(self, launch: Launch) -> str:
        """Return lines of shell before its start, each with a line break."""
        return ""

    def rest(self, launch: Launch) -> str:
        """Return shell text after :meth:`words`: values that are known only in the job, and :data:`COMMAND`."""
        return COMMAND


_LAUNCH: Final = "airflow_megatron.slurm.launch"
CONTAINER_RUNTIMES: Final = Registry(
    ContainerRuntime,
    "airflow_megatron.container_runtimes",
    {
        "apptainer": f"{_LAUNCH}.container_runtimes:Apptainer",
        "singularity": f"{_LAUNCH}.container_runtimes:Singularity",
        "pyxis": f"{_LAUNCH}.container_runtimes:Pyxis",
        "ce": f"{_LAUNCH}.container_runtimes:ContainerEngine",
        "docker": f"{_LAUNCH}.container_runtimes:Docker",
        "podman-hpc": f"{_LAUNCH}.container_runtimes:PodmanHpc",
        "podman-hpc-shared": f"{_LAUNCH}.container_runtimes:SharedPodmanHpc",
        "shifter": f"{_LAUNCH}.container_runtimes:Shifter",
    },
)
LAUNCHERS: Final = Registry(
    Launcher,
    "airflow_megatron.launchers",
    {
        "torchrun": f"{_LAUNCH}.launchers:Torchrun",
        "srun": f"{_LAUNCH}.launchers:Srun",
        "mpiexec": f"{_LAUNCH}.launchers:Mpiexec",
        "deepspeed": f"{_LAUNCH}.launchers:DeepSpeed",
    },
)
