"""Stage kinds. Each is a class, found by the name in ``kind:``.

Those of this package are in :mod:`airflow_megatron.megatron.stages`. Another package registers its own with an entry
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
"""Environment variable of a job: the cache, the sweep, and a line for each item that must exist before it starts."""
ReportedAs = Literal["job", "training", "benchmark", "search", "evaluation"]


@dataclass(frozen=True)
class StageProblem:
    """A problem of a job.

    :param rule: name of the check; jobs with the same problem are reported once
    :param place: keys of the stage in the spec, or the invalid param
    :param hint: what to write instead
    :param warning: whether the setting is allowed but probably unintended
    """

    rule: str
    place: tuple[str, ...]
    message: str
    hint: str
    warning: bool = False


@dataclass(frozen=True)
class CheckpointResult:
    """The output of a job for one checkpoint, which no second job may write in the same directory.

    :param program: suffix of the word in its command that names the program
    :param path: returns the result of an iteration in a run directory
    :param hint: what to do instead of writing it twice; may contain ``{checkpoints}`` and ``{model}``, directories
    """

    program: str
    path: Callable[[RunLayout, int | str], str]
    hint: str


class StageKind:
    """A kind of stage. The defaults are those of a command that runs once.

    A stage kind has no state: one object serves all jobs. Each job is submitted by one task of the DAG and watched by
    a second one, for every kind.
    """

    runs_trainer: ClassVar[bool] = False
    """Whether it runs on all GPUs, started by the launcher, with the arguments in ``megatron:``, a wrapper and a
    monitor. Such a kind extends :class:`airflow_megatron.megatron.commands.trainer_stage.TrainerStage`."""
    trains: ClassVar[bool] = False
    """Whether it writes checkpoints. It then has its own run directory, continues from its newest checkpoint in each
    attempt, has finished when the last one is complete, and supports rollbacks and health checks."""
    works_on: ClassVar[Literal["checkpoints", "models"] | None] = None
    """Its input, one or each when it is saved: Megatron's checkpoints, or models converted to Hugging Face."""
    makes_models: ClassVar[bool] = False
    """Whether it converts checkpoints to Hugging Face."""
    fetches: ClassVar[bool] = False
    """Whether it needs the internet and no Slurm, so that ``airflow-megatron prefetch`` can run its command on a login
    node."""
    needs_command: ClassVar[bool] = False
    """Whether its stages must have ``command:``."""
    reports_checkpoints: ClassVar[bool] = False
    """Whether its jobs may write checkpoints, which its task watches but does not require."""
    params: ClassVar[tuple[str, ...] | None] = None
    """The params that its command reads; similarly spelt ones are reported. None: any."""
    result: ClassVar[CheckpointResult | None] = None
    """Its output for a checkpoint."""
    template: ClassVar[str] = "command.sbatch.j2"
    """Its sbatch template: for kinds of this package in ``sbatch/``, for those of others in ``templates/`` beside the
    class. A template of that name in the project has precedence."""
    reported_as: ClassVar[ReportedAs] = "job"
    """The part of the report and of the results for its jobs, in addition to the table of all jobs; they must write
    the files that this part reads."""

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
        """Return its output file for one checkpoint, for kinds that process checkpoints or models.

        :param iteration: iteration of the checkpoint, or ``{iteration}`` for any
        """
        raise NotImplementedError(f"{type(self).__name__} does not work on checkpoints")

    def runs_first_on_login_node(self, job: Job) -> bool:
        """Return whether a job's command runs on a login node before the job is submitted, and again in the job."""
        return False

    def outputs(self, job: Job) -> tuple[str, ...]:
        """Return absolute paths of files that a successful job must have written, in addition to ``outputs:``."""
        return ()

    def environment_of_later(self, job: Job, cluster: ClusterProfile) -> Mapping[str, str]:
        """Return environment variables for the following jobs, unless the spec sets them.

        :raises CommandError: if a param is missing, unknown or of the wrong type
        """
        return {}

    def problems(self, job: Job) -> Iterable[StageProblem]:
        """Return the problems of a job, other than those of its command, before its submission."""
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
    """Return the names of the kinds with a trait (``runs_trainer``, ``works_on``, …), for messages."""
    return [name for name, kind in STAGE_KINDS.usable().items() if getattr(kind, trait)]
