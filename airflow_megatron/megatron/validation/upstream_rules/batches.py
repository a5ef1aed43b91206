"""Batch sizes and the number of microbatches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import MICROBATCHES, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

_RAMP_UP_IGNORED_SINCE = (0, 18)
_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _fill_in(s: Settings) -> None:
    if s.global_batch_size is None:
        s.global_batch_size = s.micro_batch_size * s.data_parallel_size


def _fill_in_evaluation(s: Settings) -> None:
    if s.eval_global_batch_size is None:
        s.eval_global_batch_size = s.global_batch_size
    if s.eval_micro_batch_size is None:
        s.eval_micro_batch_size = s.micro_batch_size


def samples_at_once(s: Settings) -> int:
    """Return the total number of samples of one microbatch on all data-parallel ranks."""
    samples: int = s.micro_batch_size * s.data_parallel_size * s.weight_remat_size
    return samples


def _division_hint(s: Settings) -> str:
    unit = samples_at_once(s)
    whole = f"--global-batch-size {multiples(s.global_batch_size, unit)}"
    ranks = max(unit // s.micro_batch_size, 1)
    if s.global_batch_size <= 0 or s.global_batch_size % ranks:
        return whole  # no size of microbatches is possible
    return f"{whole}, or --micro-batch-size {divisors(s.global_batch_size // ranks, s.micro_batch_size)}"


def is_constant(s: Settings) -> bool:
    """Return whether the batch size is constant. Later releases accept ``--rampup-batch-size`` and ignore it."""
    ramps_up = s.rampup_batch_size is not None and s.release < _RAMP_UP_IGNORED_SINCE
    return not ramps_up and s.step_batch_size_schedule is None


def _ramp_up_problem(s: Settings) -> bool:
    try:
        start, step, samples = (int(word) for word in s.rampup_batch_size)  # text before 0.16
    except ValueError:
        return True
    if start <= 0 or step <= 0 or samples < 0 or s.global_batch_size < start:
        return True
    growth = s.global_batch_size - start
    # Upstream divides by the number of steps, and then by the samples per step.
    return bool(growth % step or growth // step == 0 or samples == 0)


def _ramp_up_hint(s: Settings) -> str:
    if len(s.rampup_batch_size) != 3 or not all(str(word).isdigit() for word in s.rampup_batch_size):
        return "three numbers: start, increment, samples"
    start, step, _ = (int(word) for word in s.rampup_batch_size)
    if step > 0 and s.global_batch_size > start > 0:
        return f"--global-batch-size {multiples(s.global_batch_size - start, step)} above {start}"
    return "start below --global-batch-size, a positive increment, and a positive number of samples"


def _schedule_entries(text: str) -> list[tuple[int, int]]:
    entries = []
    for entry in text.replace(",", " ").split():
        threshold, _, size = entry.partition(":")
        entries.append((_amount(threshold), _amount(size)))
    return sorted(entries, key=lambda pair: pair[0])


def _amount(text: str) -> int:
    text = text.strip().upper()
    factor = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)


def _schedule_problem(s: Settings) -> bool:
    try:
        entries = _schedule_entries(s.step_batch_size_schedule)
    except (ValueError, OverflowError):
        return True
    starts = [threshold // s.seq_length if s.seq_length else threshold for threshold, _ in entries]
    grows = all(early < late for early, late in pairwise(starts))
    return s.decrease_batch_size_if_needed or not (
        entries and starts[0] == 0 and grows and all(size > 0 for _, size in entries)
    )


SIZES: Topic = (
    Rule(
        "batch.micro-missing",
        lambda s: s.micro_batch_size is None,
        "--micro-batch-size must be given",
        "give --micro-batch-size",
        final=True,
    ),
    Rule(
        "batch.micro-positive",
        lambda s: s.micro_batch_size <= 0,
        "--micro-batch-size {micro_batch_size} must be positive",
        "1 or more",
        final=True,
    ),
    Rule(
        "batch.schedule-and-global",
        lambda s: s.step_batch_size_schedule is not None and s.global_batch_size_given,
        "--step-batch-size-schedule and --global-batch-size exclude each other",
        "keep one of them",
    ),
    Derive(_fill_in),
    Rule(
        "batch.global-positive",
        lambda s: s.global_batch_size <= 0,
        "--global-batch-size {global_batch_size} must be positive",
        "1 or more",
        final=True,
    ),
    Derive(_fill_in_evaluation, since=(0, 18)),
    Rule(
        "batch.evaluation-positive",
        lambda s: s.eval_micro_batch_size == 0,
        "--eval-micro-batch-size 0 must be positive",
        "1 or more",
        since=(0, 18),
        final=True,
    ),
    Rule(
        "batch.evaluation-division",
        lambda s: s.eval_global_batch_size % (s.eval_micro_batch_size * s.data_parallel_size) != 0,
        "evaluation batch size {eval_global_batch_size} is not divisible by evaluation micro batch size "
        "{eval_micro_batch_size} x data parallel size {data_parallel_size}",
        lambda s: (
            "--eval-global-batch-size (or --global-batch-size) "
            + multiples(s.eval_global_batch_size, s.eval_micro_batch_size * s.data_parallel_size)
        ),
        since=(0, 18),
    ),
)

MICROBATCH_COUNT: Topic = (
    Rule(
        "batch.division",
        lambda s: (
            is_constant(s)
            and not s.decrease_batch_size_if_needed
            and s.global_batch_size % samples_at_once(s) != 0
        ),
        "--global-batch-size {global_batch_size} is not divisible by --micro-batch-size {micro_batch_size} x "
        "data parallel size {data_parallel_size}",
        _division_hint,
        f"{MICROBATCHES} ConstantNumMicroBatchesCalculator",
    ),
    Rule(
        "batch.too-small",
        lambda s: (
            is_constant(s) and s.decrease_batch_size_if_needed and s.global_batch_size < samples_at_once(s)
        ),
        "--global-batch-size {global_batch_size} leaves no microbatch for each of {data_parallel_size} "
        "data-parallel ranks",
        lambda s: f"--global-batch-size {samples_at_once(s)} or more",
        f"{MICROBATCHES} ConstantNumMicroBatchesCalculator",
    ),
    Rule(
        "batch.ramp-up",
        lambda s: s.rampup_batch_size is not None and _ramp_up_problem(s),
        "--rampup-batch-size {rampup_batch_size} does not lead to --global-batch-size {global_batch_size}",
        _ramp_up_hint,
        f"{MICROBATCHES} RampupBatchsizeNumMicroBatchesCalculator",
        until=_RAMP_UP_IGNORED_SINCE,
    ),
    Rule(
        "batch.schedule",
        lambda s: s.step_batch_size_schedule is not None and _schedule_problem(s),
        "--step-batch-size-schedule {step_batch_size_schedule!r} is not a schedule",
        "write '0:768 250B:1536': positive batch sizes, thresholds that start at 0 and grow",
        f"{MICROBATCHES} StepBatchsizeNumMicroBatchesCalculator",
    ),
)
