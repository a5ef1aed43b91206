"""The command line of each kind of job."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from airflow_megatron.megatron.arguments import lr_search
from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT, ArgumentError, to_argv
from airflow_megatron.megatron.arguments.trainers import job_table
from airflow_megatron.megatron.commands.conversion_options import conversion_options
from airflow_megatron.megatron.commands.deepspeed_commands import (
    alcf_words,
    config_file,
    config_text,
    default_arguments,
    launches_itself,
)
from airflow_megatron.megatron.commands.deepspeed_config import CONFIG, TRAINER
from airflow_megatron.megatron.commands.evaluation_options import evaluation_options
from airflow_megatron.spec.documents.checkpoint_directories import deepspeed_tag, directory_name
from airflow_megatron.spec.expressions.file_values import FILE_PREFIX
from airflow_megatron.spec.layout.run_layout import model_config_of, result_dir, tracker_of
from airflow_megatron.spec.model.schema import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job


_ENTRIES: Final = tuple(f"/{entry}" for entry in get_args(Entry))
#: The script is among so many words: the interpreter, the starters for CPUs and of a search, the script.
_BEFORE: Final = 4
#: The releases before core_v0.16 validate every so many iterations when nothing is given; later ones have no default,
#: and end a training that gives none at its start.
_EVAL_INTERVAL: Final = 1000
_OWN_DIRECTORIES: Final = frozenset(
    {"--save", "--load", "--tensorboard-dir", "--data-cache-path", "--lr-finder-save"}
)


def job_command(job: Job, cluster: ClusterProfile) -> tuple[str, ...]:
    """Return the words of the command that a job runs on each process.

    A training job's command loads its own branch's checkpoints; :func:`branch_arguments` are appended to it as long
    as that branch has none.

    :raises CommandError: when a parameter is unknown, of the wrong type or missing
    """
    if job.command:
        return job.command
    scripts = cluster.megatron_lm_dir.rstrip("/")
    if job.runs_trainer:
        return _training_command(job, cluster, scripts)
    if job.source is not None and job.source.is_pattern:
        return _runs_command(job, job.source, cluster, scripts)
    fresh = _each_checkpoint(job)
    if fresh is not None:
        return (
            cluster.python,
            f"{scripts}/each_checkpoint.py",
            *_options(
                source=fresh.path,
                done=fresh.done,
                from_iteration=fresh.iteration,
                spacing=fresh.spacing,
                last=fresh.last,
            ),
            *(("--required",) if job.source else ()),
            "--",
            *_checkpoint_command(job, cluster, scripts, "{iteration}"),
        )
    if job.kind == "convert" and job.trainer == TRAINER:
        raise CommandError(
            "kind",
            f"stage {job.stage}: the converter does not read DeepSpeed's checkpoints; "
            "use kind: command with Megatron-DeepSpeed's mds_to_hf.py",
        )
    if job.iteration is None:
        raise CommandError(
            "iteration", f"stage {job.stage} does not know its checkpoint; give it params: {{iteration: …}}"
        )
    return _checkpoint_command(job, cluster, scripts, job.iteration)


def _runs_command(
    job: Job, source: CheckpointSource, cluster: ClusterProfile, scripts: str
) -> tuple[str, ...]:
    """Return the command that works on every directory that a pattern matches; what it makes has a folder for each."""
    run = job.layout.of_run("{run}")
    one: int | str = "{iteration}" if source.from_iteration is not None else job.iteration or 0
    work = msgspec.structs.replace(
        job, run_dir=run.run_dir, source=dataclasses.replace(source, path="{directory}")
    )
    found, done = "{directory}", run.converted_mark("{iteration}")
    if job.kind == "evaluate":
        model = result_dir("{directory}", one) if one == "{iteration}" else "{directory}"
        found, done = model_config_of(model), run.evaluation("{iteration}")
    return (
        cluster.python,
        f"{scripts}/each_checkpoint.py",
        *_options(
            runs=source.path,
            list=runs_list(job),
            source=found,
            done=done,
            from_iteration=source.from_iteration,
            spacing=source.spacing if source.from_iteration is not None else None,
            iteration=None if one == "{iteration}" else one,
        ),
        "--",
        *_checkpoint_command(work, cluster, scripts, one),
    )


def runs_list(job: Job) -> str:
    """Return the file in which a stage that works on several runs lists them when it has worked on all."""
    return job.layout.runs_list(job.stage)


def _each_checkpoint(job: Job) -> Condition | None:
    """Return the condition that says which checkpoints a job works on one after the other, None for a single one."""
    conditions = (condition for condition in (job.start, job.finish) if condition is not None)
    leaves = itertools.chain.from_iterable(condition.leaves() for condition in conditions)
    return next((leaf for leaf in leaves if leaf.kind == "new_checkpoint"), None)


def _checkpoint_command(
    job: Job, cluster: ClusterProfile, scripts: str, iteration: int | str
) -> tuple[str, ...]:
    """Return the command that converts or evaluates one checkpoint."""
    converted = job.layout.model_dir(iteration)
    if job.kind == "convert":
        return (
            cluster.python,
            f"{scripts}/convert_to_hf.py",
            *_options(
                load=job.source.path if job.source else job.checkpoint_dir,
                iteration=iteration,
                output=converted,
                tokenizer=_needed(job, "tokenizer"),
                done_marker=job.layout.converted_mark(iteration),
            ),
            *conversion_options(job.params),
        )
    model = converted
    if job.source is not None:
        one = isinstance(iteration, int)
        model = job.source.path if one else result_dir(job.source.path, iteration)
    return (
        cluster.python,
        f"{scripts}/evaluate_hf.py",
        *_options(model=model, output=evaluation_file(job, iteration)),
        *evaluation_options(_needed(job, "tasks"), job.params),
    )


def evaluation_file(job: Job, iteration: int | str | None) -> str:
    """Return the results file of a checkpoint's evaluation."""
    return job.layout.evaluation(iteration)


def required_outputs(job: Job) -> tuple[str, ...]:
    """Return the files without which a job that ended well has not finished."""
    if job.source is not None and job.source.is_pattern:
        return (*job.outputs, runs_list(job))
    if job.finish is not None:
        return job.outputs
    if job.kind == "convert":
        return (*job.outputs, job.layout.model_config(job.iteration))
    if job.kind == "evaluate":
        return (*job.outputs, evaluation_file(job, job.iteration))
    if job.kind == lr_search.KIND:
        return (*job.outputs, job.layout.suggested_lr)
    return job.outputs


def branch_arguments(job: Job) -> tuple[str, ...]:
    """Return the arguments that start a branch from a checkpoint that is not its own; empty for one from scratch.

    That is its parent's, or one outside the sweep. Attempts after the branch's first checkpoint do not get them, so
    ``--finetune``, which begins at iteration 0 whatever it loads, is not for the command itself.
    """
    iteration = job.source.iteration if job.source else job.iteration
    if job.kind != "train" or job.origin_dir is None or (iteration is None and not job.source):
        return ()
    words = ["--load", job.origin_dir]
    if iteration is not None:
        words += ["--load-tag", deepspeed_tag(iteration)] if job.trainer == TRAINER else []
        words += ["--ckpt-step", str(iteration)] if job.trainer != TRAINER else []
    return (*words, "--finetune") if job.source and job.source.mode == "finetune" else tuple(words)


def needed_to_start(job: Job) -> str | None:
    """Return a path that must exist before a training starts from a checkpoint outside the sweep, else None.

    Megatron begins with random weights where it finds no checkpoint, or ends with exit code 0
    (``--exit-on-missing-checkpoint``).
    """
    if job.kind != "train" or job.source is None:
        return None
    if job.source.iteration is None:
        return tracker_of(job.source.path)
    tag = deepspeed_tag(job.source.iteration)
    return f"{job.source.path}/{tag if job.trainer == TRAINER else directory_name(job.source.iteration)}"


def megatron_arguments(job: Job, cluster: ClusterProfile) -> dict[str, Any]:
    """Return the Megatron arguments of a training job: defaults of this package and the cluster, then the spec's own.

    A swept value is an argument when the release knows one of its name and it is no variable of the spec.
    """
    table = job_table(job, cluster)
    trainer = cluster.trainer(job.trainer)
    arguments: dict[str, Any] = {
        "save": job.checkpoint_dir,
        "load": job.checkpoint_dir,
        "tensorboard_dir": job.layout.tensorboard_dir,
        "exit_signal_handler": True,
        # jobs that start at once on the same data would write upstream's index files at the same time
        "data_cache_path": job.layout.data_cache_dir if job.trainer == "megatron_lm" else None,
        **(default_arguments(job) if job.trainer == TRAINER else {}),
        **trainer.arguments,
    }
    if job.kind == lr_search.KIND:
        # it starts anew with every attempt, and writes its curve instead of checkpoints
        arguments |= {"save": job.run_dir, "load": None, "exit_signal_handler": None, "lr_finder": True}
    if job.kind == "benchmark":
        arguments |= {"save": None, "load": None, "exit_signal_handler": None}
        # no evaluation; but from core_v0.16 on upstream divides by the interval and has no default for it
        arguments |= {"log_interval": 1, "eval_iters": 0, "eval_interval": job.params.get("train_iters")}
        arguments |= {"log_throughput": True} if table.get("log_throughput") else {}
    elif job.trainer == "megatron_lm" and (every := table.get("eval_interval")) and every.default is None:
        arguments["eval_interval"] = _EVAL_INTERVAL
    names, given_dests = _given_arguments(table, tuple(job.params), job.explicit_arguments, job.variables)
    given = {name: job.params[name] for name in names}
    arguments = {
        name: value
        for name, value in arguments.items()
        if (argument := table.get(name)) is None or argument.dest not in given_dests
    } | given
    if job.kind == lr_search.KIND and job.trainer == "megatron_lm":
        arguments = lr_search.search_arguments(job, arguments, table)
    if job.kind == "benchmark" and not arguments.get("wandb_project"):
        # upstream sends nothing to W&B that it does not write for TensorBoard
        arguments["tensorboard_dir"] = job.params.get("tensorboard_dir")
    if (
        job.kind == "train"
        and job.trainer != TRAINER
        and "save" not in given_dests
        and _saves_nothing(arguments)
    ):
        # as a command line without --save: nothing is loaded again, and a signal ends it
        arguments |= dict.fromkeys(("save", "load", "exit_signal_handler", "save_interval"))
    if arguments.get("wandb_project") and table.get("wandb_save_dir"):
        # upstream ends without a name, and takes a folder below --save
        arguments.setdefault("wandb_exp_name", job.name)
        if not arguments.get("save"):
            arguments.setdefault("wandb_save_dir", job.layout.wandb_dir)
    if isinstance(arguments.get(CONFIG), dict):
        arguments[CONFIG] = config_file(job)
    return arguments


@functools.lru_cache(maxsize=256)
def _given_arguments(
    table: ArgumentTable, params: tuple[str, ...], explicit: tuple[str, ...], variables: tuple[str, ...]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return which params of a job are Megatron arguments, and their ``dest``; the same at all points of a stage.

    An argument has several names (no_rope_fusion, apply_rope_fusion): the spec's wins under any of them.
    """
    names = tuple(
        name
        for name in params
        if (name in explicit and (table.get(name) or not lr_search.is_option(name)))
        or (name not in variables and table.get(name))
    )
    return names, frozenset(argument.dest for argument in map(table.get, names) if argument)


def _saves_nothing(arguments: dict[str, Any]) -> bool:
    return "save_interval" in arguments and arguments["save_interval"] in (0, "0")


def leaves_checkpoints(job: Job) -> bool:
    """Whether a training leaves a checkpoint when it ends: not where the spec says ``save_interval: 0``."""
    return not runs_pretrain_gpt(job.command) or "--save" in job.command or job.trainer == TRAINER


def trainer_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the Megatron arguments of a training's command; before them stand interpreter, starters and script."""
    place = _script_place(command)
    return tuple(command[(1 if place is None else place) + 1 :])


def runs_pretrain_gpt(command: Sequence[str]) -> bool:
    """Whether a command is Megatron's training of GPT, not one that a spec gives a training stage in its place."""
    return runs_upstream_script(command) and any(
        word.endswith(f"/{PRETRAIN_GPT}") for word in command[:_BEFORE]
    )


def runs_upstream_script(command: Sequence[str]) -> bool:
    """Whether a command is one of Megatron's training scripts, of GPT or another model."""
    return (_script_place(command) or 0) > 0


def search_starter(command: Sequence[str]) -> str | None:
    """Return the program that makes a search for a learning rate of upstream's training, None without it."""
    place = _script_place(command) or 0
    started = command[place - 1].rpartition("/")[2] if place > 1 else None
    return started if started == lr_search.STARTER else None


def _script_place(command: Sequence[str]) -> int | None:
    return next((place for place, word in enumerate(command[:_BEFORE]) if word.endswith(_ENTRIES)), None)


def comparable_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the Megatron arguments of a training's command without what no rule looks at.

    Checkpoint and log directories are each job's own. A value that an earlier job writes is not known yet; in its place
    stands a number that any rule lets pass.
    """
    words = trainer_words(command)
    return tuple(
        "/run" if before in _OWN_DIRECTORIES else "1" if word.startswith(FILE_PREFIX) else word
        for before, word in zip(("", *words), words, strict=False)
    )


def job_files(job: Job, cluster: ClusterProfile) -> dict[str, str]:
    """Return the files that a job's script writes before its command starts, path → text: DeepSpeed's configuration.

    :raises CommandError: when it cannot be made
    """
    if job.trainer != TRAINER or not job.runs_trainer or job.command or launches_itself(job, cluster):
        return {}
    arguments = megatron_arguments(job, cluster)
    try:
        text = config_text(job, arguments, job_table(job, cluster))
    except ArgumentError as error:
        raise CommandError(error.name, str(error)) from error
    own = arguments[CONFIG] == config_file(job)
    return {config_file(job): text} if own else {}


def _training_command(job: Job, cluster: ClusterProfile, scripts: str) -> tuple[str, ...]:
    arguments = megatron_arguments(job, cluster)
    if not arguments.get("train_iters") and not arguments.get("train_samples"):
        raise CommandError(
            "train_iters", f"stage {job.stage} has no train_iters; add megatron: {{train_iters: …}}"
        )
    try:
        if launches_itself(job, cluster):
            return alcf_words(job, arguments, job_table(job, cluster), _checkout(job, cluster))
        words = to_argv(arguments, job_table(job, cluster))
    except ArgumentError as error:
        raise CommandError(error.name, str(error)) from error
    python = cluster.python_of(job.trainer)
    if job.trainer == "megatron_core":
        return (python, f"{scripts}/pretrain_gpt.py", *words)
    if job.trainer == TRAINER:
        entry = cluster.trainer(TRAINER).entry or "pretrain_gpt_alcf.py"
        return (python, f"{_checkout(job, cluster)}/{entry}", *words)
    starters = [f"{scripts}/upstream_on_cpu.py"] if cluster.trainer(job.trainer).device == "cpu" else []
    starters += [f"{scripts}/{lr_search.STARTER}"] if job.kind == lr_search.KIND else []
    return (python, *starters, f"{_checkout(job, cluster)}/{job.entry or PRETRAIN_GPT}", *words)


def _checkout(job: Job, cluster: ClusterProfile) -> str:
    checkout = cluster.trainer(job.trainer).checkout_of(job.release)
    if not checkout:
        name = "Megatron-DeepSpeed" if job.trainer == TRAINER else f"Megatron-LM {job.release}"
        raise CommandError(
            "trainer",
            f"cluster {cluster.name} has no checkout of {name}; "
            f"set trainers: {{{job.trainer}: {{checkout: …}}}} in its profile",
        )
    return checkout.rstrip("/")


def _needed(job: Job, name: str) -> Any:
    value = job.params.get(name)
    if value in (None, "", []):
        raise CommandError(name, f"stage {job.stage} ({job.kind}) needs {name}; add params: {{{name}: …}}")
    return value


def _options(**values: object) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words
