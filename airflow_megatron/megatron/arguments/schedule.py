"""Megatron's learning-rate schedules (``megatron/core/optimizer_param_scheduler.py``, ``get_lr``).

After ``lr_decay_iters``, which count from iteration 0 with the warm-up included, the learning rate is ``min_lr``.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Final

import msgspec

from airflow_megatron.megatron.arguments.values import ArgumentValues
from airflow_megatron.spec.expressions.file_values import path_of

if TYPE_CHECKING:
    from airflow_megatron.megatron.arguments.tables import ArgumentTable

STYLES: Final = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
"""Upstream's styles, whose formulas this module implements."""
_LENGTHS: Final = ("lr_decay", "lr_warmup", "lr_wsd_decay")
_READ: Final = (
    *("lr", "min_lr", "global_batch_size", "lr_decay_style", "lr_wsd_decay_style", "lr_warmup_fraction"),
    "lr_warmup_init",
    *("train_iters", "lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters"),
    *("train_samples", "lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples"),
)
"""The arguments that determine a schedule."""


class Schedule(msgspec.Struct, frozen=True):
    """The schedule of one training job, in iterations, or in samples if the training is defined in samples.

    :param unit: ``iters`` or ``samples``, the suffix of its arguments' names
    :param length: length of the training
    :param warmup: length of the warm-up
    :param decay: step at which the learning rate reaches ``min_lr``
    :param wsd_decay: length of the decay of the style WSD, 0 for none
    :param batch: ``global_batch_size``, None if unknown
    :param warmup_init: the learning rate at which the warm-up begins
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
    warmup_init: float = 0.0

    @classmethod
    def of(cls, arguments: ArgumentValues) -> Schedule | None:
        """Return the schedule of a job's arguments; None without a length, or with one that only the job knows."""
        try:
            return _known(arguments.table, *arguments.given(_READ))
        except TypeError:  # a list instead of a number
            return cls._of(arguments)

    @classmethod
    def _of(cls, arguments: ArgumentValues) -> Schedule | None:
        unit = "samples" if "train_samples" in arguments else "iters"
        length = arguments.count(f"train_{unit}")
        lengths = arguments.given((*(f"{name}_{unit}" for name in _LENGTHS), "lr_warmup_fraction"))
        if length is None or any(path_of(value) is not None for value in lengths):
            return None
        decay = arguments.count(f"lr_decay_{unit}") or length
        fraction = arguments.number("lr_warmup_fraction")
        return cls(
            unit=unit,
            length=length,
            warmup=fraction * decay if fraction is not None else arguments.number(f"lr_warmup_{unit}") or 0,
            decay=decay,
            wsd_decay=_whole(arguments.number(f"lr_wsd_decay_{unit}")),
            lr_decay_style=str(arguments.value("lr_decay_style")),
            wsd_style=str(arguments.value("lr_wsd_decay_style")),
            lr=arguments.number("lr"),
            min_lr=arguments.number("min_lr") or 0.0,
            batch=arguments.count("global_batch_size"),
            warmup_init=arguments.number("lr_warmup_init") or 0.0,
        )

    @property
    def decay_start(self) -> int:
        """The step at which the decay of the style WSD begins."""
        return self.decay - (self.wsd_decay or 0)

    def rate(self, step: int) -> float:
        """Return the learning rate after ``step`` iterations (or samples), as a fraction of its peak above
        ``min_lr``.
        """
        if self.warmup and step <= self.warmup:
            begin = self.warmup_init / self.lr if self.lr else 0.0
            return begin + (1 - begin) * step / self.warmup
        style = self.lr_decay_style
        if style == "constant":
            return 1.0
        if step > self.decay:
            return 0.0
        if style == "inverse-square-root":
            # upstream counts samples, also if the length is given in iterations
            batch = (self.batch or 1) if self.unit == "iters" else 1
            return math.sqrt(max(self.warmup * batch, 1) / max(step * batch, 1))
        if style == "WSD":
            done = (step - self.decay_start) / (self.wsd_decay or 1)
            return 1.0 if done <= 0 else _falling(self.wsd_style, min(done, 1.0))
        return _falling(style, (step - self.warmup) / max(self.decay - self.warmup, 1))

    def learning_rate(self, step: int) -> float:
        """Return the learning rate after ``step`` iterations (or samples); the schedule must have a peak, ``lr``."""
        peak, rate = self.lr or 0.0, self.rate(step)
        if self.warmup and step <= self.warmup:
            return peak * rate
        if self.lr_decay_style == "inverse-square-root":
            return max(self.min_lr, peak * rate)
        return self.min_lr + (peak - self.min_lr) * rate


@functools.lru_cache(maxsize=4096, typed=True)
def _known(table: ArgumentTable, *given: object) -> Schedule | None:
    """Return the schedule of some values, cached for all points that share them; None for missing values."""
    return Schedule._of(ArgumentValues(table, dict(zip(_READ, given, strict=True))))


def _whole(value: float | None) -> int | None:
    return value if isinstance(value, int) else None


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
