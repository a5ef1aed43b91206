"""Container runtimes.

Variables that each passes into the container, by its documentation and source (read 2026-11-23):

- Apptainer, Singularity, Shifter, pyxis and the Container Engine: all variables of the job; those of the image win.
- docker and podman-hpc: only those that ``--env`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from airflow_megatron.spec.model.launch import ContainerRuntime

if TYPE_CHECKING:
    from airflow_megatron.spec.model.launch import ContainedJob
    from airflow_megatron.spec.model.schema import ContainerSection

_GPUS: Final = frozenset(("--rocm", "--nv", "--nvccli"))
_EXPORTED: Final = (
    'for am_name in $2; do if [ -n "${!am_name+x}" ]; then export "$1$am_name=${!am_name}"; fi; done; '
    'shift 2; exec "$@"'
)
"""Shell text: exports variables under a prefix also, then runs a command. Words: prefix, names, command."""
_EXPORTED_AS_SHELL_TEXT: Final = (
    'for am_name in $2; do if [ -n "${!am_name+x}" ]; then am_value=${!am_name}; '
    r"am_value=${am_value//\\/\\\\}; am_value=${am_value//\$/\\\$}; am_value=${am_value//\`/\\\`}; "
    'export "$1$am_name=$am_value"; fi; done; shift 2; exec "$@"'
)
"""The same, for a reader that evaluates the values as a shell does within double quotes."""
_OF_THE_JOB: Final = "AM_OF_THE_JOB_"
_RESTORED: Final = (
    f'for am_name in $1; do if eval "[ -n \\"\\${{{_OF_THE_JOB}$am_name+x}}\\" ]"; '
    f'then eval "export $am_name=\\"\\${_OF_THE_JOB}$am_name\\""; fi; done; shift; exec "$@"'
)
"""Shell text for any ``sh``: takes back the variables that were exported under the prefix, then runs a command."""


class Apptainer(ContainerRuntime):
    """Apptainer; with NVIDIA GPUs unless the options select another kind.

    The environment: https://apptainer.org/docs/user/main/environment_and_metadata.html.
    """

    takes_env = True
    program: ClassVar[str] = "apptainer"
    prefix: ClassVar[str] = "APPTAINERENV_"
    """Variables with this prefix replace those of the image. Without ``--no-eval``, a shell evaluates their values."""

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return ``apptainer exec`` with the image, after a shell that exports the variables of ``env``."""
        gpus = [] if _GPUS & {*container.options} else ["--nv"]
        binds = [word for bind in container.binds for word in ("--bind", bind)]
        text = _EXPORTED if "--no-eval" in container.options else _EXPORTED_AS_SHELL_TEXT
        env = ["bash", "-c", text, "env", self.prefix, " ".join(container.env)] if container.env else []
        return [*env, self.program, "exec", *gpus, *container.options, *binds, container.image]


class Singularity(Apptainer):
    """Singularity, the former name of Apptainer."""

    program = "singularity"
    prefix = "SINGULARITYENV_"


class Pyxis(ContainerRuntime):
    """Pyxis, the Slurm plugin that runs Enroot; its options: https://github.com/NVIDIA/pyxis/wiki/Usage."""

    by_srun = True
    takes_env = True

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return options of srun."""
        mounts = [f"--container-mounts={','.join(container.binds)}"] if container.binds else []
        env = [f"--container-env={','.join(container.env)}"] if container.env else []
        return [f"--container-image={container.image}", *container.options, *mounts, *env]


class ContainerEngine(ContainerRuntime):
    """CSCS's Container Engine, a plugin of Slurm's; the image is an environment definition file (EDF), or its name.

    The file names the image, the mounts and the variables: https://docs.cscs.ch/software/container-engine/edf/.
    """

    by_srun = True
    instead_of_binds = "write them into mounts of the EDF file"

    def problem(self, container: ContainerSection) -> str:
        """Refuse a path that depends on srun's working directory."""
        if "/" in container.image and not container.image.startswith(("/", "{{")):
            return "as image the absolute path of an EDF file, or the name of one in EDF_PATH"
        return ""

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return options of srun. Directories that the profile binds for other runtimes are not among them."""
        return [f"--environment={container.image}", *container.options]


class Shifter(ContainerRuntime):
    """Shifter, NERSC's runtime for images of Docker registries; GPUs need the option ``--module=gpu``.

    Its ``--env NAME=VALUE`` would show the values of secrets in the list of processes. So variables of ``env`` enter
    the container under other names, and a shell in it renames them.
    """

    takes_env = True

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return ``shifter`` with the image; a directory without a target is mounted where it is."""
        volumes = [f"--volume={bind}" for bind in map(_with_target, container.binds)]
        words = ["shifter", f"--image={container.image}", *container.options, *volumes]
        if not container.env:
            return words
        names = " ".join(container.env)
        before = ["bash", "-c", _EXPORTED, "env", _OF_THE_JOB, names]
        return [*before, *words, "sh", "-c", _RESTORED, "env", names]


class Docker(ContainerRuntime):
    """Docker: only named variables reach the container, and its daemon starts it, not Slurm.

    Variables are passed by name, so that no value is in the list of processes. The daemon's containers are outside
    of Slurm's control groups: a job needs whole nodes, and the container of a client that was killed remains. The
    label ``slurm.job`` lets the site's Epilog find it.
    https://docs.docker.com/reference/cli/docker/container/run/
    """

    takes_env = True
    inherits = False
    command: ClassVar[tuple[str, ...]] = ("docker", "run")
    all_gpus: ClassVar[str] = "--gpus=all"
    """For a job with GPUs, unless the options of the container select them."""
    options: ClassVar[str] = (
        '--init --user="$(id -u):$(id -g)" $(printf -- " --group-add=%s" $(id -G)) '
        '--label=slurm.job="${SLURM_JOB_ID-}"'
    )
    """Shell text: a process with id 1 that forwards signals, and the user of the job, who owns the written files."""

    def words(self, container: ContainerSection, job: ContainedJob) -> list[str]:
        """Return a shell that starts the container with values known on the node: the user, Slurm's variables."""
        start = (
            f"am_slurm=(${{!SLURM@}}); exec {' '.join(self.command)} --rm --network=host --ipc=host --entrypoint= "
            f'{self.options} --workdir="$PWD" "${{am_slurm[@]/#/--env=}}" "$@"'
        )
        names = [f"--env={name}" for name in dict.fromkeys((*_RANKS, *job.variables, *container.env))]
        selected = any(mark in option for option in container.options for mark in _SELECTS_GPUS)
        gpus = [self.all_gpus] if job.gpus and not selected else []
        volumes = [f"--volume={bind}" for bind in map(_with_target, container.binds)]
        return [
            *("bash", "-c", start, self.command[0]),
            *(*names, *gpus, *container.options, *volumes, container.image),
        ]


class PodmanHpc(Docker):
    """podman-hpc, NERSC's rootless podman: a container for each task; the user is root in it, and owns the files that
    it writes.

    Options such as ``--nccl`` are the site's modules: https://github.com/NERSC/podman-hpc.
    """

    command = ("podman-hpc", "run")
    all_gpus = "--gpu"
    options = "--pid=host"
    """A process with the id 1 would ignore TERM."""


class SharedPodmanHpc(PodmanHpc):
    """podman-hpc with one container on each node for all its tasks, for the launcher ``srun``."""

    command = ("podman-hpc", "shared-run")


_SELECTS_GPUS: Final = ("--gpu", "/dev/kfd", "/dev/dri", "/dev/nvidia", "nvidia.com/gpu", "amd.com/gpu")
_RANKS: Final = (
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "LOGNAME", "USER"),
)
"""Variables that every job needs; a name whose variable is not set is ignored. Slurm's are added on the node."""


def _with_target(bind: str) -> str:
    return bind if ":" in bind else f"{bind}:{bind}"
