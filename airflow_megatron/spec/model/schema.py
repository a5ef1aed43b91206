"""Schema of sweep specs: pydantic models, from which the JSON Schema for editors is made as well.

Validation errors are turned into :class:`~airflow_megatron.spec.documents.errors.Problem` with file, line and hint.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

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
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from airflow_megatron.spec.documents.errors import (
    MOST_PROBLEMS,
    Problem,
    SpecError,
    did_you_mean,
    longer_names,
    near_names,
    suggestion,
)
from airflow_megatron.spec.documents.quantities import (
    parse_duration,
    parse_interval,
    parse_memory,
    parse_walltime,
)
from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES, LAUNCHERS
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.registry.registry import RegisteredName
from airflow_megatron.spec.trackers.tracker import TRACKERS
from airflow_megatron.spec.trust.plain_text import shown_value
from airflow_megatron.spec.trust.reserved_variables import fixed_by, is_reserved, lacks_system_programs
from airflow_megatron.spec.trust.secret_names import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

CONNECTION_FIELDS: Final = ("password", "login", "host", "schema")
"""What of an Airflow connection a secret may be, besides a key of its extras."""
EXTRA_FIELD: Final = "extra."
"""What stands before the key of a connection's extras."""

_CALLED: Final[dict[str, str]] = {}
"""Pattern → what messages call the values that match it."""


def _matching(pattern: str, called: str, *, max_length: int | None = None) -> StringConstraints:
    """Return the constraint of text that matches a pattern.

    :param called: what messages call such text
    """
    _CALLED[pattern] = called
    return StringConstraints(pattern=pattern, max_length=max_length)


def _refused(message: str, hint: str, *entry: str) -> PydanticCustomError:
    """Return an error of a validator whose message is a whole sentence.

    :param entry: the key that is wrong, if the value is a mapping
    """
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "entry": entry})


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("string_type", "text")
    return value


def _with_expression(value: Any) -> Any:
    if not isinstance(value, str) or "{{" not in value:
        raise PydanticCustomError("expression", "an expression")
    return value


Expression: TypeAlias = Annotated[
    str,
    BeforeValidator(_with_expression),
    WithJsonSchema({"type": "string", "pattern": r"\{\{"}),
]
"""A string that holds a ``{{ … }}`` expression."""

# not in lax mode, in which true is 1
Whole: TypeAlias = Annotated[int, Field(strict=True)]
Number: TypeAlias = Annotated[float, Field(strict=True)]
# nor is 0 false, where a number has a meaning of its own
Truth: TypeAlias = Annotated[bool, Field(strict=True)]
Text: TypeAlias = Annotated[str | int | float, BeforeValidator(_no_truth)]
"""Text, or a number that is passed on as it is written."""
IntValue: TypeAlias = Annotated[int, Field(ge=0, strict=True)] | Expression
PositiveValue: TypeAlias = Annotated[int, Field(ge=1, strict=True)] | Expression
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


Seconds: TypeAlias = Annotated[
    float,
    Field(strict=True),
    BeforeValidator(lambda value: float(parse_duration(value)) if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 1, "maximum": 86_400, "description": "Seconds."},
                {"type": "string", "pattern": r"^\s*\d", "examples": ["30s", "5m"]},
            ]
        }
    ),
]
"""Seconds, also fractions; ``5m`` is read too."""


def _interval(value: Any, info: ValidationInfo) -> Any:
    return (
        value
        if info.context != WRITTEN or (isinstance(value, str) and "{{" in value)
        else parse_interval(value)
    )


Interval: TypeAlias = Annotated[Duration, BeforeValidator(_interval)]
"""A duration that cannot be zero."""


def _walltime(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and "{{" in value:
        return value
    return parse_walltime(value) if info.context == WRITTEN else parse_duration(value)


WRITTEN: Final = "written"
"""Context of the validation of what people write; stored sections hold walltimes in seconds."""
Walltime: TypeAlias = Annotated[
    int | Expression,
    BeforeValidator(_walltime),
    WithJsonSchema(
        {"type": "string", "pattern": r"\{\{|^\s*\d", "examples": ["30m", "6h", "06:00:00", "1-12:00:00"]}
    ),
]
"""Seconds, written with units: to Slurm a number is minutes."""


def _unreserved(name: str) -> str:
    if is_reserved(name):
        raise _refused("the name belongs to the system, to Slurm or to job scripts", "choose another name")
    return name


def _field_of_connection(name: str) -> str:
    if name not in CONNECTION_FIELDS and not (name.startswith(EXTRA_FIELD) and name != EXTRA_FIELD):
        raise ValueError(f"{', '.join(CONNECTION_FIELDS)} or {EXTRA_FIELD}NAME")
    return name


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute (start it with /)")
    return path


Memory: TypeAlias = Annotated[
    str,
    BeforeValidator(
        lambda value: (
            value if value is None or (isinstance(value, str) and "{{" in value) else parse_memory(value)
        )
    ),
]
"""As sbatch's ``--mem`` takes it, expressions apart."""


def _private_file(path: str | None) -> str | None:
    if path is not None and not path.startswith(("/", "~", "{{")):
        raise ValueError("a path that begins with / or ~/")  # it may be the secret itself
    return path


def _expanded(path: str) -> str:
    if path.startswith("~"):
        raise ValueError(f"{path!r} is not absolute; no shell expands ~")
    return path


ClusterPath: TypeAlias = Annotated[str, AfterValidator(_absolute)]
"""A path on the cluster."""
ClusterProgram: TypeAlias = Annotated[str, AfterValidator(_expanded)]
"""A program on the cluster: its absolute path, or its name on the ``PATH`` of jobs."""
# dots separate sweep, point and stage in job names, so no part may hold one
Ahead: TypeAlias = Annotated[int, Field(ge=0, le=100, strict=True)]
DEFAULT_AHEAD: Final = 1
"""Stages that are queued behind one that runs."""
LONGEST_CHAIN: Final = 100
"""Attempts of one training in Slurm's queue: each is a script and a pending job that counts against its limits."""
Word: TypeAlias = Annotated[
    str, _matching(r"^[A-Za-z0-9][A-Za-z0-9_-]*$", "letters, digits, '_' and '-'", max_length=100)
]
VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
EnvironmentName: TypeAlias = Annotated[
    str, _matching(VARIABLE_PATTERN, "letters, digits and '_', not a digit first", max_length=100)
]
ClassPath: TypeAlias = Annotated[
    str, _matching(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", "the path of a class: package.module.ClassName")
]
Date: TypeAlias = Annotated[
    str, _matching(r"^[0-9]{4}-[0-9]{2}(-[0-9]{2})?$", 'a date: "2026-11-23" or "2026-11"')
]
StripeOptions: TypeAlias = Annotated[
    str,
    _matching(r"^-{1,2}[A-Za-z][A-Za-z0-9 =.-]*$", "options of lfs setstripe, such as --stripe-count 8"),
]
Version: TypeAlias = Annotated[str, _matching(r"^[0-9]+(\.[0-9]+)*$", 'a version, such as "2.8"')]
ConnectionName: TypeAlias = Annotated[
    str,
    _matching(
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$", "letters, digits, '_', '.' and '-', at most 200 characters"
    ),
]
ProjectName: TypeAlias = Annotated[
    str,
    _matching(
        r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}$",
        "letters, digits, spaces, '_', '.' and '-', at most 100 characters",
    ),
]
ShellText: TypeAlias = Annotated[str, _matching(r"^[^\x00-\x1f]+$", "one line of text")]
"""One line of shell text, which may hold ``$(…)`` and variables."""


def _not_a_yaml_list(names: str) -> str:
    inside = names[1:].partition("]")[0]
    if names.startswith("[") and "{{" not in names and inside.strip("0123456789,-"):
        words = [word.strip(" '\"") for word in inside.split(",")]
        raise _refused("a list in brackets", f'write "{",".join(words)}"')
    return names


Names: TypeAlias = Annotated[str, AfterValidator(_not_a_yaml_list)]
"""Names of nodes or partitions, separated by commas; nodes also as Slurm abbreviates them, ``n[1-4]``."""


def _variable(name: str) -> str:
    if not re.fullmatch(VARIABLE_PATTERN, name):
        raise ValueError(
            f"{name!r} cannot be the name of an environment variable; use letters, digits and '_', not a digit first"
        )
    program = fixed_by(name)
    if program:
        raise _refused(f"{program} sets it in each job", "drop it")
    return name


def _with_system_programs(environment: dict[str, Text]) -> dict[str, Text]:
    path = environment.get("PATH")
    if path is not None and "{{" not in str(path) and lacks_system_programs(str(path)):
        raise _refused(
            "/usr/bin, where the job script's programs are, is not in it",
            "to extend the PATH, write export PATH=FOLDER:$PATH in setup of the cluster profile",
            "PATH",
        )
    return environment


Environment: TypeAlias = Annotated[
    dict[Annotated[str, AfterValidator(_variable)], Text], AfterValidator(_with_system_programs)
]
SecretName: TypeAlias = Annotated[EnvironmentName, AfterValidator(_unreserved)]
SecretField: TypeAlias = Annotated[
    str,
    AfterValidator(_field_of_connection),
    WithJsonSchema({"type": "string", "pattern": r"^(password|login|host|schema|extra\..+)$"}),
]
ClusterNames: TypeAlias = Annotated[
    Annotated[Word, Tag("name")] | Annotated[list[Word], Field(min_length=1, max_length=16), Tag("names")],
    Discriminator(lambda value: "names" if isinstance(value, list) else "name"),
]
"""A cluster profile, or several among which points are distributed."""
Scalar: TypeAlias = bool | int | float | str | None
Values: TypeAlias = dict[str, Any]


def _section_or_switch(on: Any, off: Any) -> BeforeValidator:
    """Return a validator that takes a section or a switch: on, off, true or false.

    :param on: what ``on`` and ``true`` stand for
    :param off: what ``off`` and ``false`` stand for
    """

    def of_a_form(value: Any) -> Any:
        if isinstance(value, dict | Strict):
            return value
        if value is True or value == "on":
            return on
        if value is False or value == "off":
            return off
        raise ValueError("on, off, or keys with values")

    return BeforeValidator(of_a_form)


_SWITCH: Final = WithJsonSchema({"enum": ["on", "off", True, False]})


class Strict(BaseModel):
    """Base of all sections: unknown keys are refused."""

    # built on first use, without the docstrings of the fields (`spec.json_schema` reads these): every task's process
    # imports this module and uses few of its sections; defaults are made by `model_construct`, which builds nothing
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    further: ClassVar[str] = ""
    """Where further keys belong, for the hint about an unknown one, KEY."""
    example: ClassVar[str] = ""
    """Usual content, for the hint about a value that is no section."""


class SlurmSection(Strict):
    """Slurm resources of a stage; missing keys come from the cluster profile."""

    further: ClassVar[str] = "other options of sbatch: options: [--KEY=…]; "

    nodes: PositiveValue | None = None
    """Number of nodes (default 1)."""
    gpus_per_node: IntValue | None = None
    """GPUs on each node; also the number of training processes on each node (default 1)."""
    cpus_per_task: PositiveValue | None = None
    """CPU cores for each process."""
    mem: Memory | None = None
    """Memory per node as Slurm takes it, for example 64G."""
    time: Walltime | None = None
    """Walltime of one attempt, for example 6h or 06:00:00."""
    partition: Names | None = None
    """Partition, or several, separated by commas."""
    account: str | None = None
    """Account that the job is charged to."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that the nodes must have."""
    reservation: str | None = None
    """Reservation in which the job runs."""
    exclude: Names | None = None
    """Nodes that must not be used."""
    signal_before: Interval | None = None
    """Time before the walltime at which the job gets the signal to save and exit."""
    options: list[str] = []
    """Further sbatch options, word by word."""


class SecretSection(Strict):
    """Source of the value of a secret variable, a private file on the cluster or Airflow; specs never contain it."""

    file: Annotated[str | None, AfterValidator(_private_file)] = None
    """Path on the cluster; ``~`` is the home of the connection's user. The user must own the file, and nobody else may
    read it (mode 0600 or 0400)."""
    connection: str | None = None
    """ID of an Airflow connection that specs may read; the operator of Airflow lists them."""
    field: SecretField | None = None
    """Field of the connection: ``password`` (default), ``login``, ``host``, ``schema``, or ``extra.NAME`` for a key of
    its extras."""
    variable: str | None = None
    """Name of an Airflow variable that specs may read; the operator of Airflow lists them."""

    @model_validator(mode="after")
    def _one_source(self) -> SecretSection:
        if sum(source is not None for source in (self.file, self.connection, self.variable)) != 1:
            raise ValueError("one of file, connection and variable")
        if self.field is not None and self.connection is None:
            raise ValueError("field beside connection only")
        return self


Secrets: TypeAlias = dict[SecretName, SecretSection]


class ConditionSection(Strict):
    """A condition on the cluster. If it has several keys, all of them must be true."""

    example: ClassVar[str] = "{checkpoint: 1000}"

    finished: Word | list[Word] | None = None
    """Stages of the same point that must have finished."""
    checkpoint: IntValue | None = None
    """Iteration of a checkpoint that must be complete."""
    log: str | None = None
    """Regular expression that must match in a line of the log."""
    of: Word | None = None
    """Stage whose checkpoint or log is examined. Default: the parent, or for ``cancel`` and ``finish`` this stage."""
    file: str | None = None
    """File, or pattern of files, that must exist; relative to the run directory."""
    command: str | list[Text] | None = None
    """Command on the login node that must exit with 0, or print the text in ``prints``."""
    prints: str | Whole | None = None
    """Expected output of ``command``."""
    all: list[ConditionSection] | None = None
    """Conditions that must all be true."""
    any: list[ConditionSection] | None = None
    """Conditions of which one must be true."""
    not_: ConditionSection | None = Field(default=None, alias="not")
    """Condition that must be false."""


class StartSection(ConditionSection):
    """Condition for the start of a stage, instead of the end of its parent, and the checkpoint to start from."""

    every: Duration | None = None
    """Pause between two runs of ``command``. Default: it runs at every poll of the cluster."""
    before_every_attempt: bool = False
    """Check the condition again before each later attempt."""
    from_: Annotated[str, StringConstraints(min_length=1)] | None = Field(default=None, alias="from")
    """Checkpoint directory outside the sweep to start from or to process (for ``evaluate``: a Hugging Face model)."""
    iteration: IntValue | None = None
    """Iteration of the checkpoint in ``from``. Default: the newest one."""
    mode: Literal["continue", "finetune"] | Expression | None = None
    """For trainings: ``continue`` loads iteration, optimizer and data state of ``from``; ``finetune`` loads only the
    weights and starts at iteration 0."""


class FinishSection(ConditionSection):
    """Condition that makes a stage finished when its job has ended, instead of the rule of its kind."""

    every: Duration | None = None
    """Pause between two runs of ``command``."""


def _true_or_false_for_a_section(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("true, false, or keys with values")
    return value


class EachCheckpointSection(Strict):
    """Process every checkpoint of the parent when it is saved, while the training continues."""

    from_iteration: IntValue = 0
    """First iteration to process."""
    spacing: IntValue = 1
    """Minimum number of iterations between two processed checkpoints."""
    last: bool = True
    """Always process the last checkpoint."""


EachCheckpointValue: TypeAlias = Annotated[
    Annotated[EachCheckpointSection, Tag("section")]
    | Annotated[
        bool,
        BeforeValidator(_true_or_false_for_a_section),
        WithJsonSchema({"type": "boolean"}),
        Tag("word"),
    ],
    Discriminator(lambda value: "section" if isinstance(value, dict | EachCheckpointSection) else "word"),
]
"""``true`` stands for the defaults, ``false`` for none."""


class EventSection(Strict):
    """An event of a running job, and the reaction to it."""

    name: Word | None = None
    """Name of the event, for messages."""
    log: str | None = None
    """Regular expression that must match in a new line of the log."""
    state: str | None = None
    """Regular expression that must match Slurm's state of the job: PENDING, RUNNING, …"""
    idle: Duration | None = None
    """Time without a new iteration or, for jobs without iterations, without a new log line."""
    when: ConditionSection | None = None
    """Condition that must also be true."""
    do: Literal["cancel", "restart", "rollback", "finish", "fail", "run", "notify"]
    """Reaction."""
    command: str | list[Text] | None = None
    """Command for ``do: run``; it runs on the login node."""
    message: str = ""
    """Text for ``do: notify``."""
    limit: Whole | None = Field(default=1, ge=1)
    """Maximum number of reactions in one attempt; ``null`` for no limit."""


class RestartSection(Strict):
    """Retries after each kind of end; in the first five keys, ``null`` means no limit."""

    example: ClassVar[str] = "{retryable: 5}"

    rolled_over: Whole | None = Field(default=None, ge=0)
    """Retries after an orderly stop: walltime, SIGTERM, exit duration."""
    retryable: Whole | None = Field(default=10, ge=0)
    """Retries after node failures, preemptions and boot failures; for a training, since its newest checkpoint."""
    failed: Whole | None = Field(default=0, ge=0)
    """Retries after errors; for a training, since its newest checkpoint."""
    out_of_memory: Whole | None = Field(default=0, ge=0)
    """Retries after the memory of a node or GPU was used up."""
    cancelled: Whole | None = Field(default=0, ge=0)
    """Retries after a person has cancelled the job."""
    no_progress: Whole = Field(default=3, ge=0)
    """Consecutive attempts without a newer checkpoint after which the job fails; 0 disables the limit."""
    backoff: Duration = 30
    """Pause before a retry; it doubles with each further retry without a newer checkpoint."""
    exclude_failed_nodes: bool = True
    """Exclude nodes that failed from the next attempts."""
    exclude_for: Duration = 86400
    """Duration of the exclusion."""
    quarantine: Whole = Field(default=2, ge=0)
    """Number of damaged checkpoints that may be renamed, so that the training continues from an earlier one."""
    rollbacks: Whole = Field(default=1, ge=0)
    """Retries from an earlier checkpoint after bad numbers (NaN, ``do: rollback``); counted since the training last
    reached a new highest iteration."""
    after_rollback: Values = {}
    """Megatron arguments that replace the stage's after a rollback."""
    nodes: list[Annotated[int, Field(ge=1, strict=True)]] = []
    """Smaller numbers of nodes with which a training may continue when nodes fail, largest first."""
    shrink_after: Whole = Field(default=2, ge=1)
    """Consecutive attempts that lost a node before the next smaller number is used."""
    from_scratch: Literal["fail", "allow"] = "fail"
    """Reaction when an attempt starts from iteration 0 although there was a checkpoint to load."""
    changed: Literal["refuse", "continue"] = "refuse"
    """Reaction when the run directory contains checkpoints of another command."""
    chain: Whole = Field(default=1, ge=1, le=LONGEST_CHAIN)
    """Attempts of a training in Slurm's queue at the same time; each waits for the end of the previous one."""


HealthReaction: TypeAlias = Literal["notify", "cancel", "restart", "rollback", "fail", "none"]


class StallSection(Strict):
    """The job runs without a new iteration."""

    example: ClassVar[str] = "{after: 20m}"

    after: Duration = 600
    """Shortest pause that counts as a stall."""
    factor: Number = Field(default=5, ge=1)
    """Multiple of the longest pause between iterations in this attempt that counts as a stall."""
    startup: Interval = 3600
    """Longest pause before the first iteration; it starts again with each step of the start-up."""
    quiet: Interval = 3600
    """Longest pause for the first save and the first validation, and after the last iteration."""
    do: Literal["notify", "cancel", "restart", "fail", "none"] = "restart"
    """Reaction."""


class ThroughputSection(Strict):
    """The training has become much slower."""

    example: ClassVar[str] = "{do: cancel}"

    below: Number = Field(default=0.3, gt=0, lt=1)
    """Fraction of the attempt's median throughput below which an iteration line is slow."""
    lines: Whole = Field(default=5, ge=1)
    """Consecutive slow iteration lines before the reaction."""
    do: Literal["notify", "cancel", "restart", "fail", "none"] = "notify"
    """Reaction."""


class NanSection(Strict):
    """The loss is not a finite number."""

    example: ClassVar[str] = "{do: cancel}"

    iterations: Whole = Field(default=10, ge=1)
    """Consecutive iterations, or iterations within one line of the log, before the reaction."""
    do: HealthReaction = "notify"
    """Reaction."""


class SkippedSection(Strict):
    """The loss scaler skips iterations."""

    example: ClassVar[str] = "{do: cancel}"

    iterations: Whole = Field(default=50, ge=1)
    """Consecutive iterations, or iterations within one line of the log, before the reaction."""
    do: HealthReaction = "notify"
    """Reaction."""


class SpikeSection(Strict):
    """The loss has jumped and does not recover."""

    example: ClassVar[str] = "{do: rollback}"

    deviations: Number = Field(default=8, gt=0)
    """Standard deviations above the running median that count as a spike."""
    rise: Number = Field(default=0.1, ge=0)
    """Minimum height of a spike above the running median, as a fraction of the median."""
    recovery: Whole = Field(default=30, ge=1)
    """Iterations within which the loss may recover by itself."""
    do: HealthReaction = "notify"
    """Reaction."""


class HealthSection(Strict):
    """Checks of the log of a running training, and the reaction to each."""

    stall: StallSection = StallSection.model_construct()
    throughput: ThroughputSection = ThroughputSection.model_construct()
    nan: NanSection = NanSection.model_construct()
    skipped: SkippedSection = SkippedSection.model_construct()
    spike: SpikeSection = SpikeSection.model_construct()


HealthRules: TypeAlias = Annotated[
    Annotated[HealthSection, Tag("rules")] | Annotated[Literal["off"], _SWITCH, Tag("word")],
    # distinguished by hand, so that a wrong key is not also reported as "not 'off'"
    Discriminator(lambda value: "word" if isinstance(value, str) else "rules"),
    _section_or_switch({}, "off"),
]
"""``on`` stands for the rules of the level above, or the defaults."""

NoticeKind: TypeAlias = Literal["failure", "retry", "health", "diverged", "finished", "report", "edge"]


class NotifySection(Strict):
    """An Airflow notifier, and the notices that it sends."""

    notifier: ClassPath
    """Class path. Allowed are ``airflow_megatron.notifications.json_lines.JsonLinesNotifier`` and the classes that the
    operator of Airflow lists."""
    on: list[NoticeKind] = Field(default=["failure", "health", "report"], min_length=1)
    """``failure``: a job or a task has failed for good; ``retry``: another attempt follows; ``health``: an event of a
    running job; ``diverged``: a loss is not a number or does not recover from a spike; ``finished``: a job has
    finished; ``report``: the sweep's report was written; ``edge``: an optimum is at the edge of the tested values."""
    arguments: Values = {}
    """Arguments of the class. Expressions can use only ``notice``. Keep secrets in an Airflow connection."""


class TrackerSection(Strict):
    """An experiment tracker that receives the records of all trainings, from Airflow's side."""

    tracker: Annotated[str, RegisteredName(TRACKERS)]
    """Kind of the tracker."""
    connection: ConnectionName
    """Airflow connection with the tracker's address and credentials; the operator of Airflow lists those permitted."""
    project: ProjectName | None = None
    """Project (MLflow: experiment) of the runs. Default: the name of the sweep."""


TrainerName: TypeAlias = Annotated[str, RegisteredName(TRAINERS)]
Entry: TypeAlias = Literal[
    "pretrain_gpt.py", "pretrain_bert.py", "pretrain_t5.py", "pretrain_mamba.py", "pretrain_vlm.py"
]
"""Upstream's training scripts."""
LauncherName: TypeAlias = Annotated[str, RegisteredName(LAUNCHERS)]
CommonLauncher: TypeAlias = Annotated[str, RegisteredName(LAUNCHERS, "for_every_trainer")]
StageKindName: TypeAlias = Annotated[str, RegisteredName(STAGE_KINDS)]


class ReportedSection(Strict):
    """Measurements from elsewhere that the report shows beside this sweep's own."""

    step_ms: Number | Expression | None = None
    """Milliseconds of an iteration."""
    memory_gb: Number | Expression | None = None
    """Memory of the fullest GPU, in GB."""


class MeasureSection(Strict):
    """How a short training is measured."""

    skip: Whole = Field(default=10, ge=0)
    """First iterations that do not count (warm-up)."""
    reported: ReportedSection = ReportedSection.model_construct()
    """Measurements from elsewhere that the report shows beside its own."""


Expected: TypeAlias = Literal["oom"] | Expression | None


class BenchmarkSection(MeasureSection):
    """Measure one short training at each point, instead of ``stages``."""

    iterations: Whole = Field(default=100, ge=2)
    """Length of the training."""
    expect: Expected = None
    """``oom``, or an expression for it, if the point is expected to run out of memory."""


class WrapperSection(Strict):
    """Words before the training command, for example a profiler or ``numactl``."""

    command: list[Text] = Field(min_length=1)
    """The words, or expressions for them."""
    ranks: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)] | None = None
    """Ranks of the training processes that get them. Default: all."""


Words: TypeAlias = Annotated[list[Text], Field(min_length=1)]
WrapperValue: TypeAlias = Annotated[
    Annotated[WrapperSection, Tag("section")] | Annotated[Words, Tag("words")],
    Discriminator(lambda value: "section" if isinstance(value, dict | WrapperSection) else "words"),
]
"""A list stands for its ``command``."""


class MonitorSection(Strict):
    """Sampling of the GPUs during a training."""

    every: Interval = 5
    """Pause between two samples."""
    command: Annotated[str, StringConstraints(min_length=1)] = "nvidia-smi"
    """Name or path of the program that prints the samples."""


MonitorValue: TypeAlias = Annotated[
    Annotated[MonitorSection, Tag("section")] | Annotated[bool, _SWITCH, Tag("word")],
    Discriminator(lambda value: "word" if isinstance(value, bool) else "section"),
    _section_or_switch(True, False),
]
"""``on`` stands for the defaults."""


class ContainerSection(Strict):
    """Container in which the commands of a job run."""

    runtime: Annotated[str, RegisteredName(CONTAINER_RUNTIMES)]
    """Program that runs the container."""
    image: Annotated[str, StringConstraints(min_length=1)]
    """Image, as the runtime takes it: a path or an address; for ``ce`` the path or the name of an EDF file."""
    binds: list[str] = []
    """Directories that the container sees, ``SOURCE`` or ``SOURCE:TARGET``."""
    options: list[str] = []
    """Further options of the runtime, word by word."""
    env: list[EnvironmentName] = []
    """Environment variables of the job whose values replace those of the image. ``ce`` has none."""

    @model_validator(mode="after")
    def _fits_the_runtime(self) -> ContainerSection:
        runtime = CONTAINER_RUNTIMES.find(self.runtime)
        if runtime is None:
            return self
        if self.binds and runtime.instead_of_binds:
            raise _refused(f"{self.runtime} takes none", runtime.instead_of_binds, "binds")
        if problem := runtime.problem(self):
            raise _refused(f"{self.runtime} cannot start it", f"write {problem}")
        if self.env and not runtime.takes_env:
            hint = "drop it: variables of the job reach the container, unless its image or EDF file sets them"
            raise _refused(f"{self.runtime} takes none", hint, "env")
        return self


class StageSection(Strict):
    """One stage of the chain at a point."""

    kind: StageKindName
    """What the stage runs: a training, a learning-rate search, a measured short training, a conversion to Hugging Face,
    an evaluation, a fetch of what later stages read offline, or your own command."""
    scope: Literal["point", "sweep"] = "point"
    """``point``: run at each point; ``sweep``: run once for all points, for example to prepare data."""
    parent: Word | list[Word] | None = None
    """The stage before this one. With several, this stage is repeated after each of them."""
    for_each: dict[str, list[Scalar | Values]] | None = None
    """One variable and its values: the stage is repeated for each of them."""
    filter: Truth | Expression = True
    """Points without the stage, and without the stages after it: those for which this expression is false."""
    start: StartSection | None = None
    """Condition for its start, instead of the end of its parent."""
    cancel: ConditionSection | None = None
    """Condition that stops the job for good."""
    finish: FinishSection | None = None
    """Condition with which the job counts as finished."""
    each_checkpoint: EachCheckpointValue | None = None
    """Process every checkpoint of the parent as soon as it is saved."""
    events: list[EventSection] = []
    """Events of its running jobs, and the reaction to each."""
    run_dir: str | None = None
    """Directory of a training branch, relative to the directory of the point."""
    params: Values = {}
    """Your own values for this stage, for use in expressions, and the settings of its kind."""
    megatron: Values = {}
    """Megatron arguments of this stage. They take precedence over the sweep's."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Resources of its jobs. They take precedence over the sweep's."""
    env: Environment = {}
    """Environment variables of its jobs, in addition to the sweep's."""
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    command: list[Text] | None = None
    """Words of the command. For kinds other than ``command`` it replaces the default command."""
    outputs: list[str] = []
    """Files that must exist before the stage is finished, relative to the run directory."""
    template: str | None = None
    """sbatch template in ``sbatch/``, instead of the one of the kind."""
    restart: RestartSection | None = None
    """Restart policy of its jobs. Keys that are missing here come from the sweep's ``restart``."""
    health: HealthRules | None = None
    """Checks of a training. Keys that are missing here come from the sweep's ``health``."""
    expect: Expected = None
    """``oom`` if the job is expected to run out of memory; the stage is then finished."""
    measure: MeasureSection = MeasureSection.model_construct()
    """Measurement of ``kind: benchmark``."""
    wrapper: WrapperValue | None = None
    """Words before the training command, instead of the sweep's ``wrapper``."""
    monitor: MonitorValue | None = None
    """Sample memory, utilisation and power of the GPUs, instead of the sweep's ``monitor``."""
    container: ContainerSection | None = None
    """Container of its jobs, instead of the sweep's ``container``."""
    array: Truth | Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = False
    """Submit the jobs of all points as one Slurm job array. A number limits how many run at the same time; ``true``
    stands for ``max_active_points``."""
    ahead: Ahead | None = None
    """Number of stages after this one that are queued behind it, instead of the sweep's ``ahead``."""


class ArgumentSection(Strict):
    """An argument that a fork has added to its release, as declared with ``argparse``."""

    action: Literal["Store", "StoreTrue", "StoreFalse", "BooleanOptional"] | None = None
    """What the flag does, as in ``argparse``. Default: it takes a value."""
    type: Literal["str", "int", "float", "bool"] | None = None
    """Type of its value. Default: text."""
    nargs: Whole | Literal["+", "*"] | None = None
    """Number of its values."""
    choices: list[Text] | None = None
    """Values that it takes."""
    default: Scalar = None
    """Value without the flag."""
    dest: str | None = None
    """Attribute name, if it differs from the flag."""


class SweepSpecSection(Strict):
    """A sweep spec."""

    extends: str | list[str] | None = None
    """Specs to inherit from, relative to this file. The keys of this file take precedence."""
    name: Word | None = None
    """Name of the sweep and of its DAG. Default: the name of the file."""
    description: str = ""
    """Text that the web UI shows."""
    cluster: ClusterNames = "local"
    """Name of a cluster profile in ``sbatch/clusters/``, or a list of names: each point then runs on one of these
    clusters, where there is room for it."""
    trainer: TrainerName = "megatron_core"
    """Program that trains."""
    release: str = "core_v0.16.1"
    """Megatron-LM release that defines the arguments."""
    entry: Entry | None = None
    """Training script of Megatron-LM, for the trainer ``megatron_lm``. Default: ``pretrain_gpt.py``."""
    point: str
    """Expression for the name of a point; each point needs a different name."""
    params: Values = {}
    """Your own values, for use in expressions."""
    megatron: Values = {}
    """Megatron arguments, underscores for dashes."""
    extra_arguments: dict[str, ArgumentSection] = {}
    """Arguments that a fork has added to the release; ``{}`` declares one that takes text."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Resources of every job."""
    env: Environment = {}
    """Environment variables of every job."""
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    restart: RestartSection = RestartSection.model_construct()
    """Restart policy of every job."""
    health: HealthRules = HealthSection.model_construct()
    """Checks of every training; ``off`` disables them."""
    sweep: Values | None = None
    """Axes: product, list, groups, params, configs, grids, base_values, defaults, filter."""
    stages: dict[Word, StageSection] = {}
    """The chain of jobs at each point. Required without ``benchmark``."""
    benchmark: BenchmarkSection | None = None
    """Measure one short training at each point, instead of running stages."""
    wrapper: WrapperValue | None = None
    """Words before every training command, such as ``[numactl, --localalloc]``, or ``command`` with ``ranks``."""
    monitor: MonitorValue = False
    """Sample memory, utilisation and power of the GPUs during every training, with ``nvidia-smi``."""
    container: ContainerSection | None = None
    """Container of all jobs, instead of the one in the cluster profile. The profile's binds are kept."""
    ahead: Ahead = DEFAULT_AHEAD
    """Stages of a point that are queued behind a running one; each starts when the one before has finished."""
    max_active_points: Whole = Field(default=16, ge=1, le=100_000)
    """Maximum number of points that run at the same time."""
    max_jobs: Whole | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of jobs of this sweep in Slurm's queue. Further jobs wait."""
    poll_interval: Seconds = Field(default=15, ge=1, le=86_400)
    """Time between two polls of the cluster; up to four times as long while nothing happens."""
    tags: list[str] = []
    """Further tags of the DAGs."""
    notify: list[NotifySection] = []
    """Notifiers, and the events that each reports."""
    trackers: list[TrackerSection] = []
    """Experiment trackers (W&B, MLflow, trackio) that receive the records of all trainings while they run."""


class TrainerSection(Strict):
    """Location and properties of a trainer on the cluster."""

    checkout: ClusterPath | dict[str, ClusterPath] | None = None
    """Checkout of Megatron-LM (for ``megatron_lm``), one for each release such as ``{core_v0.19.0: /opt/…}``, or
    checkout of Megatron-DeepSpeed (for ``megatron_deepspeed``)."""
    device: Literal["cuda", "cpu"] = "cuda"
    """``cpu`` if the nodes have no GPUs; Megatron-LM then runs with ``Megatron-LM/upstream_on_cpu.py``."""
    entry: Literal["pretrain_gpt_alcf.py", "pretrain_gpt.py", "train_alcf.sh"] | None = None
    """Training script of Megatron-DeepSpeed. Default: ``pretrain_gpt_alcf.py``. ``train_alcf.sh`` is configured with
    environment variables and starts the processes itself."""
    python: ClusterProgram | None = None
    """Python of the trainer's environment, if it is not the profile's ``python``."""
    launcher: LauncherName | None = None
    """Launcher of its processes, if it is not the profile's ``launcher``. ``mpiexec`` and ``deepspeed`` are for
    Megatron-DeepSpeed only."""
    env: Environment = {}
    """Environment variables of its trainings, in addition to the cluster's."""
    arguments: Values = {}
    """Megatron arguments that this cluster needs. Arguments in a spec take precedence."""
    arguments_table: str | None = None
    """Argument table of a fork: a file written by ``airflow-megatron megatron-args CHECKOUT``."""
    extra_arguments: dict[str, ArgumentSection] = {}
    """Arguments that only this checkout has; ``{}`` declares one that takes text."""
    transformer_engine: Version | None = "2.8"
    """Version of Transformer Engine in its environment, ``null`` for none. Megatron-LM's checks depend on it."""
    packages: list[str] = []
    """Further Python packages in its environment, by import name, on which Megatron-LM's checks depend: ``modelopt``,
    ``nvidia_resiliency_ext``, ``flashinfer``, …"""
    missing_packages: list[str] = []
    """Packages that its environment lacks although it has Transformer Engine: ``[apex]`` if it was installed with pip.
    NVIDIA's containers have both."""

    def checkout_of(self, release: str) -> str | None:
        """Return the folder of a release's checkout, None if there is none."""
        return self.checkout.get(release) if isinstance(self.checkout, dict) else self.checkout


class LimitsSection(Strict):
    """Limits of the site."""

    max_jobs: Whole | None = Field(default=None, ge=1)
    """Maximum number of this user's jobs in Slurm's queue, pending and running. Further jobs wait."""
    max_time: Walltime | None = None
    """Maximum walltime of one attempt."""
    min_nodes: Whole | None = Field(default=None, ge=1)
    """Minimum number of nodes of one job."""
    max_nodes: Whole | None = Field(default=None, ge=1)
    """Maximum number of nodes of one job."""
    max_array_size: Whole = Field(default=1000, ge=1)
    """Maximum number of tasks of one job array: ``MaxArraySize`` of ``scontrol show config``, less one."""
    max_gpu_hours: Number | None = Field(default=None, gt=0)
    """Maximum GPU-hours of a sweep: the sum of walltime × GPUs over its jobs."""


class PartitionSection(Strict):
    """A partition of the cluster: the hardware of its nodes, and settings of its jobs."""

    gpus_per_node: Whole | None = Field(default=None, ge=0)
    """GPUs of a node. On a partition without GPUs, jobs get none unless they request them."""
    cpus_per_node: Whole | None = Field(default=None, ge=1)
    """CPU cores of a node."""
    core_spec: Whole = Field(default=0, ge=0)
    """Cores of ``cpus_per_node`` that Slurm reserves, unless the job gives ``--core-spec`` (``-S``) itself."""
    max_nodes: Whole | None = Field(default=None, ge=1)
    """Maximum number of nodes of one job."""
    max_time: Walltime | None = None
    """Maximum walltime of one attempt."""
    gpu_type: str | None = None
    """GPU type in requests, if the site requires one: ``a100`` in ``--gres=gpu:a100:4``."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Defaults for jobs on this partition. They take precedence over settings of levels above the one that names it."""
    env: Environment = {}
    """Environment variables of jobs on it, in addition to the cluster's."""
    container: ContainerSection | None = None
    """Container of jobs on it, instead of the cluster's."""


class SiteRuleSection(Strict):
    """A documented rule of the site: ``lint`` applies it to every job that it is about, and quotes its source."""

    rule: str
    """What the site requires, in one sentence."""
    source: str
    """Address of the document that states it."""
    read: Date
    """Date on which the source was read: ``"2026-11-23"`` or ``"2026-11"``."""
    verified: bool = True
    """Whether a public document of the site states it. A job that violates an unverified rule gets a warning."""
    advice: bool = False
    """Whether the site only advises it, and takes jobs that do otherwise: they get a warning."""
    partitions: list[str] = []
    """Partitions that it is about. Default: all."""
    qos: list[str] = []
    """Qualities of service that it is about. Default: all."""
    except_qos: list[str] = []
    """Qualities of service that it is not about."""
    from_nodes: Whole | None = Field(default=None, ge=1)
    """Smallest job that it is about, in nodes."""
    to_nodes: Whole | None = Field(default=None, ge=1)
    """Largest job that it is about, in nodes."""
    max_time: Walltime | None = None
    """Maximum walltime of one attempt."""
    min_nodes: Whole | None = Field(default=None, ge=1)
    """Minimum number of nodes of one job."""
    max_nodes: Whole | None = Field(default=None, ge=1)
    """Maximum number of nodes of one job."""
    max_node_hours: Number | None = Field(default=None, gt=0)
    """Maximum of nodes × walltime of one job, in hours."""
    max_jobs: Whole | None = Field(default=None, ge=1)
    """Maximum number of jobs of a user in the queue. A sweep that can exceed it gets a warning."""
    max_running: Whole | None = Field(default=None, ge=1)
    """Maximum number of jobs of a user that run at the same time. A sweep that can exceed it gets a warning."""
    max_running_nodes: Whole | None = Field(default=None, ge=1)
    """Maximum number of nodes of all running jobs of a user. A sweep that can exceed it gets a warning; a job that asks
    for more of them could never start."""
    whole_node_gpus: Whole | None = Field(default=None, ge=1)
    """GPUs of a node that is billed as a whole. A job that uses fewer of them gets a warning."""
    required: list[Literal["account", "partition", "qos", "constraint", "time"]] = []
    """Keys of ``slurm`` that a job must have."""
    refused_options: list[str] = []
    """sbatch options that the site refuses, by their long names: ``gres``, ``mem``."""
    no_run_root: list[ClusterPath] = []
    """Folders of file systems that are not for the files of jobs: ``run_root`` must not lie in them."""

    @model_validator(mode="after")
    def _checks_something(self, info: ValidationInfo) -> SiteRuleSection:
        if info.context == WRITTEN and not any(getattr(self, name) for name in _LIMITS_OF_RULES):
            raise _refused("the rule checks nothing", f"add a limit: {', '.join(_LIMITS_OF_RULES)}")
        return self


_LIMITS_OF_RULES: Final = (
    *("max_time", "min_nodes", "max_nodes", "max_node_hours", "max_jobs", "max_running", "max_running_nodes"),
    *("whole_node_gpus", "required", "refused_options", "no_run_root"),
)


class BillingSection(Strict):
    """What the site charges for a job."""

    unit: str
    """Name of the site's unit: ``core-hours``, ``node-hours``, ``SU``."""
    per_gpu_hour: Number = Field(gt=0)
    """Units that an hour of one GPU costs."""
    per_node_hour: dict[str, Annotated[Number, Field(gt=0)]] = {}
    """Units that an hour of a whole node costs, by partition: there, jobs pay for nodes whatever they use of them."""
    min_time: Duration | None = None
    """Shortest time that the site charges a job for."""


class StorageSection(Strict):
    """The file system of ``run_root``."""

    stripe: StripeOptions | None = None
    """Options of ``lfs setstripe`` for new directories of checkpoints on Lustre: ``--stripe-count 8``."""
    purge_after: Interval | None = None
    """Time without access after which the site deletes files: ``30d``. A sweep that can take longer gets a warning."""
    quota: ShellText | None = None
    """Command that prints the user's quotas, for ``cluster check``."""
    source: str | None = None
    """Address of the document that states these values."""
    read: Date | None = None
    """Date on which the source was read: ``"2026-11-23"`` or ``"2026-11"``."""


class ClusterSection(Strict):
    """A cluster profile."""

    description: str = ""
    """Text for people."""
    ssh_conn_id: str
    """ID of the Airflow connection to the login node."""
    run_root: ClusterPath
    """Absolute path of the directory for the sweeps; all nodes must see it."""
    python: ClusterProgram
    """Python of the trainer environment."""
    megatron_lm_dir: ClusterPath
    """This project's ``Megatron-LM/`` folder on the cluster."""
    launcher: CommonLauncher = "torchrun"
    """Program that starts the processes of a training."""
    gpu_option: Literal["gpus-per-node", "gres", "gpus-per-task", "none"] = "gpus-per-node"
    """sbatch option that requests GPUs."""
    master_addr: ShellText | None = None
    """Address at which the processes of several nodes meet, evaluated by the shell on the first node. Default:
    ``$(hostname)``."""
    local_addr: ShellText | None = None
    """Address of a node for the others, for ``torchrun``, evaluated by the shell on each node. Default: its name."""
    slurm: SlurmSection = SlurmSection.model_construct()
    """Defaults for every job."""
    partitions: dict[str, PartitionSection] = {}
    """Partitions that jobs may use. Default: any."""
    container: ContainerSection | None = None
    """Container in which jobs run, unless the spec names another one."""
    modules: list[str] = []
    """Environment modules that every job loads."""
    setup: list[str] = []
    """Shell lines run before the command."""
    env: Environment = {}
    """Environment variables of every job."""
    secrets: Secrets = {}
    """Environment variables with secret values: ``HF_TOKEN: {file: ~/.hf}`` of a private file on the cluster,
    ``{connection: ID}`` or ``{variable: NAME}`` of Airflow."""
    trainers: dict[TrainerName, TrainerSection] = {}
    """Location and properties of each trainer."""
    limits: LimitsSection = LimitsSection.model_construct()
    """Limits of the site. Jobs beyond them are refused or wait."""
    billing: BillingSection | None = None
    """What the site charges. ``plan`` states the cost of a sweep in its units."""
    storage: StorageSection | None = None
    """The file system of ``run_root``: striping, purge, quotas."""
    rules: list[SiteRuleSection] = []
    """Documented rules of the site, with their sources. ``lint`` refuses jobs that violate them."""
    gpu: str | None = None
    """GPU model, for estimates of memory and time: ``h100-80gb``, ``h200``, ``a100-80gb``, …"""
    mfu: Number | None = Field(default=None, gt=0, lt=1)
    """Expected model FLOPs utilisation of trainings, for estimates of GPU-hours."""
    login_shell: bool = False
    """Run Slurm's commands in a login shell. Needed if only a login shell has them on its ``PATH``."""
    restricted: bool = False
    """The key of the connection runs only this package's programs: ``lint`` refuses what they cannot do."""
    slurm_bin: ClusterPath | None = None
    """Directory of Slurm's commands, if they are not on the ``PATH``."""
    login_budget: Whole | None = Field(default=None, ge=1, le=1000)
    """Maximum number of logins in an hour from one machine. All its processes share one connection of the system's
    ``ssh``. Default: no limit, and connections of their own."""
    min_poll_interval: Seconds | None = Field(default=None, ge=1, le=86_400)
    """Shortest time between two polls of the cluster, whatever the specs say."""
    visibility_window: Interval = 300
    """Longest time until an accepted submission appears in ``squeue`` or ``sacct``."""
    signatures: list[str] = []
    """Files with failure signatures for log lines of this site, relative to the profile."""
    nice: Whole = Field(default=0, ge=0, le=19)
    """Nice value of the commands of jobs, for a machine that also runs Slurm and Airflow."""
    templates: str | None = None
    """Folder with sbatch templates of this cluster, relative to the profile. They replace the project's."""


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
        return section.model_validate(document.data, context=WRITTEN)
    except ValidationError as error:
        raise SpecError(list(_problems(error, document, section))) from error


def _problems(error: ValidationError, document: YamlDocument, section: type[Strict]) -> Iterator[Problem]:
    details = error.errors(include_url=False)[: MOST_PROBLEMS + 1]
    paths = [
        _document_path((*detail["loc"], *detail.get("ctx", {}).get("entry", ())), document)
        for detail in details
    ]
    wanted: dict[KeyPath, list[str]] = {}
    missing = {detail["loc"] for detail in details if detail["type"] == "missing"}
    misspelt: dict[
        tuple[int | str, ...], str
    ] = {}  # place of an unknown key → the missing key that it stands for
    for detail, path in zip(details, paths, strict=True):
        wanted.setdefault(path, []).append(_expected(detail, section))
        if detail["type"] == "extra_forbidden":
            place, key = detail["loc"][:-1], str(detail["loc"][-1])
            for name in near_names(key, _fields_at(section, place), limit=1):
                if (*place, name) in missing:
                    misspelt[detail["loc"]] = name
    for detail, path in zip(details, paths, strict=True):
        if detail["type"] == "extra_forbidden":
            key = str(detail["loc"][-1])
            meant = misspelt.get(detail["loc"])
            place = detail["loc"][:-1]
            hint = (
                suggestion([repr(meant)])
                if meant
                else _param_of_kind(key, document, path[:-1]) or _hint_for_key(key, section, place)
            )
            yield document.problem(path, f"unknown key {key!r}", hint)
        elif detail["type"] == "missing":
            is_named = any((*loc[:-1], name) == detail["loc"] for loc, name in misspelt.items())
            if not is_named:  # by the hint about an unknown key
                key = str(detail["loc"][-1])
                yield document.problem(
                    path, f"{key!r} is missing", _hint_for_missing_key(key, section, detail["loc"][:-1])
                )
        elif detail["type"] == "string_type" and any(other[: len(path)] == path != other for other in paths):
            continue  # of a union with lists; the item's own problem tells
        elif expected := wanted.pop(path, None):
            # a union reports once for every member; the first place is enough
            name = ".".join(str(part) for part in path) or "the document"
            if expected[0].startswith(("greater", "less")):  # of a number; the text would be an expression
                expected = expected[:1]
            if detail["type"] == "refused":
                yield document.problem(path, f"{name}: {expected[0]}", detail["ctx"]["hint"])
                continue
            if "a number" in expected:
                expected = [text for text in expected if text != "a whole number"]
            hint = "expected " + " or ".join(dict.fromkeys(expected))
            shown = _shown(detail["input"], path)
            if expected[0].startswith((f"{shown} is not", f"{shown} cannot")):  # a sentence about the value
                message, _, hint = expected[0].partition("; ")
                yield document.problem(path, f"{name}: {message}", hint)
                continue
            if "secrets" in path:
                hint = f"{hint}; {SECRET_HINT}"
            elif detail["type"] == "literal_error":
                names = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
                word = str(detail["input"])
                near = near_names(word, names, alike=_ALIKE)
                if len(near) > 1:
                    near = near_names(word, near, alike=_ALIKE_AMONG)
                hint = f"{suggestion(map(repr, near))} {hint}" if len(near) == 1 else hint
            elif conditions := _conditions_of_list(detail, path, section):
                hint = f"write {conditions}"
            elif text := _text_of_list(detail, path):
                hint = f'write {path[-1]}: "{text}"'
            yield document.problem(path, f"{name} is {shown}", hint)


_ALIKE: Final = 0.7
"""Minimum similarity of a word to the one that is suggested: ``gpu`` is not meant to be ``cpu``."""
_ALIKE_AMONG: Final = 0.85
"""The same where several words are alike: ``megatron_ml`` is meant to be ``megatron_lm``, not ``megatron_core``."""
_ALIKE_BELOW: Final = 0.85
"""The same for a key of another section: many keys are compared."""
SECRET_HINT = "write NAME: {file: PATH}, a private file on the cluster, or {connection: ID}, {variable: NAME}"


def _shown(value: Any, path: KeyPath) -> str:
    """Return a value as messages quote it, without what may be a token."""
    if isinstance(value, dict | list) and value:
        return "a mapping" if isinstance(value, dict) else "a list"
    return "…" if _may_be_secret(path) else shown_value(value)


def _may_be_secret(path: KeyPath) -> bool:
    return (
        "secrets" in path
        or path[-1:] == ("env",)
        or ("env" in path and any(is_secret_name(str(part)) for part in path))
    )


def _text_of_list(detail: Any, path: KeyPath) -> str:
    """Return the text that is meant by a list of words; empty if the value is none."""
    words = detail["input"]
    if detail["type"] != "string_type" or not isinstance(words, list) or _may_be_secret(path):
        return ""
    is_plain = all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in words)
    return ",".join(map(str, words)) if is_plain else ""


def _conditions_of_list(detail: Any, path: KeyPath, section: type[Strict]) -> str:
    """Return the conditions that are meant by a list in place of one of them, such as ``file: [a, b]``."""
    of_condition = issubclass(_sections_at(section, detail["loc"])[-1][1], ConditionSection)
    if not of_condition or path[-1] not in ("file", "log") or not _text_of_list(detail, path):
        return ""
    return f"all: [{', '.join(f'{{{path[-1]}: {word}}}' for word in detail['input'])}]"


def _as_list(detail: Any, section: type[Strict]) -> str:
    """Return an example: the list that is meant by a value; empty if the value is no plain word, and no mapping of
    options.
    """
    path, value = detail["loc"], detail["input"]
    if path[-1] == "options" and isinstance(value, dict) and value:
        words = [
            f"--{name}" if given in (True, None) else f"--{name}={given}" for name, given in value.items()
        ]
        return f", such as [{', '.join(words)}]"
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    of_sections = _sections_at(section, path)[-1][0] == path
    if not is_plain or of_sections or _may_be_secret(path) or not _PLAIN_WORDS.fullmatch(str(value)):
        return ""
    words = str(value).split() if "wrapper" in path else [str(value)]
    return f", such as [{', '.join(words)}]"


_PLAIN_WORDS: Final = re.compile(r"[\w./+=-]+( [\w./+=-]+)*", re.ASCII)


def _expected(detail: Any, section: type[Strict]) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "a whole number"
        case "float_parsing" | "float_type":
            return "a number"
        case "bool_parsing" | "bool_type":
            return "true or false"
        case "string_type":
            return "text" if isinstance(detail["input"], dict | list) else "text (quote it)"
        case "list_type" if detail["loc"][-1] == "command":
            return 'a list of words, such as [bash, -c, "…"]'
        case "list_type":
            return f"a list{_as_list(detail, section)}"
        case "too_short":
            return "at least one item"
        case "dict_type" | "model_type" | "model_attributes_type":
            section = globals().get(context.get("class_name"), Strict)
            return f"keys with values{section.example and f', such as {section.example}'}"
        case "literal_error":
            return f"one of {context['expected']}"
        case "expression":
            return 'an expression "{{ … }}"'
        case "string_pattern_mismatch":
            return _CALLED[context["pattern"]]
        case "value_error":
            return str(context["error"])
        case "refused":
            return str(context["message"])
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
    return _keys_of(_sections_at(section, loc)[-1][1])


def _keys_of(section: type[Strict]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections_at(
    section: type[Strict], loc: tuple[str | int, ...]
) -> list[tuple[tuple[str | int, ...], type[Strict]]]:
    """Return the sections around a place, each with its own place, outermost first."""
    found: list[tuple[tuple[str | int, ...], type[Strict]]] = [((), section)]
    length = 0
    while length < len(loc):
        part, current = loc[length], found[-1][1]
        length += 1
        fields = current.model_fields
        annotation = next(
            (fields[name].annotation for name in fields if part in (name, fields[name].alias)), None
        )
        if nested := _nested_section(annotation):
            length += any(_is_within(container, annotation) for container in (dict, list))
            found.append((loc[:length], nested))
    return found


def build_sections() -> None:
    """Build the validators of all sections now, so that processes forked later need not build those that they use."""
    waiting = Strict.__subclasses__()
    while waiting:
        section = waiting.pop()
        section.model_rebuild()
        waiting += section.__subclasses__()


def _hint_for_missing_key(key: str, section: type[Strict], loc: tuple[str | int, ...]) -> str:
    """Return what to write for a key of the section at ``loc``, with the names that it may have."""
    field = _sections_at(section, loc)[-1][1].model_fields.get(key)
    names = (
        next((each for each in field.metadata if isinstance(each, RegisteredName)), None) if field else None
    )
    return f"add {key}: …" + (f", with {names.listed()}" if names else "")


def _hint_for_key(key: str, section: type[Strict], loc: tuple[str | int, ...]) -> str:
    """Return what to write instead of an unknown key: its right place if it is known elsewhere, or a similar key."""
    around = _sections_at(section, loc)
    here = around[-1][1]
    if hint := _place_below(key, here):
        return hint
    for place, outer in reversed(around[:-1]):
        if key in _keys_of(outer):
            return f"write it in {'.'.join(map(str, place))}" if place else "write it at the top level"
    if "megatron" in _keys_of(here) and _is_argument(key):
        return f"write megatron: {{{key}: …}}"
    known = f"{here.further}known here: {', '.join(sorted(_keys_of(here)))}"
    longer = suggestion(map(repr, longer_names(key, _keys_of(here))))
    return (
        did_you_mean(key, _keys_of(here))
        or _near_below(key, here)
        or longer
        or known.replace("KEY", key.replace("_", "-"))
    )


def _param_of_kind(key: str, document: YamlDocument, stage: KeyPath) -> str:
    """Return where to write a key that a stage's kind takes among its params; empty for another key."""
    if len(stage) != 2 or stage[0] != "stages":
        return ""
    kind = document.data["stages"][stage[1]].get("kind")
    known = STAGE_KINDS[kind].params if isinstance(kind, str) and kind in STAGE_KINDS else None
    return f"write params: {{{key}: …}}" if key in (known or ()) else ""


def _is_argument(key: str) -> bool:
    release = SweepSpecSection.model_fields["release"].default
    return any(TRAINERS[name].has_argument(key, release) for name in TRAINERS.built_in)


def _place_below(key: str, section: type[Strict]) -> str:
    """Return the place of a key in a section below this one, in the words of a hint; empty if none has it."""
    for name, field in section.model_fields.items():
        nested = _nested_section(field.annotation)
        if nested is not None and key in _keys_of(nested):
            text = f"{{{key}: …}}"
            if _is_within(dict, field.annotation):
                text = f"{{NAME: {text}}}"
            elif _is_within(list, field.annotation):
                text = f"[{text}]"
            return f"write {field.alias or name}: {text}"
    return ""


def _near_below(key: str, section: type[Strict]) -> str:
    """Return the place of the most similar key in a section below this one; empty if none is similar enough."""
    near = near_names(key, _keys_below(section), limit=1, alike=_ALIKE_BELOW)
    return _place_below(near[0], section) if near else ""


@functools.cache
def _keys_below(section: type[Strict]) -> tuple[str, ...]:
    """Return the keys of the sections below this one, each once, in the order of the fields."""
    below = (_nested_section(field.annotation) for field in section.model_fields.values())
    return tuple(dict.fromkeys(key for nested in below if nested for key in _keys_of(nested)))


def _nested_section(annotation: Any) -> type[Strict] | None:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        nested = _nested_section(argument)
        if nested:
            return nested
    return None


def _is_within(container: type, annotation: Any) -> bool:
    """Return whether the section of an annotation is a value of a mapping, or an item of a list."""
    if getattr(annotation, "__origin__", None) is container:
        return _nested_section(annotation) is not None
    return any(_is_within(container, argument) for argument in getattr(annotation, "__args__", ()))
