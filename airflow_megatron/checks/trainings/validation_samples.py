"""Check that a branch does not run out of validation samples.

Megatron reserves ``(train_iters // eval_interval + 1) × eval_iters × global_batch_size`` samples for a training's
validations and reads them in order (``megatron/training/training.py``, ``get_train_valid_test_num_samples``). A branch
loads from its checkpoint the number of samples that its trunk has read. With a longer interval it reserves too few
samples and ends with StopIteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments


def validation_sample_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield the branches whose validations read more samples than Megatron reserves.

    :param trainings: the arguments of the training jobs, by run directory
    """
    for arguments in trainings.values():
        job = arguments.job
        parent = trainings.get(job.parent_dir or "")
        if parent is None or job.iteration is None or arguments.value("finetune"):
            continue
        sizes = _sizes(arguments)
        before = _read_until(parent, job.iteration, trainings)
        if sizes is None or before is None:
            continue
        interval, samples, last = sizes
        aside = (last // interval + 1) * samples
        own = (last // interval - job.iteration // interval + 1) * samples
        if before + own <= aside:
            continue
        known = _sizes(parent)
        yield Finding(
            "validation-samples",
            job,
            ("eval_interval",),
            f"its validations need {before + own} samples, {before} of which {parent.job.stage} has read before "
            f"checkpoint {job.iteration}, but Megatron reserves {aside} with eval_interval {interval}: the job "
            "ends with StopIteration",
            f"eval_interval: {known[0]}, as for {parent.job.stage}" if known else "a shorter eval_interval",
            warning=True,
        )


def _sizes(arguments: TrainingArguments) -> tuple[int, int, int] | None:
    """Return the interval, the samples of one validation, and the last iteration; None if one is unknown."""
    if arguments.value("full_validation") or arguments.value("rampup_batch_size"):
        return None
    interval, batches = arguments.count("eval_interval"), arguments.count("eval_iters")
    batch, last = arguments.count("global_batch_size"), arguments.count("train_iters")
    return (interval, batches * batch, last) if interval and batches and batch and last else None


def _read_until(
    arguments: TrainingArguments, iteration: int, trainings: Mapping[str, TrainingArguments]
) -> int | None:
    """Return the validation samples that a training and its trunk have read before a checkpoint; None if unknown."""
    read, seen = 0, set()
    while arguments.job.run_dir not in seen:  # stages that share a directory seem to continue themselves
        seen.add(arguments.job.run_dir)
        sizes = _sizes(arguments)
        if sizes is None:
            return None
        interval, samples, _ = sizes
        parent, begin = trainings.get(arguments.job.parent_dir or ""), arguments.job.iteration
        if parent is None or begin is None or arguments.value("finetune"):
            return read + iteration // interval * samples
        read += (iteration // interval - begin // interval) * samples
        arguments, iteration = parent, begin
    return None
