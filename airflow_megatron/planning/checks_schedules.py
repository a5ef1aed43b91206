"""Checks before submission: learning-rate schedules that end where the training ends, and branches that continue them.

The rule of the learning rate is Megatron's (``megatron/core/optimizer_param_scheduler.py``, ``get_lr``): after
``lr_decay_iters``, which count from iteration 0 with the warm-up included, it is ``min_lr``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.planning.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.planning.training_arguments import TrainingArguments

_COMPARED = (
    ("lr", False),
    ("min_lr", False),
    ("lr_decay_style", False),
    ("warmup", True),
    ("decay", True),
    ("length", True),
)
"""What a checkpoint's schedule is compared by when it is loaded; True where it is counted in samples there."""
_JUMP = 0.02
"""A change of the learning rate by this part of its peak is a jump."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of one training job, in iterations, or in samples where the training is counted in them.

    :param unit: ``iters`` or ``samples``, the end of its arguments' names
    :param length: of the training
    :param warmup: at its beginning
    :param decay: where the learning rate has come down to ``min_lr``
    :param wsd_decay: length of the decay of the style WSD
    :param batch: ``global_batch_size``, None when unknown
    """

    unit: str
    length: int
    warmup: float
    decay: int
    wsd_decay: int | None
    lr_decay_style: str
    wsd_style: str
    lr: float | None
    min_lr: float
    batch: int | None

    @classmethod
    def of(cls, arguments: TrainingArguments) -> Schedule | None:
        """Read it off the arguments of a job; None where the training has no length."""
        unit = "samples" if "train_samples" in arguments else "iters"
        length = arguments.count(f"train_{unit}")
        if length is None:
            return None
        decay = arguments.count(f"lr_decay_{unit}") or length
        fraction = arguments.number("lr_warmup_fraction")
        return cls(
            unit=unit,
            length=length,
            warmup=fraction * decay if fraction is not None else arguments.number(f"lr_warmup_{unit}") or 0,
            decay=decay,
            wsd_decay=arguments.count(f"lr_wsd_decay_{unit}"),
            lr_decay_style=str(arguments.value("lr_decay_style")),
            wsd_style=str(arguments.value("lr_wsd_decay_style")),
            lr=arguments.number("lr"),
            min_lr=arguments.number("min_lr") or 0.0,
            batch=arguments.count("global_batch_size"),
        )

    @property
    def decay_start(self) -> int:
        """Where the decay of the style WSD begins."""
        return self.decay - (self.wsd_decay or 0)

    def rate(self, step: int) -> float:
        """Return the learning rate after ``step`` iterations (or samples), as a part of its peak above ``min_lr``."""
        if self.warmup and step <= self.warmup:
            return step / self.warmup
        style = self.lr_decay_style
        if style == "constant":
            return 1.0
        if step > self.decay:
            return 0.0
        if style == "inverse-square-root":
            return math.sqrt(max(self.warmup, 1) / max(step, 1))
        if style == "WSD":
            done = (step - self.decay_start) / (self.wsd_decay or 1)
            return 1.0 if done <= 0 else _falling(self.wsd_style, min(done, 1.0))
        return _falling(style, (step - self.warmup) / max(self.decay - self.warmup, 1))


def _falling(style: str, done: float) -> float:
    match style:
        case "linear":
            return 1 - done
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "minus_sqrt":
            return 1 - math.sqrt(done)
        case _:
            return 2 * math.pow(0.5, done) - 1


def schedule_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield what is wrong or odd about the schedules of the training jobs.

    :param trainings: the arguments of the training jobs by run directory
    """
    schedules = {run_dir: Schedule.of(arguments) for run_dir, arguments in trainings.items()}
    for run_dir, arguments in trainings.items():
        schedule = schedules[run_dir]
        if schedule is None:
            continue
        impossible = list(_impossible(arguments, schedule))
        yield from impossible
        if impossible:
            continue
        yield from _odd_ends(arguments, schedule)
        parent_dir = arguments.job.parent_dir or ""
        parent, before = trainings.get(parent_dir), schedules.get(parent_dir)
        if parent and before and arguments.job.iteration is not None and before.unit == schedule.unit:
            yield from _branch(arguments, schedule, parent, before, arguments.job.iteration)


def _impossible(arguments: TrainingArguments, schedule: Schedule) -> Iterator[Finding]:
    unit, job = schedule.unit, arguments.job
    if schedule.warmup >= schedule.decay:
        name = "lr_warmup_fraction" if "lr_warmup_fraction" in arguments else f"lr_warmup_{unit}"
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
            mend = f"add {name}: {max(schedule.decay // 5, 1)}"
            yield Finding("wsd-without-decay", job, ("lr_decay_style",), f"the style WSD needs {name}", mend)
        elif schedule.wsd_decay > schedule.decay:
            yield Finding(
                "wsd-too-long",
                job,
                (name,),
                f"the WSD decay of {schedule.wsd_decay} {_words(unit)} is longer than the whole schedule of"
                f" {schedule.decay}",
                f"{name} of at most {max(int(schedule.decay - schedule.warmup), 1)}",
            )


def _odd_ends(arguments: TrainingArguments, schedule: Schedule) -> Iterator[Finding]:
    """Yield schedules that end before the training does, or have not ended when it does."""
    unit, job, style = schedule.unit, arguments.job, schedule.lr_decay_style
    name = f"lr_decay_{unit}"
    tail = schedule.length - schedule.decay
    if style == "constant":
        return
    if tail > 0:
        yield Finding(
            "tail",
            job,
            (name,),
            f"the last {tail} of {schedule.length} {_words(unit)} run at min_lr ({schedule.min_lr:g}): {name} is"
            f" {schedule.decay}, counted from 0 with the warm-up in it",
            f"{name}: {schedule.length}",
            warning=True,
        )
    if style == "WSD":
        if schedule.decay_start < schedule.warmup:
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
    """Yield what is wrong about a schedule that continues from a parent's checkpoint."""
    if arguments.value("finetune") or arguments.value("no_load_optim"):
        return
    job = arguments.job
    differing = list(_differing(arguments, schedule, parent, before))
    if differing and arguments.value("use_checkpoint_opt_param_scheduler"):
        yield Finding(
            "schedule-ignored",
            job,
            ("use_checkpoint_opt_param_scheduler",),
            f"use_checkpoint_opt_param_scheduler keeps the schedule of {parent.job.stage}: its own"
            f" {', '.join(differing)} have no effect",
            "override_opt_param_scheduler: true instead",
            warning=True,
        )
        return
    if differing and not arguments.value("override_opt_param_scheduler"):
        yield Finding(
            "schedule-refused",
            job,
            ("train_iters",),
            f"its schedule is not that of the checkpoint it starts from ({', '.join(differing)} differ), which Megatron"
            " refuses to load",
            "add megatron: {override_opt_param_scheduler: true}",
        )
    if schedule.unit != "iters" or before.batch != schedule.batch or before.lr != schedule.lr:
        return
    rates = [before.rate(iteration), schedule.rate(iteration)]
    if abs(rates[0] - rates[1]) > _JUMP:
        mend = ""
        if schedule.lr_decay_style == "WSD" and schedule.decay_start < iteration:
            mend = f"its decay begins at {schedule.decay_start}: start there"
        yield Finding(
            "jump",
            job,
            ("start", "checkpoint"),
            f"the learning rate jumps from {rates[0]:.0%} to {rates[1]:.0%} of its peak at checkpoint {iteration},"
            " where it leaves its parent",
            mend,
            warning=True,
        )


def _differing(
    arguments: TrainingArguments, schedule: Schedule, parent: TrainingArguments, before: Schedule
) -> Iterator[str]:
    """Yield the names of the arguments by which two schedules differ for Megatron."""
    unit = schedule.unit
    shown = {"warmup": f"lr_warmup_{unit}", "decay": f"lr_decay_{unit}", "length": f"train_{unit}"}
    scale, scale_before = (schedule.batch or 1, before.batch or 1) if unit == "iters" else (1, 1)
    for name, counted in _COMPARED:
        ours, theirs = getattr(schedule, name), getattr(before, name)
        if (ours * scale != theirs * scale_before) if counted else (ours != theirs):
            yield shown.get(name, name)
    for name in ("weight_decay", "start_weight_decay", "end_weight_decay", "weight_decay_incr_style"):
        if arguments.value(name) != parent.value(name):
            yield name


def _words(unit: str) -> str:
    return "iterations" if unit == "iters" else unit
