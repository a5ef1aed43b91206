"""The iteration at which a training ends, also if its length is given in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.trainers import Trainer

_MOST_STEPS = 10_000_000


def last_iteration(params: Mapping[str, Any], trainer: Trainer, release: str) -> int | None:
    """Return the iteration at which a training ends, None if its parameters do not determine it.

    Source: ``update_train_iters`` of upstream's ``megatron/training/training.py``; with growing batches, the same
    samples take more iterations.

    :param params: params of a job
    :param trainer: trainer of the sweep
    :param release: an upstream tag
    """
    if (given := params.get("train_iters")) is not None:
        return _whole(given)
    samples, batch = _whole(params.get("train_samples")), _whole(params.get("global_batch_size"))
    if not samples or not batch:
        return None
    ramp = params.get("rampup_batch_size")
    ignored = trainer.ramp_up_ignored_since
    if ramp is None or (ignored is not None and _number(release) >= ignored):
        return samples // batch
    words = ramp.split() if isinstance(ramp, str) else ramp
    numbers = [_whole(word) for word in words] if isinstance(words, (list, tuple)) else []
    if len(numbers) != 3 or None in numbers:
        return None
    start, step, until = (number or 0 for number in numbers)
    return _with_ramp(samples, batch, start, step, until)


def _with_ramp(samples: int, batch: int, start: int, step: int, until: int) -> int | None:
    increments = (batch - start) // step if step > 0 else 0
    if increments < 1 or start < 1 or until < 1:
        return None  # upstream refuses it
    iterations = consumed = 0
    while consumed <= until and consumed <= samples and iterations < _MOST_STEPS:
        consumed += start + min(int(consumed / (until / increments)), increments) * step
        iterations += 1
    return iterations + max(samples - consumed, 0) // batch


def _whole(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]  # as a command line reads it
    except (TypeError, ValueError, OverflowError):
        return None


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.rpartition("v")[2].split(".") if part.isdigit())
