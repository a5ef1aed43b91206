"""Check, with the converter's own rules, that a Hugging Face class exists for the models of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.checks.trainings.trainer import unanswered
from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT
from airflow_megatron.megatron.commands.commands import (
    comparable_words,
    runs_pretrain_gpt,
    upstream_script,
)
from airflow_megatron.megatron.commands.conversion_options import ARCHITECTURES
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.megatron.validation.command_checks import read_settings
from airflow_megatron.requirements.job_machine import machine_of
from airflow_megatron.requirements.job_programs import JobProgramError, answers
from airflow_megatron.spec.expressions.file_values import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

GROUPS_OF_THE_RUN: Final = frozenset(
    {
        "RNG and initialization",
        "checkpointing",
        "data",
        "data and dataloader",
        "exit",
        "learning rate",
        "learning rate and weight decay",
        "logging",
        "regularization",
        "validation",
    }
)
"""Groups of Megatron's arguments, in all releases, that do not affect the choice of a Hugging Face class."""
_MAMBA: Final = "pretrain_mamba.py"


def architecture_findings(
    jobs: Iterable[Job], trainings: Mapping[str, TrainingArguments], cluster: ClusterProfile
) -> Iterator[Finding]:
    """Yield trainings whose checkpoints a convert stage cannot convert, at the position of their settings.

    Models that cannot be known before the job are not checked: an architecture file on the cluster, a fork's own
    argument table, model settings from a YAML file, an earlier job or a checkpoint from elsewhere.

    :param jobs: with their commands
    :param trainings: the arguments of training jobs by run directory
    """
    alike: dict[object, list[tuple[Job, TrainingArguments]]] = {}
    for job in jobs:
        if (script := _other_script(job, trainings)) is not None:
            yield _of_another_model(job, script)
            continue
        training = _trained(trainings.get(job.run_dir), trainings) if _converts(job) else None
        if training is None or not _is_known(training, cluster):
            continue
        values = training.outside(GROUPS_OF_THE_RUN)
        if not any(path_of(value) for value in values.values()):
            model = tuple(sorted((name, repr(value)) for name, value in values.items()))
            of_run = (training.job.trainer, training.job.release, training.job.world_size)
            key = (model, of_run, *_choice(job).values())
            alike.setdefault(key, []).append((job, training))
    asked = [{**_model(training, cluster), **_choice(job)} for (job, training), *_ in alike.values()]
    try:
        answered = answers("check_conversions.py", asked)
    except JobProgramError as error:
        (job, _), *_ = next(iter(alike.values()))
        yield unanswered(job, error)
        return
    for refused, answer in zip(alike.values(), answered, strict=True):
        for job, training in refused if answer else ():
            yield _finding(job, training, answer)


def _converts(job: Job) -> bool:
    """Whether a job runs this project's converter with a built-in architecture."""
    return _runs_converter(job) and job.params.get("hf_architecture") in (None, *ARCHITECTURES)


def _runs_converter(job: Job) -> bool:
    return (
        job.stage_kind.makes_models
        and not job.script
        and any(word.endswith("/convert_to_hf.py") for word in job.command)
    )


def _other_script(job: Job, trainings: Mapping[str, TrainingArguments]) -> str | None:
    """Return upstream's script that trains the model of a conversion, if the converter cannot read its checkpoints.

    It compares the result of another program with a GPT that has the checkpoint's weights, except for Mamba.
    """
    training = trainings.get(job.run_dir) if _runs_converter(job) and job.source is None else None
    script = upstream_script(training.job.command) if training else None
    by_another = script == _MAMBA and job.params.get("converter") is not None
    return None if script == PRETRAIN_GPT or by_another else script


def _of_another_model(job: Job, script: str) -> Finding:
    return Finding(
        f"architecture:{script}",
        job,
        ("kind",),
        f"the converter reads checkpoints of {PRETRAIN_GPT} only, not those of {script}",
        f"{'set converter, or use' if script == _MAMBA else 'use'} kind: command with a program that does",
    )


def _trained(
    training: TrainingArguments | None, trainings: Mapping[str, TrainingArguments]
) -> TrainingArguments | None:
    """Return the training whose arguments define the model: with ``use_checkpoint_args``, its parent."""
    while training is not None and training.value("use_checkpoint_args"):
        training = trainings.get(training.job.parent_dir or "")
    return training


def _is_known(training: TrainingArguments, cluster: ClusterProfile) -> bool:
    """Whether the arguments in a training's checkpoints can be determined."""
    job = training.job
    if job.script or not runs_pretrain_gpt(job.command):
        return False
    checked_by = trainer_called(job.trainer).checked_by
    if checked_by == "program":
        return not job.extra_arguments
    return (
        checked_by == "upstream_rules"
        and not cluster.trainer(job.trainer).arguments_table
        and not training.value("yaml_cfg")
        and None not in (training.count("num_layers"), training.count("num_attention_heads"))
    )


def _model(training: TrainingArguments, cluster: ClusterProfile) -> dict[str, Any]:
    """Return the description of the model in the format of ``check_conversions.py``."""
    job, words = training.job, comparable_words(training.job.command)
    if trainer_called(job.trainer).checked_by == "program":
        return {"argv": words, "world_size": job.world_size}
    _, settings = read_settings(
        words, job.world_size, job.release, machine=machine_of(job, cluster), flags=reader(training.table)
    )
    # the settings hold no argument of a fork that is not given
    saved = {argument.dest: getattr(settings, argument.dest, argument.default) for argument in training.table}
    return {"saved": saved}


def _choice(job: Job) -> dict[str, Any]:
    """Return the options of the converter in the format of ``check_conversions.py``."""
    return {
        "architecture": job.params.get("hf_architecture"),
        "converter": job.params.get("converter"),
        "hf_config": job.params.get("hf_config"),
    }


def _finding(job: Job, training: TrainingArguments, answer: Mapping[str, Any]) -> Finding:
    given = {argument.dest: name for name in training.job.params if (argument := training.table.get(name))}
    converting = job.stage.removeprefix(f"{training.job.stage}.")
    names = [given.get(setting, setting) for setting in answer["settings"]]
    return Finding(
        f"architecture:{job.stage}:{','.join(names)}",
        training.job,
        ("megatron",),
        f"{converting} cannot convert its checkpoints: {answer['problem']}",
        f"change {' and '.join(names)}; or the converter or hf_architecture of {converting}",
        # a site's template may extend the command
        warning=training.job.template is not None,
        names=tuple(names),
    )
