"""Container runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from airflow_megatron.spec.model.launch import ContainerRuntime

if TYPE_CHECKING:
    from airflow_megatron.spec.model.schema import ContainerSection

_GPUS: Final = frozenset(("--rocm", "--nv", "--nvccli"))


class Apptainer(ContainerRuntime):
    """Apptainer; with NVIDIA's GPUs unless the options say which."""

    program: ClassVar[str] = "apptainer"

    def words(self, container: ContainerSection) -> list[str]:
        """Return ``apptainer exec`` with the image."""
        gpus = [] if _GPUS & {*container.options} else ["--nv"]
        binds = [word for bind in container.binds for word in ("--bind", bind)]
        return [self.program, "exec", *gpus, *container.options, *binds, container.image]


class Singularity(Apptainer):
    """Singularity, which Apptainer was."""

    program = "singularity"


class Pyxis(ContainerRuntime):
    """Pyxis, the plugin of Slurm's that runs Enroot."""

    by_srun = True

    def words(self, container: ContainerSection) -> list[str]:
        """Return options of srun."""
        mounts = [f"--container-mounts={','.join(container.binds)}"] if container.binds else []
        return [f"--container-image={container.image}", *container.options, *mounts]
