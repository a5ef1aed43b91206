"""Length of training, learning rate, weight decay, saving and logging intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.nearest import multiples
from airflow_megatron.megatron.rules.rule import Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def trains(s: Settings) -> bool:
    """Return whether the job gets to training iterations: a conversion of a checkpoint ends before them."""
    return not s.skip_train and s.ckpt_convert_format is None


def _has_schedule(s: Settings) -> bool:
    # Later releases do not look at the schedule of a job that trains nothing.
    return not (s.skip_train and s.release >= (0, 17))


def _has_two_lengths(s: Settings) -> bool:
    return None not in (s.train_iters, s.train_samples) and bool(s.train_iters or s.train_samples)


def _by_iterations(s: Settings) -> bool:
    return bool(s.train_iters) and not _has_two_lengths(s) and _has_schedule(s)


def _by_samples(s: Settings) -> bool:
    return bool(s.train_samples) and not _has_two_lengths(s) and _has_schedule(s)


def _weight_decay(s: Settings) -> None:
    if s.no_weight_decay_cond_type == "apply_wd_to_qk_layernorm":
        s.apply_wd_to_qk_layernorm = True


LENGTH: Topic = (
    Rule(
        "schedule.iterations-and-samples",
        lambda s: _has_two_lengths(s) and _has_schedule(s),
        "--train-iters {train_iters} and --train-samples {train_samples} exclude each other",
        "keep one of them",
    ),
    Rule(
        "schedule.decay-samples",
        lambda s: _by_iterations(s) and s.lr_decay_samples is not None,
        "--lr-decay-samples belongs to training by samples, not to --train-iters",
        "--lr-decay-iters",
    ),
    Rule(
        "schedule.warmup-samples",
        lambda s: _by_iterations(s) and s.lr_warmup_samples != 0,
        "--lr-warmup-samples belongs to training by samples, not to --train-iters",
        "--lr-warmup-iters",
    ),
    Rule(
        "schedule.ramp-up",
        lambda s: _by_iterations(s) and s.rampup_batch_size is not None,
        "--rampup-batch-size belongs to training by samples, not to --train-iters",
        "--train-samples instead of --train-iters, or no ramp-up",
        until=(0, 18),
    ),
    Rule(
        "schedule.warmup-fraction-and-iterations",
        lambda s: _by_iterations(s) and s.lr_warmup_fraction is not None and s.lr_warmup_iters != 0,
        "--lr-warmup-fraction {lr_warmup_fraction} and --lr-warmup-iters {lr_warmup_iters} exclude each other",
        "keep one of them",
    ),
    Rule(
        "schedule.decay-iterations",
        lambda s: _by_samples(s) and s.lr_decay_iters is not None,
        "--lr-decay-iters belongs to training by iterations, not to --train-samples",
        "--lr-decay-samples",
    ),
    Rule(
        "schedule.warmup-iterations",
        lambda s: _by_samples(s) and s.lr_warmup_iters != 0,
        "--lr-warmup-iters belongs to training by iterations, not to --train-samples",
        "--lr-warmup-samples",
    ),
    Rule(
        "schedule.warmup-fraction-and-samples",
        lambda s: _by_samples(s) and s.lr_warmup_fraction is not None and s.lr_warmup_samples != 0,
        "--lr-warmup-fraction {lr_warmup_fraction} and --lr-warmup-samples {lr_warmup_samples} exclude each other",
        "keep one of them",
    ),
)

INTERVALS: Topic = (
    Rule(
        "schedule.minimum-learning-rate",
        lambda s: s.lr is not None and not s.min_lr <= s.lr,  # upstream's words: NaN is not less
        "--min-lr {min_lr} is not at most --lr {lr}",
        "--min-lr {lr} or less",
    ),
    Rule(
        "save.interval",
        lambda s: s.save is not None and (s.save_interval is None or s.save_interval <= 0),
        "--save needs a positive --save-interval, not {save_interval}",
        "give --save-interval, or drop --save",
    ),
    Rule(
        "save.retain-interval",
        lambda s: (
            s.save is not None
            and s.save_interval
            and s.save_retain_interval is not None
            and (s.save_retain_interval <= 0 or s.save_retain_interval % s.save_interval != 0)
        ),
        "--save-retain-interval {save_retain_interval} is not a multiple of --save-interval {save_interval}",
        lambda s: f"--save-retain-interval {multiples(max(s.save_retain_interval, 1), s.save_interval)}",
    ),
    Rule(
        "save.parameters-and-overlap",
        lambda s: s.save is not None and s.save_params_interval is not None and s.overlap_param_gather,
        "--save-params-interval does not work with --overlap-param-gather",
        "drop one of them",
        since=(0, 18),
    ),
    Rule(
        "log.memory-interval",
        lambda s: (
            s.log_memory_interval is not None
            and (not s.log_interval or s.log_memory_interval % s.log_interval != 0)
        ),
        "--log-memory-interval {log_memory_interval} is not a multiple of --log-interval {log_interval}",
        lambda s: f"--log-memory-interval {multiples(s.log_memory_interval, s.log_interval)}",
    ),
    Rule(
        "optimizer.weight-decay-condition",
        lambda s: s.no_weight_decay_cond_type not in (None, "apply_wd_to_qk_layernorm"),
        "--no-weight-decay-cond-type cannot be {no_weight_decay_cond_type!r}",
        "--apply-wd-to-qk-layernorm",
    ),
    Derive(_weight_decay),
    Rule(
        "optimizer.constant-weight-decay",
        lambda s: (
            s.weight_decay_incr_style == "constant"
            and (s.start_weight_decay is not None or s.end_weight_decay is not None)
        ),
        "--start-weight-decay and --end-weight-decay need a growing --weight-decay-incr-style",
        "--weight-decay-incr-style linear or cosine, or only --weight-decay",
    ),
    Rule(
        "optimizer.growing-weight-decay",
        lambda s: (
            s.weight_decay_incr_style != "constant"
            and (s.start_weight_decay is None or s.end_weight_decay is None)
        ),
        "--weight-decay-incr-style {weight_decay_incr_style} needs --start-weight-decay and --end-weight-decay",
        "give both",
    ),
)
