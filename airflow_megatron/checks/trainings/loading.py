"""Check trainings that load a checkpoint with another learning-rate schedule.

``OptimizerParamScheduler.load_state_dict`` (``megatron/core/optimizer_param_scheduler.py``) refuses values that
differ from the checkpoint's, unless an option selects one of them: ``--override-opt_param-scheduler`` selects the
command line. However, the learning rate is computed from the bounds in the optimizer's parameter groups, which are
loaded from the checkpoint:

- up to core_v0.18 the checkpoint's ``lr`` and ``min_lr`` are kept silently (upstream issue 1138);
- core_v0.19 searches the checkpoint for a group with the new bounds, finds none, and raises ``ValueError``
  (``param_group_identifier_keys`` in ``megatron/core/optimizer/optimizer.py``).

The ``megatron_core`` trainer uses the new bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.arguments.schedule import Schedule
from airflow_megatron.megatron.rules.settings import release_number
from airflow_megatron.megatron.trainers.trainer import trainer_called

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.megatron.arguments.values import ArgumentValues
    from airflow_megatron.spec.model.jobs import Job

_COMPARED: Final = (
    ("lr", False),
    ("min_lr", False),
    ("lr_decay_style", False),
    ("warmup", True),
    ("decay", True),
    ("length", True),
)
"""The values of a schedule that are compared when a checkpoint is loaded; True for values in samples."""
BRANCH: Final = ("train_iters",)
"""Place of the findings about a branch, if no argument of its own is the reason."""
_WEIGHT_DECAY: Final = ("weight_decay", "start_weight_decay", "end_weight_decay", "weight_decay_incr_style")
_BOUNDS_ARE_KEYS: Final = (0, 19)
"""The first release that identifies a checkpoint's parameter groups by the bounds of their learning rate."""


def loading_findings(
    job: Job, place: tuple[str, ...], now: ArgumentValues, before: ArgumentValues, source: str
) -> Iterator[Finding]:
    """Yield the problems of a training whose schedule differs from that of the checkpoint that it loads.

    :param job: the training
    :param place: the keys of the spec for the findings
    :param now: its arguments
    :param before: the arguments of the training that wrote the checkpoint
    :param source: the name of that training, for messages
    """
    differing = list(_differing(now, before))
    if not differing or now.value("finetune") or now.value("no_load_optim"):
        return
    kept = ("lr", "min_lr") if trainer_called(job.trainer).keeps_bounds else ()
    bounds = [name for name in differing if name in kept]
    hint = (
        f"keep the {' and '.join(bounds)} of {source}; or write trainer: megatron_core, which uses new ones"
    )
    if bounds and release_number(job.release) >= _BOUNDS_ARE_KEYS:
        message = f"{job.release} cannot load the optimizer of {source} with another {' and '.join(bounds)}"
        yield Finding("bounds-refused", job, place, message, hint)
    elif now.value("use_checkpoint_opt_param_scheduler"):
        yield Finding(
            "schedule-ignored",
            job,
            ("use_checkpoint_opt_param_scheduler",),
            f"use_checkpoint_opt_param_scheduler keeps the schedule of {source}: its own"
            f" {', '.join(differing)} have no effect",
            "override_opt_param_scheduler: true instead",
            warning=True,
        )
    elif not now.value("override_opt_param_scheduler"):
        own = [name for name in differing if name in job.explicit_arguments or name in job.swept]
        verb = "differs" if len(differing) == 1 else "differ"
        yield Finding(
            "schedule-refused",
            job,
            (own[0],) if own and place == BRANCH else place,
            f"its schedule differs from that of the checkpoint it loads ({', '.join(differing)} {verb}), which Megatron"
            " refuses to load",
            "add megatron: {override_opt_param_scheduler: true}",
        )
    elif bounds:
        message = (
            f"{job.release} continues with the {' and '.join(bounds)} of {source},"
            " despite override_opt_param_scheduler"
        )
        yield Finding("bounds-kept", job, place, message, hint)


def _differing(now: ArgumentValues, before: ArgumentValues) -> Iterator[str]:
    """Yield the names of the arguments in which Megatron sees two schedules differ."""
    ours, theirs = Schedule.of(now), Schedule.of(before)
    if ours is None or theirs is None or ours.unit != theirs.unit:
        return
    unit = ours.unit
    shown = {"warmup": f"lr_warmup_{unit}", "decay": f"lr_decay_{unit}", "length": f"train_{unit}"}
    scale, scale_before = (ours.batch or 1, theirs.batch or 1) if unit == "iters" else (1, 1)
    for name, counted in _COMPARED:
        value, value_before = getattr(ours, name), getattr(theirs, name)
        if (value * scale != value_before * scale_before) if counted else (value != value_before):
            yield shown.get(name, name)
    for name in _WEIGHT_DECAY:
        if now.value(name) != before.value(name):
            yield name
