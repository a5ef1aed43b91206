"""Container runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from airflow_megatron.spec.model.launch import ContainerRuntime

if TYPE_CHECKING:
    from airflow_megatron.spec.model.schema import ContainerSection

_GPUS: Final = frozenset(("--rocm", "--nv", "--nvccli"))


class Apptainer(ContainerRuntime):
    """Apptainer; with NVIDIA GPUs unless the options select another kind."""

    program: ClassVar[str] = "apptainer"

    def words(self, container: ContainerSection) -> list[str]:
        """Return ``apptainer exec`` with the image."""
        gpus = [] if _GPUS & {*container.options} else ["--nv"]
        binds = [word for bind in container.binds for word in ("--bind", bind)]
        return [self.program, "exec", *gpus, *container.options, *binds, container.image]


class Singularity(Apptainer):
    """Singularity, the former name of Apptainer."""

    program = "singularity"


class Pyxis(ContainerRuntime):
    """Pyxis, the Slurm plugin that runs Enroot; its options: https://github.com/NVIDIA/pyxis/wiki/Usage."""

    by_srun = True
    takes_env = True

    def words(self, container: ContainerSection) -> list[str]:
        """Return options of srun."""
        mounts = [f"--container-mounts={','.join(container.binds)}"] if container.binds else []
        env = [f"--container-env={','.join(container.env)}"] if container.env else []
        return [f"--container-image={container.image}", *container.options, *mounts, *env]


class ContainerEngine(ContainerRuntime):
    """CSCS's Container Engine, a plugin of Slurm's; the image is an environment definition file (EDF), or its name.

    The file names the image, the mounts and the variables: https://docs.cscs.ch/software/container-engine/edf/.
    """

    by_srun = True

    def problem(self, container: ContainerSection) -> str:
        """Refuse directories, which only the file can name, and a path that depends on srun's working directory."""
        if container.binds:
            return "no binds: write them into `mounts` of the EDF file"
        if "/" in container.image and not container.image.startswith(("/", "{{")):
            return "as image the absolute path of an EDF file, or the name of one in EDF_PATH"
        return ""

    def words(self, container: ContainerSection) -> list[str]:
        """Return options of srun. Directories that the profile binds for other runtimes are not among them."""
        return [f"--environment={container.image}", *container.options]


class Shifter(ContainerRuntime):
    """Shifter, NERSC's runtime for images of Docker registries; GPUs need the option ``--module=gpu``."""

    def words(self, container: ContainerSection) -> list[str]:
        """Return ``shifter`` with the image; a directory without a target is mounted where it is."""
        volumes = [f"--volume={bind if ':' in bind else f'{bind}:{bind}'}" for bind in container.binds]
        return ["shifter", f"--image={container.image}", *container.options, *volumes]
