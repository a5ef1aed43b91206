"""Stage kinds: what a stage can be. Each is a class, found by the name that ``kind:`` gives.

This package's own stand in :mod:`airflow_megatron.megatron.stages`. Another package registers its own with an entry
point of the group ``airflow_megatron.stage_kinds``; CONTRIBUTING.md shows one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from airflow_megatron.spec.registry.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_megatron.spec.layout.run_layout import RunLayout
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

TEMPLATES_FOLDER: Final = "templates"
"""Folder of another package's templates, beside the module of its class."""
PREFETCHED: Final = "AIRFLOW_MEGATRON_PREFETCHED"
"""Environment variable of a job: the cache, the sweep, and a line for each item that must be there before it starts."""
ReportedAs = Literal["job", "training", "benchmark", "search", "evaluation"]


@dataclass(frozen=True)
class StageProblem:
    """What is wrong with a job.

    :param rule: names the check; jobs with the same problem are reported once
    :param place: keys of the stage in the spec, or the param that is at fault
    :param hint: what to write instead
    :param warning: it is whether the setting is allowed but probably unintended
    """

    rule: str
    place: tuple[str, ...]
    message: str
    hint: str
    warning: bool = False


@dataclass(frozen=True)
class CheckpointResult:
    """What a job makes of one checkpoint, which no second job may make in the same directory.

    :param program: end of the word in its command that names the program
    :param path: returns the result of an iteration in a run directory
    :param hint: what to do instead of making it twice; may hold ``{checkpoints}`` and ``{model}``, directories
    """

    program: str
    path: Callable[[RunLayout, int | str], str]
    hint: str


class StageKind:
    """A kind of stage. The defaults are those of a command that runs once.

    A stage kind holds no state: one object serves all jobs. Each job is submitted by one task of the DAG and watched
    by a second, whatever its kind.
    """

    runs_trainer: ClassVar[bool] = False
    """It runs on all GPUs, started by the launcher, and takes the arguments in ``megatron:``, a wrapper and a
    monitor. Such a kind extends :class:`airflow_megatron.megatron.commands.trainer_stage.TrainerStage`."""
    trains: ClassVar[bool] = False
    """It makes checkpoints: it has a run directory of its own, continues from its newest checkpoint with each attempt,
    has finished when the last one is complete, and can be rolled back and watched for its health."""
    works_on: ClassVar[Literal["checkpoints", "models"] | None] = None
    """What it works on, one or each as it comes: Megatron's checkpoints, or models converted to Hugging Face."""
    makes_models: ClassVar[bool] = False
    """It converts checkpoints to Hugging Face."""
    fetches: ClassVar[bool] = False
    """It needs the internet, and no Slurm: ``airflow-megatron prefetch`` runs its command on a login node."""
    needs_command: ClassVar[bool] = False
    """Its stages must have ``command:``."""
    reports_checkpoints: ClassVar[bool] = False
    """Its jobs may write checkpoints, which its task watches, although it has finished without one."""
    params: ClassVar[tuple[str, ...] | None] = None
    """The params that its command reads; others that are spelt alike are reported. None: it reads any."""
    result: ClassVar[CheckpointResult | None] = None
    """The kind of output that it makes from a checkpoint."""
    template: ClassVar[str] = "command.sbatch.j2"
    """Its sbatch template: of this package in ``sbatch/``, of another one in ``templates/`` beside the class. The
    project's own template of that name wins."""
    reported_as: ClassVar[ReportedAs] = "job"
    """Which part of the report and of the results its jobs are in, besides the table of all jobs: they leave the same
    files as that part reads."""

    @property
    def searches(self) -> bool:
        """Whether it searches for a learning rate."""
        return self.reported_as == "search"

    @property
    def loads_checkpoint(self) -> bool:
        """Whether it can begin with a checkpoint from outside the sweep, ``start: {from: …}``."""
        return self.trains or self.works_on is not None

    def command(self, job: Job, cluster: ClusterProfile) -> tuple[str, ...]:
        """Return the command of a job whose stage has no ``command:``.

        :raises CommandError: if a param is missing, unknown or of the wrong type
        """
        raise NotImplementedError(f"{type(self).__name__} has no command")

    def done(self, layout: RunLayout, iteration: int | str) -> str:
        """Return the file that its work on one checkpoint leaves; of kinds that work on checkpoints or models.

        :param iteration: of the checkpoint, or ``{iteration}`` for any
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on checkpoints")

    def runs_first_on_login_node(self, job: Job) -> bool:
        """Return whether a job's command runs on a login node before the job is submitted; it is run again there."""
        return False

    def outputs(self, job: Job) -> tuple[str, ...]:
        """Return the files, absolute, without which a job that ended well has not finished, besides ``outputs:``."""
        return ()

    def environment_of_later(self, job: Job, cluster: ClusterProfile) -> Mapping[str, str]:
        """Return environment variables that the jobs after this one get, unless the spec gives them.

        :raises CommandError: if a param is missing, unknown or of the wrong type
        """
        return {}

    def problems(self, job: Job) -> Iterable[StageProblem]:
        """Return the problems of a job besides its command, before it is submitted."""
        return ()


_STAGES: Final = "airflow_megatron.megatron.stages"
STAGE_KINDS: Final = Registry(
    StageKind,
    "airflow_megatron.stage_kinds",
    {
        "train": f"{_STAGES}.train:Train",
        "lr_finder": f"{_STAGES}.lr_finder:LrFinder",
        "benchmark": f"{_STAGES}.benchmark:Benchmark",
        "convert": f"{_STAGES}.convert:Convert",
        "evaluate": f"{_STAGES}.evaluate:Evaluate",
        "prefetch": f"{_STAGES}.prefetch:Prefetch",
        "command": f"{_STAGES}.command:Command",
    },
)


def kinds_with(trait: str) -> list[str]:
    """Return the names of the kinds of which a trait (``runs_trainer``, ``works_on``, …) holds, for messages."""
    return [name for name in STAGE_KINDS.names() if getattr(STAGE_KINDS[name], trait)]
