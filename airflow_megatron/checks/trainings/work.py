"""Check that stages which run the trainer train, and validate as often as their arguments seem to say.

``--skip-train`` evaluates and saves nothing (``megatron/training/training.py``, ``pretrain``), and a stage that trains
has finished with its last checkpoint. Upstream validates where ``iteration % eval_interval`` is 0 and sets aside
``train_iters // eval_interval + 1`` validations (``train``, ``get_train_valid_test_num_samples`` there): a negative
interval counts as its absolute value, with too few samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.megatron.validation.upstream_rules.data import lacks_share
from airflow_megatron.requirements.training_arguments import TrainingArguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.requirements.training_arguments import JobArguments
    from airflow_megatron.spec.model.jobs import Job

_LEAST_INTERVAL: Final = {"upstream_rules": 0, "nothing": 1}
"""Lowest interval that is not reported here, by what checks the arguments of a trainer."""


def work_findings(jobs: Iterable[Job], arguments: JobArguments) -> Iterator[Finding]:
    """Yield stages that train nothing, that validate by an interval below 1, or whose wrapper none of them gets.

    :param jobs: with their commands
    :param arguments: of these jobs
    """
    for job in jobs:
        command = job.command if job.runs_trainer else ()
        if job.wrapped_ranks and min(job.wrapped_ranks) >= job.world_size:
            yield Finding(
                "wrapped-ranks",
                job,
                ("wrapper", "ranks"),
                f"none of the wrapper's ranks {list(job.wrapped_ranks)} is among its {job.world_size} processes",
                f"ranks of at most {job.world_size - 1}; the first is 0",
                warning=True,
            )
        # a command of the spec's own may have neither
        if "--skip-train" in command:
            yield from _trains_nothing(TrainingArguments(job, arguments))
        elif job.trains and trainer_called(job.trainer).checked_by == "upstream_rules":
            yield from _has_nothing_to_train_on(TrainingArguments(job, arguments))
        if "--eval-interval" in command:
            # the program, and the rules for 0, refuse it themselves
            least = _LEAST_INTERVAL.get(trainer_called(job.trainer).checked_by)
            if least is not None:
                yield from _validations(TrainingArguments(job, arguments), least)


def _trains_nothing(arguments: TrainingArguments) -> Iterator[Finding]:
    job = arguments.job
    if not job.trains:
        message, hint = (
            f"skip_train trains nothing, and a stage of kind {job.kind} measures a training",
            "drop it",
        )
    elif arguments.value("save") is not None and job.finish is None:
        message = (
            "skip_train saves no checkpoint, and with the last checkpoint a stage of kind train has finished"
        )
        hint = "drop it; or save_interval: 0 as well, for a stage that only evaluates what start: names"
    else:
        return
    yield Finding("skip-train", job, ("skip_train",), message, hint)


def _has_nothing_to_train_on(arguments: TrainingArguments) -> Iterator[Finding]:
    """Yield a training of upstream's without training data: it evaluates and ends with exit code 0."""
    others, split = ("valid_data_path", "test_data_path"), arguments.value("split")
    given = next((name for name in others if arguments.value(name) is not None), None)
    ends = "Megatron ends without training, and saves no checkpoint"
    if arguments.value("data_path") is not None or arguments.value("data_args_path") is not None:
        if isinstance(split, str) and lacks_share(split, 0):
            what = f"its split {split} leaves no training data: {ends}"
            yield Finding("train-data", arguments.job, ("split",), what, "a first share above 0")
    elif given and arguments.value("train_data_path") is None:
        yield Finding(
            "train-data",
            arguments.job,
            (given,),
            f"has a {given}, but no train_data_path: {ends}",
            "train_data_path: [PREFIX]",
        )


def _validations(arguments: TrainingArguments, least: int) -> Iterator[Finding]:
    job, interval = arguments.job, arguments.number("eval_interval")
    if interval is None or interval >= least or not arguments.count("eval_iters"):
        return
    often = f"validates every {abs(interval)} iterations" if interval else "divides by 0"
    yield Finding(
        "eval-interval",
        job,
        ("eval_interval",),
        f"eval_interval {interval} does not disable validations: the trainer {often}",
        "eval_iters: 0 for no validations, or an interval of 1 or more",
    )
