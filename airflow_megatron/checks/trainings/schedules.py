"""Check that learning-rate schedules end with the training, and that branches continue them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.checks.trainings.loading import BRANCH, loading_findings
from airflow_megatron.megatron.arguments.schedule import Schedule
from airflow_megatron.megatron.rules.rule import Rule
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.megatron.validation.optimizer_schedule import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments

RULES_OF_SCHEDULES: Final = frozenset(rule.name for rule in LENGTHS if isinstance(rule, Rule))
"""The rules of Megatron that :func:`schedule_findings` reports, for all trainers, with the keys of a spec."""
_JUMP = 0.02
"""Smallest change of the learning rate, as a fraction of its peak, that counts as a jump."""


def schedule_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield the errors and warnings about the schedules of training jobs.

    :param trainings: the arguments of the training jobs by run directory
    """
    schedules = {
        # of two lengths, which every program refuses, none is the schedule's
        run_dir: None if _has_two_lengths(arguments) else Schedule.of(arguments)
        for run_dir, arguments in trainings.items()
    }
    for run_dir, arguments in trainings.items():
        schedule = schedules[run_dir]
        if schedule is None or _trains_nothing(arguments, schedule):
            continue
        impossible = list(_impossible(arguments, schedule))
        yield from impossible
        if any(not finding.warning for finding in impossible):
            continue
        yield from _odd_ends(arguments, schedule)
        parent_dir = arguments.job.parent_dir or ""
        parent, before = trainings.get(parent_dir), schedules.get(parent_dir)
        if parent and before and arguments.job.iteration is not None and before.unit == schedule.unit:
            yield from _branch(arguments, schedule, parent, before, arguments.job.iteration)


def _has_two_lengths(arguments: TrainingArguments) -> bool:
    return "train_iters" in arguments and "train_samples" in arguments


def _trains_nothing(arguments: TrainingArguments, schedule: Schedule) -> bool:
    """Return whether a branch ends before it starts, with its schedule: that is one error, of its length."""
    start = arguments.job.iteration or 0
    return schedule.unit == "iters" and 0 < schedule.decay <= schedule.length <= start


def _impossible(arguments: TrainingArguments, schedule: Schedule) -> Iterator[Finding]:
    unit, job = schedule.unit, arguments.job
    if schedule.warmup >= schedule.decay:
        name = _warmup_name(arguments, unit)
        shown = schedule.warmup if name.endswith(unit) else arguments.value(name)
        yield Finding(
            "warmup-not-shorter",
            job,
            (name,),
            f"{name} {shown:g} is not below lr_decay_{unit} {schedule.decay}",
            "shorten the warm-up, or train longer",
        )
    if schedule.lr_decay_style == "WSD":
        name = f"lr_wsd_decay_{unit}"
        if schedule.wsd_decay is None:
            hint = f"add {name}: {max(schedule.decay // 5, 1)}"
            yield Finding("wsd-without-decay", job, ("lr_decay_style",), f"the style WSD needs {name}", hint)
        elif schedule.wsd_decay > schedule.decay:
            yield Finding(
                "wsd-too-long",
                job,
                (name,),
                f"the WSD decay of {schedule.wsd_decay} {_words(unit)} is longer than the whole schedule of"
                f" {schedule.decay}",
                f"{name} of at most {max(int(schedule.decay - schedule.warmup), 1)}",
                warning=not trainer_called(job.trainer).refuses_long_decay,
            )


def _odd_ends(arguments: TrainingArguments, schedule: Schedule) -> Iterator[Finding]:
    """Yield schedules that end before or after the training."""
    unit, job, style = schedule.unit, arguments.job, schedule.lr_decay_style
    name = f"lr_decay_{unit}"
    tail = schedule.length - schedule.decay
    if schedule.length < schedule.warmup:
        yield Finding(
            "ends-in-warmup",
            job,
            (_warmup_name(arguments, unit),),
            f"the training ends at {schedule.length}, inside the warm-up of {schedule.warmup:.0f} {_words(unit)}: the"
            f" learning rate never exceeds {schedule.rate(schedule.length) * 100:.3g}% of its peak",
            "shorten the warm-up, or train longer",
            warning=True,
        )
        return
    if style == "constant":
        return
    if tail > 0:
        yield Finding(
            "tail",
            job,
            (name,),
            f"the last {tail} of {schedule.length} {_words(unit)} run at min_lr ({schedule.min_lr:g}): {name} is"
            f" {schedule.decay}, counted from 0 including the warm-up",
            f"{name}: {schedule.length}",
            warning=True,
        )
    if style == "WSD":
        if 0 <= schedule.decay_start < schedule.warmup:
            yield Finding(
                "decay-in-warmup",
                job,
                (f"lr_wsd_decay_{unit}",),
                f"the WSD decay begins at {schedule.decay_start}, before the warm-up ends at {schedule.warmup:g}",
                f"lr_wsd_decay_{unit} of at most {int(schedule.decay - schedule.warmup)}",
                warning=True,
            )
        if schedule.decay_start < schedule.length < schedule.decay:
            yield Finding(
                "decay-cut-off",
                job,
                (name,),
                f"the WSD decay from {schedule.decay_start} to {schedule.decay} is cut off by the end of the training"
                f" at {schedule.length}",
                f"{name}: {schedule.length}",
                warning=True,
            )
    elif tail < 0 and style != "inverse-square-root":
        yield Finding(
            "decay-cut-off",
            job,
            (name,),
            f"the training ends at {schedule.length}, where the {style} decay to {schedule.decay} is still at"
            f" {schedule.rate(schedule.length):.0%} of the peak",
            f"{name}: {schedule.length}",
            warning=True,
        )


def _branch(
    arguments: TrainingArguments,
    schedule: Schedule,
    parent: TrainingArguments,
    before: Schedule,
    iteration: int,
) -> Iterator[Finding]:
    """Yield the problems of a schedule that continues from a parent's checkpoint."""
    if arguments.value("finetune") or arguments.value("no_load_optim"):
        return
    job = arguments.job
    yield from loading_findings(job, BRANCH, arguments, parent, parent.job.stage)
    if arguments.value("use_checkpoint_opt_param_scheduler"):
        return
    if schedule.unit != "iters" or before.batch != schedule.batch or before.lr != schedule.lr:
        return
    rates = [before.rate(iteration), schedule.rate(iteration)]
    if abs(rates[0] - rates[1]) > _JUMP:
        hint = ""
        if schedule.lr_decay_style == "WSD" and schedule.decay_start < iteration:
            hint = f"its decay begins at {schedule.decay_start}: start there"
        yield Finding(
            "jump",
            job,
            ("start", "checkpoint"),
            f"the learning rate jumps from {rates[0]:.0%} to {rates[1]:.0%} of its peak at checkpoint {iteration},"
            " where it leaves its parent",
            hint,
            warning=True,
        )


def _warmup_name(arguments: TrainingArguments, unit: str) -> str:
    return "lr_warmup_fraction" if "lr_warmup_fraction" in arguments else f"lr_warmup_{unit}"


def _words(unit: str) -> str:
    return "iterations" if unit == "iters" else unit
