"""Rules of the optimizer's schedule, which upstream makes after the model.

:mod:`airflow_megatron.checks.trainings.schedules` reports those of :data:`LENGTHS` with the keys of a spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.rule import Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

SOURCE: Final = "megatron/core/optimizer_param_scheduler.py OptimizerParamScheduler"


def _is_not_positive(length: int | None) -> bool:
    return length is not None and length <= 0


def _trains_nothing(s: Settings) -> bool:
    """Return whether there is no length above 0; a job that only evaluates computes with any length."""
    if s.skip_train:
        return s.train_iters is None and not s.train_samples and not s.perform_rl_step
    length: int = s.train_iters or s.train_samples or 0
    return length <= 0


def _by_iterations(s: Settings) -> bool:
    return not s.skip_train and bool(s.train_iters)


def _by_samples(s: Settings) -> bool:
    return not s.skip_train and not s.train_iters and bool(s.train_samples)


def _decay_to_the_end(s: Settings) -> None:
    if _by_iterations(s) and s.lr_decay_iters is None:
        s.lr_decay_iters = s.train_iters
    if _by_samples(s) and s.lr_decay_samples is None:
        s.lr_decay_samples = s.train_samples


def _whole_decay(s: Settings) -> int:
    """Return the length of the decay in samples, 0 without one."""
    if _by_iterations(s):
        samples: int = s.lr_decay_iters * s.global_batch_size
        return samples
    return s.lr_decay_samples if _by_samples(s) else 0


#: Rules of the schedule's lengths, and what upstream derives before.
LENGTHS: Topic = (
    Derive(_decay_to_the_end),
    Rule(
        "schedule.long-warmup-fraction",
        lambda s: (
            _whole_decay(s) > 0
            and s.lr_warmup_fraction is not None
            and not s.lr_warmup_fraction * _whole_decay(s)
            < _whole_decay(s)  # upstream's words: NaN is not less
        ),
        "--lr-warmup-fraction {lr_warmup_fraction} is not below 1",
        "--lr-warmup-fraction 0.1, or another part of the schedule",
        SOURCE,
    ),
    Rule(
        "schedule.long-warmup-iterations",
        lambda s: (
            _by_iterations(s) and s.lr_warmup_fraction is None and 0 < s.lr_decay_iters <= s.lr_warmup_iters
        ),
        "--lr-warmup-iters {lr_warmup_iters} is not below --lr-decay-iters (default: --train-iters) {lr_decay_iters}",
        "shorten the warm-up, or train longer",
        SOURCE,
    ),
    Rule(
        "schedule.long-warmup-samples",
        lambda s: (
            _by_samples(s) and s.lr_warmup_fraction is None and 0 < s.lr_decay_samples <= s.lr_warmup_samples
        ),
        "--lr-warmup-samples {lr_warmup_samples} is not below --lr-decay-samples (default: --train-samples) "
        "{lr_decay_samples}",
        "shorten the warm-up, or train longer",
        SOURCE,
    ),
    Rule(
        "schedule.annealed-iterations",
        lambda s: _by_iterations(s) and s.lr_decay_style == "WSD" and s.lr_wsd_decay_iters is None,
        "--lr-decay-style {lr_decay_style} with --train-iters needs --lr-wsd-decay-iters",
        "give --lr-wsd-decay-iters",
        SOURCE,
    ),
    Rule(
        "schedule.annealed-samples",
        lambda s: _by_samples(s) and s.lr_decay_style == "WSD" and s.lr_wsd_decay_samples is None,
        "--lr-decay-style {lr_decay_style} with --train-samples needs --lr-wsd-decay-samples",
        "give --lr-wsd-decay-samples",
        SOURCE,
    ),
)

OPTIMIZER_SCHEDULE: Topic = (
    Rule(
        "schedule.no-length",
        _trains_nothing,
        "neither --train-iters {train_iters} nor --train-samples {train_samples} is 1 or more: there is nothing to"
        " train",
        "--train-iters N, or --train-samples N",
        "megatron/training/training.py get_optimizer_param_scheduler",
        final=True,
    ),
    Rule(
        "schedule.negative-learning-rate",
        lambda s: not s.skip_train and not s.min_lr >= 0,  # upstream's words: NaN is not either
        "--min-lr {min_lr} is below 0",
        "--min-lr 0",
        SOURCE,
    ),
    Rule(
        "schedule.warmup-start",
        lambda s: not s.skip_train and s.lr is not None and not s.lr_warmup_init <= s.lr,
        "--lr-warmup-init {lr_warmup_init} is above --lr {lr}",
        "--lr-warmup-init {lr} or less",
        SOURCE,
    ),
    Rule(
        "schedule.no-decay-iterations",
        lambda s: not s.skip_train and s.train_iters and _is_not_positive(s.lr_decay_iters),
        "--lr-decay-iters {lr_decay_iters} is not 1 or more",
        "drop it, for --train-iters {train_iters}",
        SOURCE,
    ),
    Rule(
        "schedule.no-decay-samples",
        lambda s: not s.skip_train and not s.train_iters and _is_not_positive(s.lr_decay_samples),
        "--lr-decay-samples {lr_decay_samples} is not 1 or more",
        "drop it, for --train-samples {train_samples}",
        SOURCE,
    ),
    Rule(
        "schedule.negative-weight-decay",
        lambda s: not s.skip_train and s.start_weight_decay is not None and not s.start_weight_decay >= 0,
        "--start-weight-decay {start_weight_decay} is below 0",
        "--start-weight-decay 0",
        SOURCE,
    ),
    Rule(
        "schedule.falling-weight-decay",
        lambda s: (
            not s.skip_train
            and None not in (s.start_weight_decay, s.end_weight_decay)
            and s.start_weight_decay >= 0
            and not s.end_weight_decay >= s.start_weight_decay
        ),
        "--end-weight-decay {end_weight_decay} is below --start-weight-decay {start_weight_decay}: it can only grow",
        "--weight-decay {start_weight_decay}, without the two",
        SOURCE,
    ),
    Rule(
        "schedule.override-and-checkpoint",
        lambda s: (
            not s.skip_train and s.override_opt_param_scheduler and s.use_checkpoint_opt_param_scheduler
        ),
        "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler exclude each other",
        "keep --override-opt_param-scheduler for this job's schedule, or the other one for the checkpoint's",
        SOURCE,
    ),
    *LENGTHS,
)
