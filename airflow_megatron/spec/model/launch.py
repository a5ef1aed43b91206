"""How the commands of a job start: in which container, and which program starts the processes of a training.

Both are classes, found by the names that a cluster profile gives. This package's own stand in
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
    """What a container runtime knows of the job that it starts.

    :param gpus: whether the job requests GPUs
    :param variables: names of the variables that the profile, the spec and its secrets set in the job
    """

    gpus: bool = False
    variables: tuple[str, ...] = ()


class ContainerRuntime:
    """A container runtime: the words that run a command in a container."""

    by_srun: ClassVar[bool] = False
    """It is a plugin of Slurm's: srun starts the container, and :meth:`words` are options of srun."""
    takes_env: ClassVar[bool] = False
    """It takes names of variables, ``container.env``, whose values in the job replace those of the image."""

    inherits: ClassVar[bool] = True
    """What starts the container passes its own environment and open files on to the command."""

    def problem(self, container: ContainerSection) -> str:
        """Return what is expected in place of a container that the runtime cannot start; empty if it can."""
        return ""

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return the words before a command, each quoted where it is written into a script."""
        raise NotImplementedError(f"{type(self).__name__} has no words")

    def alone(self, container: ContainerSection) -> list[str]:
        """Return the words that run one command in the container, on the first node of a job and beside its work.

        The command needs no GPUs and no variables.
        """
        beside = ["srun", "--overlap", "--nodes=1", "--ntasks=1"] if self.by_srun else []
        return [*beside, *self.words(container, ContainedJob())]


@dataclass(frozen=True)
class Launch:
    """Processes of a training that are to be started; there is more than one.

    :param python: of the trainer
    :param processes: all of them
    :param per_node: of them on each node
    :param nodes: number of nodes
    :param hosts_file: where a list of the nodes can be written, quoted for the shell
    :param wrapped: words of the spec's stand before the interpreter
    :param named: the profile gives the address at which the processes meet, ``$MASTER_ADDR``, which may be none that a
        node finds to be its own
    :param local_addr: shell text that gives the address of a node on it; None for its host name
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
    """Every trainer takes its ranks from it; else those that name it in ``launchers``."""
    one_task_per_process: ClassVar[bool] = False
    """Slurm gives each process a task of its own, not each node."""
    reaches_srun_containers: ClassVar[bool] = True
    """It can start processes in a container that srun or a daemon starts."""

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
        """Return lines of shell before it is started, each with its end."""
        return ""

    def rest(self, launch: Launch) -> str:
        """Return shell text after :meth:`words`: what is known in the job alone, and :data:`COMMAND`."""
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
