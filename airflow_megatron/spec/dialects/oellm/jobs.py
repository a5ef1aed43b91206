"""Translation of a resolved point of an oellm-autoexp sweep to one job of this package.

The backend decides the kind: MegatronBackend trains, MegatronBridgeBackend converts, OELLMEvalBackend evaluates,
BashBackend and NullBackend run their command. What this package manages itself is not taken over: paths of
checkpoints and logs, the launcher, the container, variables of the distributed environment.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.oellm.conditions import Neighbour, Translator
from airflow_megatron.spec.dialects.oellm.containers import container_of
from airflow_megatron.spec.dialects.oellm.environment import environment_of
from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.dialects.oellm.fields import FieldError, placed
from airflow_megatron.spec.dialects.oellm.postprocess import ITERATION, passed_over_steps, steps_of
from airflow_megatron.spec.dialects.oellm.slurm import RESOURCES, slurm_section
from airflow_megatron.spec.dialects.oellm.sources import external_source, iteration_of_source, on_cluster
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.foreign.foreign_sweep import RELEASE, TRAINER
from airflow_megatron.spec.foreign.megatron_metadata import ForkArgument, ForkArguments
from airflow_megatron.spec.layout.run_layout import log_pattern_of, stage_dir_of
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.model.jobs import Dependency, Job
from airflow_megatron.spec.model.schema import LONGEST_CHAIN, RestartSection
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.schema import SlurmSection, StageKindName
    from airflow_megatron.spec.model.stage_tree import Waits

KINDS: Mapping[str, StageKindName] = {
    "MegatronBackend": "train",
    "MegatronBridgeBackend": "convert",
    "OELLMEvalBackend": "evaluate",
    "BashBackend": "command",
    "NullBackend": "command",
}
_MANAGED_ARGUMENTS = frozenset(
    {"aux", "save", "load", "tensorboard_dir", "ckpt_step", "exit_signal_handler", "class_name"}
)
OPENEUROLLM: Final = ForkArguments(
    {
        "final_logit_softcapping": ForkArgument("final_logit_softcapping", {"type": "float"}),
        "output_z_loss_coeff": ForkArgument("output_z_loss_coeff", {"type": "float"}),
        "save_extra_steps": ForkArgument("save_extra_steps", {"type": "int", "nargs": "*"}),
    }
)
"""Arguments of OpenEuroLLM's fork of Megatron-LM that no release has, for a file without its checkout."""
_CONVERSION = ("ckpt_convert_format", "ckpt_convert_save")
_QUOTING = re.compile(r"[\\'\"]")


@dataclass(frozen=True)
class Place:
    """The position of a job in its sweep.

    :param sweep: name of the sweep
    :param point: name of the point
    :param stage: name of the stage instance
    :param cluster: name of the cluster profile
    :param run_dir: absolute run directory
    :param branch: stage instance whose run directory that is
    :param parent: stage instance that it follows
    :param swept: dotted keys that the sweep varies
    """

    sweep: str
    point: str
    stage: str
    cluster: str
    run_dir: str
    branch: str | None
    parent: str | None
    swept: tuple[str, ...]

    @property
    def stage_dir(self) -> str:
        """Directory of the attempts."""
        return stage_dir_of(self.run_dir, self.stage)

    @property
    def log_pattern(self) -> str:
        """Path of the logs, with a place ``{attempt}``."""
        return log_pattern_of(self.run_dir, self.stage)

    @property
    def log(self) -> str:
        """Log of the first attempt."""
        return self.log_pattern.replace("{attempt}", "1")


def kind_of(configuration: Configuration) -> StageKindName:
    """Return the kind of job of a point.

    :raises JobError: for a backend that this package does not run
    """
    name = configuration.get("backend.class_name")
    if name is None:
        if configuration.get("backend.command") is not None:
            return "command"
        return "train"
    kind = KINDS.get(str(name))
    if kind is None:
        raise JobError(
            f"backend {name} cannot be run here",
            "backend.class_name",
            "it trains with torchtitan; this package runs Megatron"
            if str(name).startswith("Titan")
            else did_you_mean(str(name), KINDS) or f"known: {', '.join(KINDS)}",
        )
    return kind


def neighbour(job: Job, configuration: Configuration) -> Neighbour:
    """Return the parts of a job that conditions of later jobs use."""
    last = job.params.get("train_iters") if job.kind == "train" else None
    return Neighbour(
        job.stage,
        job.kind,
        job.run_dir,
        job.stage_dir,
        job.log_pattern,
        str(configuration.get("job.name") or configuration.get("project.name") or ""),
        job.branch,
        last if isinstance(last, int) else None,
    )


def build_job(
    configuration: Configuration,
    place: Place,
    made: Sequence[tuple[Job, Neighbour]],
    defaults: SlurmSection | None = None,
    fork: ForkArguments = OPENEUROLLM,
) -> tuple[Job, list[str]]:
    """Return the job of one point and warnings about ignored keys.

    :param configuration: of the point
    :param place: its place
    :param defaults: resources of the cluster profile
    :param made: the jobs of its family made before it
    :param fork: the arguments of the Megatron that it runs
    :raises JobError: if it cannot be expressed
    :raises ConfigurationError: if a value cannot be resolved
    """
    kind = kind_of(configuration)
    parent = next((job for job, _ in made if job.stage == place.parent), None)
    passed: list[str] = []
    source = external_source(configuration, kind, place.run_dir, [job for job, _ in made], parent, passed)
    slurm = slurm_section(configuration, kind, defaults, passed)
    resources = {key: getattr(slurm, key) or 1 for key in RESOURCES}
    arguments = _arguments(configuration, passed, fork) if kind == "train" else {}
    passed.extend(passed_over_steps(configuration, kind))
    if source is not None:
        arguments.pop("finetune", None)  # of the first attempt alone
    of_fork = {name: argument for name, argument in fork.added.items() if name in arguments}
    if of_fork:
        whose = "OpenEuroLLM's fork" if fork is OPENEUROLLM else "the fork that the file's checkout follows"
        passed.append(
            f"{', '.join(of_fork)}: no release of Megatron-LM takes it, only {whose}; "
            "the cluster profile's checkout has to be that fork"
        )
    iteration = _iteration(configuration, kind, parent)
    own = Neighbour(place.stage, kind, place.run_dir, place.stage_dir, place.log_pattern, "", place.branch)
    translator = Translator(
        *(own, [other for _, other in made], iteration, passed, _monitor_variables(configuration)),
        lambda path, key: on_cluster(path, key, configuration, passed),
    )
    try:
        start = _condition(translator, configuration, "start")
        cancel = _condition(translator, configuration, "cancel")
        finish = _condition(translator, configuration, "finish")
        events = translator.events(configuration.get("job.log_events"), configuration.get("job.state_events"))
    except FieldError as error:
        raise JobError(str(error), error.key or "job") from error
    if kind == "evaluate":
        start = _on_converted(start, parent)
    if source is not None:
        iteration = iteration_of_source(source, kind)
    elif kind == "train" and parent and parent.kind == "train":
        iteration = _starting_iteration(start, iteration, parent)
    elif kind == "train":
        iteration = None
    waits, dependency = _dependency(start, parent)
    swept = _swept_values(configuration, place.swept, arguments, fork)
    variables = {**resources, **swept, **_kind_values(configuration, kind, passed)}
    job = Job(
        name=".".join((place.sweep, place.point, place.stage)),
        sweep=place.sweep,
        point=place.point,
        stage=place.stage,
        kind=kind,
        cluster=place.cluster,
        trainer=TRAINER,
        release=RELEASE,
        branch=place.branch,
        params={**arguments, **variables},
        explicit_arguments=tuple(arguments),
        variables=tuple(variables),
        swept=(*swept, *(key.rpartition(".")[2] for key in place.swept if _argument_name(key) in arguments)),
        depends_on=(dependency,) if dependency else (),
        run_dir=place.run_dir,
        parent_dir=parent.run_dir if parent and parent.branch and source is None else None,
        iteration=iteration,
        source=source,
        command=_command(configuration) if kind == "command" else (),
        slurm=slurm,
        env=environment_of(configuration, passed),
        start=start if waits == "condition" else None,
        cancel=cancel,
        finish=finish,
        events=(*events, *_inactivity(configuration)),
        restart=_restart(configuration, kind, translator, passed),
        extra_arguments={argument.flag: argument.declaration for argument in of_fork.values()},
        container=container_of(configuration, passed),
    )
    return job, translator.warnings


def _inactivity(configuration: Configuration) -> tuple[Event, ...]:
    """Return the event of ``job.inactivity_threshold_seconds`` (a name of the README): a restart after silence."""
    seconds = configuration.get("job.inactivity_threshold_seconds")
    if seconds in (None, ""):
        return ()
    key = "job.inactivity_threshold_seconds"
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise JobError(f"{key} is {seconds!r}, not a number of seconds", key)
    return (Event("inactivity", "idle", "restart", after=float(seconds), limit=1),)


def _monitor_variables(configuration: Configuration) -> dict[str, Any]:
    """Return the variables that upstream's monitor has before a job runs (``MonitorLoop._build_job_metadata``)."""
    metadata = configuration.get("job.metadata")
    return {
        **(metadata if isinstance(metadata, dict) else {}),
        "job_name": configuration.get("job.name", ""),
        "stage": configuration.get("stage", ""),
        "sweep_index": configuration.get("index", 0),
    }


def _restart(
    configuration: Configuration,
    kind: StageKindName,
    translator: Translator,
    warnings: list[str],
) -> RestartSection:
    """Return the restart policy.

    ``job.chain_repeat`` attempts of a training are queued, each behind the one before. ``MaxAttemptsCondition`` limits
    the attempts of events that restart the job.

    :param translator: of the events of the job
    """
    given: dict[str, Any] = {}
    if translator.quarantine is not None:
        given["quarantine"] = translator.quarantine
    attempts = [most for _, most in translator.attempts]
    limits = [most for most in attempts if most is not None]
    if limits and len(limits) == len(attempts):
        given["retryable"] = max(0, max(limits) - 1)
    if limits and len(set(attempts)) > 1:
        counts = f"the largest one, {max(limits)}, counts" if "retryable" in given else "none counts"
        named = ", ".join(dict.fromkeys(name for name, _ in translator.attempts))
        warnings.append(
            f"job: events {named}: of several limits of MaxAttemptsCondition {counts} for all of them; the sidecar's "
            "restart: {retryable: …} sets another"
        )
    key = "job.chain_repeat"
    repeat = configuration.get(key)
    if repeat is None:
        return RestartSection(**given)
    if repeat == 0 and not isinstance(repeat, bool):
        repeat = 1  # upstream chains where it is more than 1
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= LONGEST_CHAIN:
        raise JobError(f"{key} is {repeat!r}, not a whole number from 1 to {LONGEST_CHAIN}", key)
    if repeat > 1 and kind == "train":
        given["chain"] = repeat
    elif repeat > 1:
        warnings.append(
            f"{key}: {repeat}: only trainings have attempts that wait for each other in the queue"
        )
    return RestartSection(**given)


def waits_of(job: Job) -> Waits:
    """Return the conditions before a job's submission."""
    if job.start is not None:
        return "condition"
    until = job.depends_on[0].until if job.depends_on else "finished"
    return until if until in ("checkpoint", "log") else "parent"  # type: ignore[return-value]


def _condition(translator: Translator, configuration: Configuration, word: str) -> Condition | None:
    """Return a condition of the job; in the README it is a list, ``start_conditions``.

    :param word: ``start``, ``cancel`` or ``finish``
    """
    keys = (f"job.{word}_condition", f"job.{word}_conditions")
    given = {key: data for key in keys if (data := configuration.get(key))}
    if len(given) > 1:
        raise JobError(f"{' and '.join(keys)} are both given", keys[1], "keep one of them")
    for key, data in given.items():
        with placed(key):
            made = translator.start(data) if word == "start" else translator.condition(data)
        if made is None and word != "start":
            translator.warnings.append(f"{key}: it always holds, which would {word} every job: left out")
        return made
    return None


def _arguments(configuration: Configuration, warnings: list[str], fork: ForkArguments) -> dict[str, Any]:
    section = configuration.section("backend.megatron")
    if not isinstance(section, dict):
        raise JobError("backend.megatron takes keys with values", "backend.megatron")
    if section.get("ckpt_convert_format"):
        # oellm-autoexp trains without them, and converts afterwards (megatron_backend.build_launch_command)
        dropped = [key for key in _CONVERSION if section.get(key)]
        if not steps_of(configuration, "train"):
            warnings.append(
                f"{', '.join(f'backend.megatron.{key}' for key in dropped)}: "
                "the training does not convert its checkpoints; add a stage that converts"
            )
        section = {key: value for key, value in section.items() if key not in _CONVERSION}
    if section.get("exit_signal_handler") is False:
        warnings.append(
            "backend.megatron.exit_signal_handler: false: a job that is stopped saves first; it is always set here"
        )
    arguments = {
        key: _as_flag(_after_shell(value, f"backend.megatron.{key}"))
        for key, value in section.items()
        if key not in _MANAGED_ARGUMENTS and value is not None and value != [] and not isinstance(value, dict)
    }
    for key in [key for key in arguments if not _is_passed(key, fork)]:
        near = did_you_mean(key, fork.passed or (), limit=1, alike=0.75)
        warnings.append(
            f"backend.megatron.{key}: oellm-autoexp does not pass it, because the Megatron of its checkout has no such "
            f"argument{f'; {near}' if near else ''}"
        )
        del arguments[key]
    for key, argument in fork.added.items():
        if key in arguments and arguments[key] == argument.default:
            del arguments[key]
    if not section.get("save") and arguments.get("save_interval") is None:
        arguments["save_interval"] = 0  # upstream's command line has no --save either
    if arguments.get("skip_train") is True:
        arguments["save_interval"] = 0  # Megatron then saves nothing, and the job ends after its evaluation
    for key in ("train_iters", "train_samples", "save_interval", "lr_decay_iters", "lr_warmup_iters"):
        number = whole(arguments.get(key))
        if number is not None:
            arguments[key] = number
    return arguments


def _is_passed(name: str, fork: ForkArguments) -> bool:
    return fork.passed is None or name in fork.passed


def _after_shell(value: Any, key: str) -> Any:
    """Return what the shell of upstream's script makes of a value, which is in the command without quotes.

    :raises JobError: if a quote is open
    """
    if isinstance(value, list):
        made = [_after_shell(item, key) for item in value]
        return [word for item in made for word in (item if isinstance(item, list) else [item])]
    if not isinstance(value, str) or not _QUOTING.search(value):
        return value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise JobError(
            f"{key} is {value!r}, and the shell of the job would find no end of it: {str(error).lower()}",
            key,
            "escape a quote that is meant: \\\\'",
        ) from error
    return words[0] if len(words) == 1 else words


def _as_flag(value: Any) -> Any:
    """Return a value; the texts ``true`` and ``false``, which variables have, are flags, as upstream reads them."""
    word = value.strip().lower() if isinstance(value, str) else ""
    return word == "true" if word in ("true", "false") else value


def _iteration(configuration: Configuration, kind: StageKindName, parent: Job | None) -> int | None:
    """Return the checkpoint of a point, from its paths or ``ckpt_step``."""
    if kind == "train":
        step = configuration.get("backend.megatron.ckpt_step")
        texts = [configuration.get("backend.megatron.load")]
    else:
        step = configuration.get("backend.iteration")
        models = configuration.get("backend.models")
        texts = [
            configuration.get("backend.megatron_path"),
            configuration.get("backend.hf_path"),
            *(models if isinstance(models, list) else []),
        ]
    number = whole(step)
    if number is not None and number > 0:
        return number
    for text in texts:
        match = ITERATION.search(str(text or ""))
        if match:
            return int(match[1])
    if kind in ("train", "command") or parent is None:
        return None
    last = parent.params.get("train_iters")
    return last if isinstance(last, int) else parent.iteration


def _starting_iteration(start: Condition | None, named: int | None, parent: Job) -> int | None:
    if start is not None and start.kind == "checkpoint" and start.path == parent.checkpoint_dir:
        return start.iteration
    last = parent.params.get("train_iters")
    return named or (last if isinstance(last, int) else None)


def _on_converted(start: Condition | None, parent: Job | None) -> Condition | None:
    """Make an evaluation wait for its conversion: an existing checkpoint may not have been converted yet."""
    if parent is not None and parent.kind == "convert":
        return Condition("finished", path=parent.stage_dir)
    return start


def _dependency(start: Condition | None, parent: Job | None) -> tuple[Waits, Dependency | None]:
    if start is None:
        return "parent", Dependency(parent.name, parent.stage) if parent else None
    if parent is None:
        return "condition", None
    if start.kind == "finished" and start.path == parent.stage_dir:
        return "parent", Dependency(parent.name, parent.stage)
    if start.kind == "checkpoint" and start.path == parent.checkpoint_dir:
        return "checkpoint", Dependency(parent.name, parent.stage, "checkpoint", start.iteration)
    if start.kind == "log" and start.path == parent.log_pattern:
        return "log", Dependency(parent.name, parent.stage, "log", pattern=start.pattern)
    return "condition", Dependency(parent.name, parent.stage, "condition")


def _argument_name(key: str) -> str:
    return key.removeprefix("backend.megatron.") if key.startswith("backend.megatron.") else ""


def _swept_values(
    configuration: Configuration, swept: Sequence[str], arguments: Mapping[str, Any], fork: ForkArguments
) -> dict[str, Any]:
    """Return the swept values that are not Megatron arguments, by the last part of their key."""
    values: dict[str, Any] = {}
    for key in swept:
        name = key.rpartition(".")[2]
        if _argument_name(key) in arguments or name in arguments or key.startswith(("job.", "container.")):
            continue
        if _argument_name(key) == name and not _is_passed(name, fork):
            continue
        value = configuration.get(key)
        if isinstance(value, bool | int | float | str):
            values[name] = value
    return values


def _kind_values(configuration: Configuration, kind: StageKindName, warnings: list[str]) -> dict[str, Any]:
    """Return the input of a conversion or evaluation; of two keys for the same the first counts, with a warning."""
    if kind == "convert":
        names: dict[str, tuple[str, ...]] = {
            "tokenizer": ("backend.tokenizer", "backend.hf_model"),
            "hf_architecture": ("backend.hf_architecture",),
        }
    elif kind == "evaluate":
        names = {
            "tasks": ("backend.tasks", "backend.task_groups"),
            "tasks_dir": ("backend.tasks_dir", "backend.lm_eval_include_path"),
            "limit": ("backend.limit",),
            "num_fewshot": ("backend.n_shot",),
        }
    else:
        return {}
    values = {}
    for name, keys in names.items():
        given = {key: value for key in keys if (value := configuration.get(key)) not in (None, "", [])}
        if given:
            first, *others = given
            values[name] = given[first]
            passed_over = [key for key in others if given[key] != given[first]]
            if passed_over:
                warnings.append(f"{', '.join(passed_over)}: {first} gives the same, and counts")
    return values


def _command(configuration: Configuration) -> tuple[str, ...]:
    command = configuration.get("backend.command")
    if isinstance(command, str):
        return ("bash", "-c", command)
    key = "backend.command" if command else "backend"
    words = command or [
        *(configuration.get("backend.base_command") or ()),
        *(configuration.get("backend.extra_cli_args") or ()),
    ]
    if not words:
        raise JobError("the backend has no command", key, "write command: …")
    if not isinstance(words, list) or not all(
        isinstance(word, str | int | float) and not isinstance(word, bool) for word in words
    ):
        raise JobError(
            f"the command is {words!r}, not a list of words", key, "quote the words that are meant"
        )
    return tuple(str(word) for word in words)
