"""Schema of sweep specs: pydantic models, from which the JSON Schema for editors is made as well.

Validation errors are turned into :class:`~airflow_megatron.spec.documents.errors.Problem` with file, line and hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES, LAUNCHERS
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.registry.registry import RegisteredName
from airflow_megatron.spec.trust.reserved_variables import is_reserved
from airflow_megatron.spec.trust.secret_names import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

CONNECTION_FIELDS: Final = ("password", "login", "host", "schema")
"""What of an Airflow connection a secret may be, besides a key of its extras."""
EXTRA_FIELD: Final = "extra."
"""What stands before the key of a connection's extras."""

Expression: TypeAlias = Annotated[str, StringConstraints(pattern=r"\{\{")]
"""A string that holds a ``{{ … }}`` expression."""

IntValue: TypeAlias = Annotated[int, Field(ge=0, strict=True)] | Expression
Duration: TypeAlias = Annotated[
    int | Expression,
    BeforeValidator(
        lambda value: value if isinstance(value, str) and "{{" in value else parse_duration(value)
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "description": "Seconds."},
                {"type": "string", "pattern": r"\{\{|^\s*\d", "examples": ["30m", "6h", "1-12:00:00"]},
            ]
        }
    ),
]
"""Seconds; ``30m``, ``6h``, ``06:00:00`` and expressions are read too."""


def _unreserved(name: str) -> str:
    if is_reserved(name):
        raise ValueError(f"another name: {name} belongs to the system, to Slurm or to job scripts")
    return name


def _field_of_connection(name: str) -> str:
    if name not in CONNECTION_FIELDS and not (name.startswith(EXTRA_FIELD) and name != EXTRA_FIELD):
        raise ValueError(f"{', '.join(CONNECTION_FIELDS)} or {EXTRA_FIELD}NAME")
    return name


# dots separate sweep, point and stage in job names, so no part may hold one
Ahead: TypeAlias = Annotated[int, Field(ge=0, le=100, strict=True)]
DEFAULT_AHEAD: Final = 0
"""Stages that are queued behind one that runs."""
Word: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
EnvironmentName: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)
]
SecretName: TypeAlias = Annotated[EnvironmentName, AfterValidator(_unreserved)]
SecretField: TypeAlias = Annotated[
    str,
    AfterValidator(_field_of_connection),
    WithJsonSchema({"type": "string", "pattern": r"^(password|login|host|schema|extra\..+)$"}),
]
Scalar: TypeAlias = bool | int | float | str | None
Values: TypeAlias = dict[str, Any]


class Strict(BaseModel):
    """Base of all sections: unknown keys are refused."""

    # built on first use, without the docstrings of the fields (`spec.json_schema` reads these): every task's process
    # imports this module and uses few of its sections; defaults are made by `model_construct`, which builds nothing
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SlurmSection(Strict):
    """Slurm resources of a stage; missing keys come from the cluster profile."""

    nodes: IntValue | None = None
    """Number of nodes (default 1)."""
    gpus_per_node: IntValue | None = None
    """GPUs on each node; also the number of training processes on each node (default 1)."""
    cpus_per_task: IntValue | None = None
    """CPU cores for each process."""
    mem: str | None = None
    """Memory per node as Slurm takes it, for example 64G."""
    time: Duration | None = None
    """Walltime of one attempt, for example 6h or 06:00:00."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclude: str | None = None
    """Nodes that must not be used."""
    signal_before: Duration | None = None
    """Time before the walltime at which the job gets the signal to save and exit."""
    options: list[str] = []
    """Further sbatch options, word by word."""


class SecretSection(Strict):
    """Where a job finds the value of a secret variable: a private file, or what Airflow keeps; it stands in no spec."""

    file: str | None = None
    """Path on the cluster, ``~`` for the home of the connection's user. The file must be that user's own, and closed to
    all others (mode 0600 or 0400)."""
    connection: str | None = None
    """Id of an Airflow connection that the operator lets specs read."""
    field: SecretField | None = None
    """What of the connection: ``password`` (default), ``login``, ``host``, ``schema``, or a key of its extras as
    ``extra.NAME``."""
    variable: str | None = None
    """Name of an Airflow variable that the operator lets specs read."""

    @model_validator(mode="after")
    def _one_source(self) -> SecretSection:
        if sum(source is not None for source in (self.file, self.connection, self.variable)) != 1:
            raise ValueError("one of file, connection and variable")
        if self.field is not None and self.connection is None:
            raise ValueError("field beside connection only")
        return self


Secrets: TypeAlias = dict[SecretName, SecretSection]


class ConditionSection(Strict):
    """A condition on the cluster; with several keys, all of them must hold."""

    finished: Word | list[Word] | None = None
    """These stages of the same point have finished."""
    checkpoint: IntValue | None = None
    """A checkpoint of exactly this iteration is complete."""
    log: str | None = None
    """A regular expression found in a line of a log."""
    of: Word | None = None
    """The stage whose checkpoint or log is meant; the parent when left out (the stage itself for cancel and finish)."""
    file: str | None = None
    """A file, or a pattern of files, exists; relative to the run directory."""
    command: str | list[str | int | float] | None = None
    """A command on the login node exits with 0, or prints the text in ``prints``."""
    prints: str | int | None = None
    """Expected output of the command."""
    all: list[ConditionSection] | None = None
    any: list[ConditionSection] | None = None
    not_: ConditionSection | None = Field(default=None, alias="not")


class StartSection(ConditionSection):
    """Condition that a stage waits for instead of the end of its parent, and the checkpoint that it starts from."""

    every: Duration | None = None
    """Pause between two runs of a command; each look at the cluster when left out."""
    before_every_attempt: bool = False
    """Check the condition again before each later attempt."""
    from_: Annotated[str, StringConstraints(min_length=1)] | None = Field(default=None, alias="from")
    """A checkpoint directory outside the sweep (of ``evaluate``: a Hugging Face model) that it starts from, or works
    on."""
    iteration: IntValue | None = None
    """Which checkpoint of ``from``; the newest one when left out."""
    mode: Literal["continue", "finetune"] | Expression | None = None
    """Of a training: ``continue`` the iterations, optimizer and data of ``from``, or load its weights alone and begin
    at iteration 0 (``finetune``)."""


class FinishSection(ConditionSection):
    """What makes a stage finished when its job has ended, instead of what its kind requires."""

    every: Duration | None = None
    """Pause between two runs of a command."""


class EachCheckpointSection(Strict):
    """Process every checkpoint of the parent when it is saved, while the training continues."""

    from_iteration: IntValue = 0
    """First iteration to process."""
    spacing: IntValue = 1
    """Minimum number of iterations between two processed checkpoints."""
    last: bool = True
    """Always process the last checkpoint."""


class EventSection(Strict):
    """An event of a running job, and the reaction to it."""

    name: Word | None = None
    log: str | None = None
    """A regular expression found in a new line of the log."""
    state: str | None = None
    """A regular expression for Slurm's state: PENDING, RUNNING, …"""
    idle: Duration | None = None
    """Time without a new iteration; for jobs without iterations, without a new log line."""
    when: ConditionSection | None = None
    """Condition that must hold too."""
    do: Literal["cancel", "restart", "rollback", "finish", "fail", "run", "notify"]
    command: str | list[str | int | float] | None = None
    """Command of ``run``, executed on the login node."""
    message: str = ""
    """Text of ``notify``."""
    limit: int | None = Field(default=1, ge=1)
    """Maximum number of reactions in one attempt; ``null`` for no limit."""


class RestartSection(Strict):
    """Number of attempts that may end in each way and be followed by another; ``null`` means no limit."""

    rolled_over: int | None = Field(default=None, ge=0)
    """Stopped in an orderly way: walltime, SIGTERM, exit duration."""
    retryable: int | None = Field(default=10, ge=0)
    """Node failures, preemptions and boot failures; of a training those since its newest checkpoint."""
    failed: int | None = Field(default=0, ge=0)
    """Ended with an error; of a training those since its newest checkpoint."""
    out_of_memory: int | None = Field(default=0, ge=0)
    cancelled: int | None = Field(default=0, ge=0)
    """Cancelled by a person."""
    no_progress: int = Field(default=3, ge=0)
    """Consecutive attempts without a newer checkpoint, after which the job is given up; 0 disables the limit."""
    backoff: Duration = 30
    """Pause before the next attempt after a failure; doubled for each further one without a newer checkpoint."""
    exclude_failed_nodes: bool = True
    """Exclude failed nodes from the next attempts."""
    exclude_for: Duration = 86400
    """Duration of the exclusion."""
    quarantine: int = Field(default=2, ge=0)
    """Damaged newest checkpoints that may be renamed, so that training goes on from an earlier one."""
    rollbacks: int = Field(default=1, ge=0)
    """Attempts whose numbers went bad (NaN, ``do: rollback``) that one from an earlier checkpoint follows;
    those since the training got further than ever."""
    after_rollback: Values = {}
    """Megatron arguments of the attempts after a rollback, instead of the stage's."""
    nodes: list[Annotated[int, Field(ge=1, strict=True)]] = []
    """Smaller numbers of nodes that a training may go on with when nodes fail, the largest first."""
    shrink_after: int = Field(default=2, ge=1)
    """Attempts in a row that lost a node, after which the next smaller number is taken."""
    from_scratch: Literal["fail", "allow"] = "fail"
    """What becomes of an attempt that begins anew although there was a checkpoint to load."""
    changed: Literal["refuse", "continue"] = "refuse"
    """What becomes of a job whose run directory holds checkpoints of another command."""
    chain: int = Field(default=1, ge=1)
    """Attempts of a training in Slurm's queue at once, each waiting there for the one before to end."""


HealthReaction: TypeAlias = Literal["notify", "cancel", "restart", "rollback", "fail", "none"]


class StallSection(Strict):
    """No new iteration although the job runs."""

    after: Duration = 600
    """The shortest silence that counts."""
    factor: float = Field(default=5, ge=1)
    """Of the longest pause between iterations that this attempt has shown."""
    startup: Duration = 3600
    """Silence allowed before the first iteration, after each step that leads to it."""
    quiet: Duration = 3600
    """Silence allowed for the first save and validation, before their length is known, and after the last iteration."""
    do: Literal["notify", "cancel", "restart", "fail", "none"] = "restart"


class ThroughputSection(Strict):
    """The training is much slower than it was."""

    below: float = Field(default=0.3, gt=0, lt=1)
    """Share of the attempt's own median."""
    lines: int = Field(default=5, ge=1)
    """Iteration lines in a row."""
    do: Literal["notify", "cancel", "restart", "fail", "none"] = "notify"


class NanSection(Strict):
    """The loss is not a finite number."""

    iterations: int = Field(default=10, ge=1)
    """In a row, or within one iteration line."""
    do: HealthReaction = "notify"


class SkippedSection(Strict):
    """The loss scaler skips iterations."""

    iterations: int = Field(default=50, ge=1)
    """In a row, or within one iteration line."""
    do: HealthReaction = "notify"


class SpikeSection(Strict):
    """The loss has jumped and does not come down again."""

    deviations: float = Field(default=8, gt=0)
    """Standard deviations above the running median."""
    rise: float = Field(default=0.1, ge=0)
    """Share of the median that it has to be above it at least."""
    recovery: int = Field(default=30, ge=1)
    """Iterations in which it may come down by itself."""
    do: HealthReaction = "notify"


class HealthSection(Strict):
    """What is looked for in the log of a training while it runs, and what is done about it."""

    stall: StallSection = StallSection.model_construct()
    throughput: ThroughputSection = ThroughputSection.model_construct()
    nan: NanSection = NanSection.model_construct()
    skipped: SkippedSection = SkippedSection.model_construct()
    spike: SpikeSection = SpikeSection.model_construct()


HealthRules: TypeAlias = Annotated[
    Annotated[HealthSection, Tag("rules")] | Annotated[Literal["off"], Tag("word")],
    # distinguished by hand, so that a wrong key is not also reported as "not 'off'"
    Discriminator(lambda value: "word" if isinstance(value, str) else "rules"),
]

NoticeKind: TypeAlias = Literal["failure", "retry", "health", "finished", "report"]


class NotifySection(Strict):
    """An Airflow notifier, and what it reports."""

    notifier: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
    """Its class path, one of those that the operator allows; always
    ``airflow_megatron.notifications.json_lines.JsonLinesNotifier``."""
    on: list[NoticeKind] = Field(default=["failure", "health", "report"], min_length=1)
    """``failure``: a job was given up, or a task failed; ``retry``: its next attempt follows; ``health``: an event of
    a running job; ``finished``: a job has finished; ``report``: the sweep's report is written."""
    arguments: Values = {}
    """Of the class. Expressions read ``notice`` and nothing else; secrets belong into an Airflow connection."""


TrainerName: TypeAlias = Annotated[str, RegisteredName(TRAINERS)]
Entry: TypeAlias = Literal[
    "pretrain_gpt.py", "pretrain_bert.py", "pretrain_t5.py", "pretrain_mamba.py", "pretrain_vlm.py"
]
"""Upstream's training scripts."""
LauncherName: TypeAlias = Annotated[str, RegisteredName(LAUNCHERS)]
CommonLauncher: TypeAlias = Annotated[str, RegisteredName(LAUNCHERS, "for_every_trainer")]
StageKindName: TypeAlias = Annotated[str, RegisteredName(STAGE_KINDS)]


class ReportedSection(Strict):
    """What was measured elsewhere, shown beside this sweep's own figures."""

    step_ms: float | Expression | None = None
    """Milliseconds of an iteration."""
    memory_gb: float | Expression | None = None
    """Memory of the fullest GPU, in GB."""


class MeasureSection(Strict):
    """How a short training is measured."""

    skip: int = Field(default=10, ge=0)
    """First iterations, which warm up and do not count."""
    reported: ReportedSection = ReportedSection.model_construct()


Expected: TypeAlias = Literal["oom"] | Expression | None


class BenchmarkSection(MeasureSection):
    """One short training at each point, measured; in place of ``stages``."""

    iterations: int = Field(default=100, ge=2)
    expect: Expected = None
    """``oom`` (or an expression that gives it) where a point is meant to run out of memory."""


class WrapperSection(Strict):
    """Words before the training command: a profiler, numactl."""

    command: list[str | int | float] = Field(min_length=1)
    """Words, or expressions that give them."""
    ranks: list[Annotated[int, Field(ge=0, strict=True)]] | None = None
    """The training processes that they are put before, by rank; all of them when left out."""


Words: TypeAlias = Annotated[list[str | int | float], Field(min_length=1)]
WrapperValue: TypeAlias = Annotated[
    Annotated[WrapperSection, Tag("section")] | Annotated[Words, Tag("words")],
    Discriminator(lambda value: "words" if isinstance(value, list) else "section"),
]
"""A list stands for its ``command``."""


class MonitorSection(Strict):
    """What is sampled of the GPUs beside a training."""

    every: Duration = 5
    """Pause between two samples."""
    command: str = "nvidia-smi"
    """The program that is asked, by name or path."""


MonitorValue: TypeAlias = Annotated[
    Annotated[MonitorSection, Tag("section")] | Annotated[bool, Tag("word")],
    Discriminator(lambda value: "word" if isinstance(value, bool) else "section"),
]
"""``true`` stands for the defaults, ``false`` for none."""


class ContainerSection(Strict):
    """The container that a job's commands run in."""

    runtime: Annotated[str, RegisteredName(CONTAINER_RUNTIMES)]
    image: str
    binds: list[str] = []
    options: list[str] = []


class StageSection(Strict):
    """One stage of the chain at a point."""

    kind: StageKindName
    """What it runs: the trainer, its search for a learning rate, a short training that is measured, the converter to
    Hugging Face, the evaluation, or a command of yours."""
    scope: Literal["point", "sweep"] = "point"
    """``sweep``: run once for all points (data preparation)."""
    parent: Word | list[Word] | None = None
    """The stage that it follows; with several, it is repeated after each."""
    for_each: dict[str, list[Scalar | Values]] | None = None
    """One variable and its values: the stage is repeated for each of them."""
    start: StartSection | None = None
    """What it waits for instead of its parent being finished."""
    cancel: ConditionSection | None = None
    """Stops the job, for good, as soon as this holds."""
    finish: FinishSection | None = None
    each_checkpoint: bool | EachCheckpointSection | None = None
    """Convert or evaluate every checkpoint of the parent as it comes."""
    events: list[EventSection] = []
    run_dir: str | None = None
    """Directory of a training branch, relative to the point's."""
    params: Values = {}
    megatron: Values = {}
    slurm: SlurmSection = SlurmSection.model_construct()
    env: dict[str, str | int | float] = {}
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    command: list[str | int | float] | None = None
    """The words of the command, for ``kind: command``; of any other kind it replaces the default one."""
    outputs: list[str] = []
    """Files that must exist for the job to count as finished, relative to the run directory."""
    template: str | None = None
    """sbatch template in ``sbatch/`` to use instead of the kind's own."""
    restart: RestartSection | None = None
    health: HealthRules | None = None
    """For ``kind: train``; what is left out is as in the sweep's."""
    expect: Expected = None
    """``oom`` where the job is meant to run out of memory: it has finished then."""
    measure: MeasureSection = MeasureSection.model_construct()
    """What ``kind: benchmark`` measures."""
    wrapper: WrapperValue | None = None
    """Words before the training command on some ranks, instead of the sweep's."""
    monitor: MonitorValue | None = None
    """Sample memory, utilisation and power of the GPUs while it trains; instead of the sweep's."""
    container: ContainerSection | None = None
    """Container of its jobs, instead of the sweep's."""
    array: bool | Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = False
    """Submit the jobs of all points as one Slurm job array. A number: so many of them run at the same time; ``true``:
    ``max_active_points``."""
    ahead: Ahead | None = None
    """Stages after this one that are queued behind it while it runs, instead of the sweep's."""


class ArgumentSection(Strict):
    """An argument that a fork's command line has and its release has not, as ``argparse`` would declare it."""

    action: Literal["Store", "StoreTrue", "StoreFalse", "BooleanOptional"] | None = None
    type: Literal["str", "int", "float", "bool"] | None = None
    nargs: int | Literal["+", "*"] | None = None
    choices: list[str | int | float] | None = None
    default: Scalar = None
    dest: str | None = None
    """Name that Megatron keeps it under, where that is not the flag's."""


class SweepSpecSection(Strict):
    """A whole sweep spec."""

    extends: str | list[str] | None = None
    """Specs whose content this one starts from, relative to this file; its own keys win."""
    name: Word | None = None
    """Name of the sweep and of its DAG; the file's name when left out."""
    description: str = ""
    cluster: Word = "local"
    """Profile in ``sbatch/clusters/``."""
    trainer: TrainerName = "megatron_core"
    release: str = "core_v0.16.1"
    """Megatron release whose arguments the trainer takes."""
    entry: Entry | None = None
    """Upstream's script that trains, ``pretrain_gpt.py`` when left out; for the trainer ``megatron_lm``."""
    point: str
    """Name of a point, an expression that differs for every point."""
    params: Values = {}
    """Your own values, for use in expressions."""
    megatron: Values = {}
    """Megatron arguments, underscores for dashes."""
    extra_arguments: dict[str, ArgumentSection] = {}
    """Arguments that only a fork of the release has; ``{}`` for one that takes text."""
    slurm: SlurmSection = SlurmSection.model_construct()
    env: dict[str, str | int | float] = {}
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    restart: RestartSection = RestartSection.model_construct()
    health: HealthRules = HealthSection.model_construct()
    """Of every training; ``off`` looks for nothing."""
    sweep: Values | None = None
    """Axes: product, list, groups, params, configs, grids, base_values, defaults, filter."""
    stages: dict[Word, StageSection] = {}
    """The chain of jobs at a point; needed unless there is ``benchmark``."""
    benchmark: BenchmarkSection | None = None
    """Measures one short training at each point instead of running stages."""
    wrapper: WrapperValue | None = None
    """Words before every training command: ``[numactl, --localalloc]``; or ``command`` and the ``ranks`` it is for."""
    monitor: MonitorValue = False
    """Sample memory, utilisation and power of the GPUs beside every training, by nvidia-smi."""
    container: ContainerSection | None = None
    """Container of all jobs, instead of the cluster profile's, whose binds are kept."""
    ahead: Ahead = DEFAULT_AHEAD
    """Stages of a point that are queued behind one that runs, each to start when the one before has finished."""
    max_active_points: int = Field(default=16, ge=1, le=100_000)
    """Points that run at the same time."""
    max_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Jobs of this sweep in the queue at the same time; further jobs wait."""
    poll_interval: float = Field(default=15, ge=1, le=86_400)
    """Seconds between two polls of the cluster; up to four times as many while nothing happens."""
    tags: list[str] = []
    notify: list[NotifySection] = []
    """Who is notified of which events of the sweep."""


class TrainerSection(Strict):
    """Where a trainer is on the cluster."""

    checkout: str | dict[str, str] | None = None
    """Checkout of upstream Megatron-LM (``megatron_lm``), or one for each release: ``{core_v0.19.0: /opt/…}``; of
    Megatron-DeepSpeed (``megatron_deepspeed``)."""
    device: Literal["cuda", "cpu"] = "cuda"
    """``cpu``: the nodes have no GPUs, and upstream is started by ``Megatron-LM/upstream_on_cpu.py``."""
    entry: Literal["pretrain_gpt_alcf.py", "pretrain_gpt.py", "train_alcf.sh"] | None = None
    """Script of Megatron-DeepSpeed that is started, ``pretrain_gpt_alcf.py`` when left out; ``train_alcf.sh`` gets
    by environment variables and starts the processes itself."""
    python: str | None = None
    """Python of its environment, where that is not the profile's."""
    launcher: LauncherName | None = None
    """How its processes start, where that is not the profile's ``launcher``; ``mpiexec`` and ``deepspeed`` start
    Megatron-DeepSpeed only."""
    env: dict[str, str | int | float] = {}
    arguments: Values = {}
    """Megatron arguments that this cluster needs; a spec's own win."""
    arguments_table: str | None = None
    """What a fork's command line takes: a file that ``airflow-megatron megatron-args CHECKOUT`` has written."""
    extra_arguments: dict[str, ArgumentSection] = {}
    """Arguments that only the checkout here has; ``{}`` for one that takes text."""
    transformer_engine: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")] | None = "2.8"
    """Version of Transformer Engine in its environment, which decides what Megatron-LM accepts; ``null`` for none."""
    packages: list[str] = []
    """Further Python packages in its environment, by import name, where what Megatron-LM accepts depends on them:
    ``modelopt``, ``nvidia_resiliency_ext``, ``flashinfer``, …"""

    def checkout_of(self, release: str) -> str | None:
        """Return the folder of a release's checkout, None where there is none."""
        return self.checkout.get(release) if isinstance(self.checkout, dict) else self.checkout


class LimitsSection(Strict):
    """What the site allows."""

    max_jobs: int | None = Field(default=None, ge=1)
    """Jobs of this user in the queue at the same time, waiting and running; further ones wait."""
    max_time: Duration | None = None
    """Walltime of one attempt."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Nodes of one job."""
    max_array_size: int = Field(default=1000, ge=1)
    """Tasks of one job array; ``MaxArraySize`` in ``scontrol show config`` is one more."""
    max_gpu_hours: float | None = Field(default=None, gt=0)
    """GPU-hours of a whole sweep, counted as walltime × GPUs of all its jobs."""


class PartitionSection(Strict):
    """A partition of the cluster: what its nodes have, and what jobs on it need."""

    gpus_per_node: int | None = Field(default=None, ge=0)
    """GPUs of a node; jobs that name a partition without any get none unless they ask."""
    cpus_per_node: int | None = Field(default=None, ge=1)
    """CPU cores of a node."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Nodes of one job."""
    max_time: Duration | None = None
    """Walltime of one attempt."""
    gpu_type: str | None = None
    """Type in the request for GPUs, where it needs one: a100 in --gres=gpu:a100:4."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Defaults of the jobs that name it; they win over what stands further out than the name."""
    env: dict[str, str | int | float] = {}
    """Environment of jobs on it, besides the cluster's."""
    container: ContainerSection | None = None
    """Container of jobs on it, instead of the cluster's."""


class ClusterSection(Strict):
    """A cluster profile."""

    description: str = ""
    ssh_conn_id: str
    """Airflow connection that reaches the login node."""
    run_root: str
    """Directory, shared by all nodes, that holds the sweeps."""
    python: str
    """Python of the trainer environment."""
    megatron_lm_dir: str
    """This project's ``Megatron-LM/`` folder on the cluster."""
    launcher: CommonLauncher = "torchrun"
    gpu_option: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How GPUs are asked for."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Defaults for every job."""
    partitions: dict[str, PartitionSection] = {}
    """The partitions that jobs may name; any when none is described."""
    container: ContainerSection | None = None
    modules: list[str] = []
    setup: list[str] = []
    """Shell lines run before the command."""
    env: dict[str, str | int | float] = {}
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    trainers: dict[TrainerName, TrainerSection] = {}
    limits: LimitsSection = LimitsSection.model_construct()
    gpu: str | None = None
    """Kind of its GPUs, for estimates of memory and time: h100-80gb, h200, a100-80gb, …"""
    mfu: float | None = Field(default=None, gt=0, lt=1)
    """Model FLOPs utilisation that its trainings reach, for estimates of GPU-hours."""
    login_shell: bool = False
    """Talk to Slurm through a login shell, where its commands are not on the plain PATH."""
    slurm_bin: str | None = None
    """Directory of Slurm's commands, where they are not on the PATH at all."""
    visibility_window: Duration = 300
    """How long an accepted submission may stay invisible in squeue and sacct."""
    signatures: list[str] = []
    """Files that say what lines of this site's logs mean, relative to the profile."""
    nice: int = Field(default=0, ge=0, le=19)
    """Nice value of what jobs start, on a machine that runs Slurm and Airflow too."""
    templates: str | None = None
    """Folder of this cluster's own sbatch templates, relative to the profile, in place of the project's."""


_SHOWN = 200
"""Characters of a wrong value that a message quotes."""

SectionT = TypeVar("SectionT", bound=Strict)


def declarations(sections: Mapping[str, ArgumentSection]) -> dict[str, dict[str, Any]]:
    """Return declared arguments as plain data: flag → its declaration."""
    return {name: section.model_dump(exclude_none=True) for name, section in sections.items()}


def validate(section: type[SectionT], document: YamlDocument) -> SectionT:
    """Check a document against a section model.

    :raises SpecError: with one problem for each wrong place
    """
    if not isinstance(document.data, dict):
        raise SpecError(document.problem((), "expected keys with values", "write name: …"))
    try:
        return section.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(list(_problems(error, document, section))) from error


def _problems(error: ValidationError, document: YamlDocument, section: type[Strict]) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    paths = [_document_path(detail["loc"], document) for detail in details]
    wanted: dict[KeyPath, list[str]] = {}
    for detail, path in zip(details, paths, strict=True):
        wanted.setdefault(path, []).append(_expected(detail))
    for detail, path in zip(details, paths, strict=True):
        if detail["type"] == "extra_forbidden":
            key = str(detail["loc"][-1])
            known = _fields_at(section, detail["loc"][:-1])
            hint = did_you_mean(key, known) or f"known here: {', '.join(sorted(known))}"
            yield document.problem(path, f"unknown key {key!r}", hint)
        elif detail["type"] == "missing":
            yield document.problem(
                path, f"{str(detail['loc'][-1])!r} is missing", f"add {detail['loc'][-1]}: …"
            )
        elif expected := wanted.pop(path, None):
            # a union reports once for every member; the first place is enough
            name = ".".join(str(part) for part in path) or "the document"
            hint = "expected " + " or ".join(dict.fromkeys(expected))
            shown = "…" if _may_be_secret(path) else _shown(detail["input"])
            hint = f"{hint}; {SECRET_HINT}" if "secrets" in path else hint
            yield document.problem(path, f"{name} is {shown}", hint)


def _shown(value: Any) -> str:
    """Return a value as messages quote it: short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # int() of so many digits is not allowed to become text
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


SECRET_HINT = "write NAME: {file: PATH}, a private file on the cluster, or {connection: ID}, {variable: NAME}"


def _may_be_secret(path: KeyPath) -> bool:
    """Return whether what stands at a place must not be repeated: it may be a token."""
    return "secrets" in path or ("env" in path and any(is_secret_name(str(part)) for part in path))


def _expected(detail: Any) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "a whole number"
        case "float_parsing" | "float_type":
            return "a number"
        case "bool_parsing" | "bool_type":
            return "true or false"
        case "string_type":
            return "text (quote it)"
        case "list_type":
            return "a list"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "keys with values"
        case "literal_error":
            return f"one of {context['expected']}"
        case "string_pattern_mismatch" if "{" in context["pattern"]:
            return 'an expression "{{ … }}"'
        case "string_pattern_mismatch":
            return "letters, digits, '_' and '-'"
        case "value_error":
            return str(context["error"])
        case _:
            return str(detail["msg"]).lower().removeprefix("input should be ")


def _document_path(loc: tuple[str | int, ...], document: YamlDocument) -> KeyPath:
    """Drop the union and key tags that pydantic adds, keeping what is a place in the document."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.positions:
            path = (*path, part)
    return path


def _fields_at(section: type[Strict], loc: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are known in the section at ``loc``."""
    current: type[Strict] = section
    for part in loc:
        for name, field in current.model_fields.items():
            if name == part:
                nested = _nested_section(field.annotation)
                if nested:
                    current = nested
    return list(current.model_fields)


def _nested_section(annotation: Any) -> type[Strict] | None:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        nested = _nested_section(argument)
        if nested:
            return nested
    return None
