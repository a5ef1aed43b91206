"""The command line of each kind of job."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, get_args

from airflow_megatron.megatron.arguments import lr_search
from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT, ArgumentError
from airflow_megatron.megatron.commands.trainer_stage import trainer_stage
from airflow_megatron.megatron.trainers.trainer import (
    INDEX_CACHE_STARTER,
    MegatronTrainer,
    shared_index_cache,
    trainer_called,
)
from airflow_megatron.megatron.trainers.trainer_table import job_table
from airflow_megatron.spec.expressions.file_values import FILE_PREFIX
from airflow_megatron.spec.layout.run_layout import tracker_of
from airflow_megatron.spec.model.schema import Entry
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


_ENTRIES: Final = tuple(f"/{entry}" for entry in get_args(Entry))
#: Number of first words with the script: interpreter; starters for CPUs, a shared index cache and a search; script.
_BEFORE: Final = 5
_OWN_DIRECTORIES: Final = frozenset(
    {"--save", "--load", "--tensorboard-dir", "--data-cache-path", "--lr-finder-save"}
)


def job_command(
    job: Job,
    cluster: ClusterProfile,
    given: tuple[Mapping[str, Any], ArgumentTable] | None = None,
) -> tuple[str, ...]:
    """Return the words of the command that a job runs on each process.

    A training job's command loads its own branch's checkpoints; :func:`branch_arguments` are appended while that
    branch has none.

    :param given: results of :func:`megatron_arguments` and :func:`.job_table` for a job that runs the trainer
    :raises CommandError: if a parameter is unknown, of the wrong type or missing
    """
    if job.command:
        return job.command
    if not job.runs_trainer:
        return _words(job, job.stage_kind.command(job, cluster))
    return training_command(
        job, cluster, *(given or (megatron_arguments(job, cluster), job_table(job, cluster)))
    )


def _words(job: Job, command: object) -> tuple[str, ...]:
    """Return the words that a kind of stage, which may be another package's, has made.

    :raises CommandError: if they are not texts; a text would become a command of its letters
    """
    if isinstance(command, tuple | list) and all(isinstance(word, str) for word in command):
        return tuple(command)
    made = f"command() of {type(job.stage_kind).__qualname__} returned {shown_value(command)}"
    raise CommandError("kind", f"stage {job.stage}: {made}, which is not a tuple of texts")


def runs_list(job: Job) -> str:
    """Return the file in which a stage that processes several runs lists them at its end."""
    return job.layout.runs_list(job.stage)


def required_outputs(job: Job) -> tuple[str, ...]:
    """Return the files that must exist for a successful job to have finished."""
    if job.source is not None and job.source.is_pattern:
        return (*job.outputs, runs_list(job))
    if job.finish is not None:
        return job.outputs
    return (*job.outputs, *job.stage_kind.outputs(job))


def branch_arguments(job: Job) -> tuple[str, ...]:
    """Return the arguments that start a branch from its parent's checkpoint; empty without one.

    The checkpoint may also be one outside the sweep. Attempts after the branch's first checkpoint do not get these
    arguments. Therefore ``--finetune``, which always begins at iteration 0, is among them and not in the command
    itself.
    """
    iteration = job.source.iteration if job.source else job.iteration
    if not job.trains or job.origin_dir is None or (iteration is None and not job.source):
        return ()
    words = ["--load", job.origin_dir]
    if iteration is not None:
        words += job.trained_by.load_words(iteration)
    return (*words, "--finetune") if job.source and job.source.mode == "finetune" else tuple(words)


def needed_to_start(job: Job) -> str | None:
    """Return a path that must exist before a training starts from a checkpoint outside the sweep, else None.

    If Megatron finds no checkpoint, it begins with random weights, or ends with exit code 0
    (``--exit-on-missing-checkpoint``).
    """
    if not job.trains or job.source is None:
        return None
    if job.source.iteration is None:
        return tracker_of(job.source.path)
    return f"{job.source.path}/{job.trained_by.checkpoint_directory(job.source.iteration)}"


def megatron_arguments(job: Job, cluster: ClusterProfile) -> dict[str, Any]:
    """Return the Megatron arguments of a training job: defaults of this package and the cluster, then those of the
    spec.

    A swept value is an argument if the release has one of that name and it is not a variable of the spec.
    """
    table, kind, trainer = job_table(job, cluster), trainer_stage(job), trainer_called(job.trainer)
    arguments: dict[str, Any] = {
        "save": job.checkpoint_dir,
        "load": job.checkpoint_dir,
        "tensorboard_dir": job.layout.tensorboard_dir,
        "exit_signal_handler": True,
        **({"data_cache_path": shared_index_cache(job, cluster)} if trainer.shares_index_cache else {}),
        **trainer.default_arguments(job),
        **cluster.trainer(job.trainer).arguments,
    }
    of_kind = kind.default_arguments(job, table)
    missing = trainer.missing_arguments(table)
    arguments |= of_kind | {
        name: value for name, value in missing.items() if name not in of_kind and name not in arguments
    }
    names, given_dests = _given_arguments(table, tuple(job.params), job.explicit_arguments, job.variables)
    given = {name: job.params[name] for name in names}
    overridden = _overridden(table, tuple(arguments), given_dests)
    arguments = {name: value for name, value in arguments.items() if name not in overridden} | given
    arguments = kind.final_arguments(job, arguments, given_dests, table)
    if arguments.get("wandb_project") and table.get("wandb_save_dir"):
        # upstream fails without a name, and uses a folder below --save
        arguments.setdefault("wandb_exp_name", job.name)
        if not arguments.get("save"):
            arguments.setdefault("wandb_save_dir", job.layout.wandb_dir)
    return trainer.written_arguments(job, arguments)


@functools.lru_cache(maxsize=256)
def _given_arguments(
    table: ArgumentTable, params: tuple[str, ...], explicit: tuple[str, ...], variables: tuple[str, ...]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return which params of a job are Megatron arguments, and their ``dest``; the same at all points of a stage.

    An argument has several names (no_rope_fusion, apply_rope_fusion): that of the spec has precedence under any of
    them.
    """
    names = tuple(
        name
        for name in params
        if (name in explicit and (table.get(name) or not lr_search.is_option(name)))
        or (name not in variables and table.get(name))
    )
    return names, frozenset(argument.dest for argument in map(table.get, names) if argument)


@functools.lru_cache(maxsize=256)
def _overridden(table: ArgumentTable, names: tuple[str, ...], given: frozenset[str]) -> frozenset[str]:
    """Return the arguments that the spec gives, under any of their names."""
    return frozenset(name for name, dest in zip(names, table.dests(names), strict=True) if dest in given)


def leaves_checkpoints(job: Job) -> bool:
    """Return whether a training saves a checkpoint at its end (not with ``save_interval: 0``)."""
    return not runs_pretrain_gpt(job.command) or "--save" in job.command or _always_saves(job)


def _always_saves(job: Job) -> bool:
    return not trainer_called(job.trainer).leaves_out_saving


def trainer_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the Megatron arguments of a training's command, which follow interpreter, starters and script."""
    place = _script_place(command)
    return tuple(command[(1 if place is None else place) + 1 :])


def runs_pretrain_gpt(command: Sequence[str]) -> bool:
    """Return whether a command is Megatron's GPT training, and not another command of the spec."""
    return runs_upstream_script(command) and _names_pretrain_gpt(tuple(command[:_BEFORE]))


def runs_upstream_script(command: Sequence[str]) -> bool:
    """Return whether a command is one of Megatron's training scripts, for GPT or another model."""
    return upstream_script(command) is not None


def upstream_script(command: Sequence[str]) -> str | None:
    """Return the file name of Megatron's training script in a command, None without one."""
    place = _script_place(command) or 0
    return command[place].rpartition("/")[2] if place > 0 else None


def input_words(job: Job) -> tuple[str, ...]:
    """Return the words of a job's command that affect its results: all but the directory of shared index files.

    They equal those of a training with its own index folder, as in versions without shared folders, so that trainings
    finished then are not repeated.
    """
    words = list(job.command)
    started = next((word for word in words[:_BEFORE] if word.endswith(f"/{INDEX_CACHE_STARTER}")), None)
    if started is None:
        return job.command
    words.remove(started)
    words[words.index("--data-cache-path") + 1] = job.layout.data_cache_dir
    return tuple(words)


def search_starter(command: Sequence[str]) -> str | None:
    """Return the program that runs upstream's training as a search for a learning rate, None without it."""
    place = _script_place(command) or 0
    started = command[place - 1].rpartition("/")[2] if place > 1 else None
    return started if started == lr_search.STARTER else None


def _script_place(command: Sequence[str]) -> int | None:
    return _place_in(tuple(command[:_BEFORE]))


@functools.lru_cache(maxsize=256)  # the same for all points of a stage
def _place_in(words: tuple[str, ...]) -> int | None:
    return next((place for place, word in enumerate(words) if word.endswith(_ENTRIES)), None)


@functools.lru_cache(maxsize=256)
def _names_pretrain_gpt(words: tuple[str, ...]) -> bool:
    return any(word.endswith(f"/{PRETRAIN_GPT}") for word in words)


#: Numbers in place of values that earlier jobs write. A rule refuses such a value only if it refuses both in the same
#: words; the second one is a multiple of most batches and sizes.
SUBSTITUTES: Final = ("1", "5040")


def reads_files(command: Sequence[str]) -> bool:
    """Return whether a command has values that an earlier job writes, and that are therefore not known yet."""
    # a search in all words at once is ten times as fast
    return FILE_PREFIX in "\n".join(command) and any(word.startswith(FILE_PREFIX) for word in command)


def comparable_words(command: Sequence[str], substitute: str = SUBSTITUTES[0]) -> tuple[str, ...]:
    """Return the Megatron arguments of a training's command without those that no rule reads.

    Checkpoint and log directories differ between jobs and are left out.

    :param substitute: number in place of the values that an earlier job writes
    """
    words = trainer_words(command)
    compared = list(words)
    if reads_files(words):
        compared = [substitute if word.startswith(FILE_PREFIX) else word for word in words]
    for place in [place for place, word in enumerate(words[:-1], 1) if word in _OWN_DIRECTORIES]:
        compared[place] = "/run"
    return tuple(compared)


def job_files(job: Job, cluster: ClusterProfile) -> dict[str, str]:
    """Return the files that a job's script writes before its command starts, path → text.

    :raises CommandError: if they cannot be made
    """
    trainer = trainer_called(job.trainer)
    if not job.runs_trainer or job.command or trainer.launches_itself(job, cluster):
        return {}
    if type(trainer).files is MegatronTrainer.files:
        return {}  # it writes none, so its arguments need not be computed again
    try:
        return trainer.files(job, megatron_arguments(job, cluster), job_table(job, cluster))
    except ArgumentError as error:
        raise CommandError(error.name, str(error)) from error


def launches_itself(job: Job, cluster: ClusterProfile) -> bool:
    """Return whether a job's command starts the training processes itself."""
    return job.runs_trainer and trainer_called(job.trainer).launches_itself(job, cluster)


def _is_length(value: object) -> bool:
    """Return whether a training of this length trains; what is no number is the parser's to refuse."""
    try:
        return not isinstance(value, bool) and float(str(value)) > 0
    except ValueError:
        return bool(value)


def training_command(
    job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
) -> tuple[str, ...]:
    """Return the command of a job that runs the trainer.

    :param arguments: result of :func:`megatron_arguments`
    :param table: the trainer's arguments
    :raises CommandError: if a parameter is unknown, of the wrong type or missing
    """
    lengths = [name for name in ("train_iters", "train_samples") if arguments.get(name) is not None]
    if not lengths:
        raise CommandError("train_iters", f"stage {job.stage} has no train_iters", "megatron")
    if not any(_is_length(arguments[name]) for name in lengths):
        raise CommandError(
            lengths[0], f"stage {job.stage} has {lengths[0]} {arguments[lengths[0]]!r}; write at least 1"
        )
    try:
        return trainer_called(job.trainer).command(job, cluster, arguments, table)
    except ArgumentError as error:
        raise CommandError(error.name, str(error)) from error
