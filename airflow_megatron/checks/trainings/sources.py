"""Check for Megatron's arguments ``load``, ``finetune``, ``ckpt_step``, which apply to every attempt.

``start: {from: …}`` is loaded as long as a training has no checkpoint of its own. ``load`` and ``finetune`` among the
arguments apply to each attempt: the second one starts where the first started (``load_checkpoint`` in
``megatron/training/checkpointing.py`` of all releases). ``ckpt_step`` and ``exit_on_missing_checkpoint`` are of the
loaded directory (``_load_base_checkpoint`` there): without ``load`` the training's own, which is empty at first.
A model without initialized weights (``perform_initialization``; ``init_model_with_meta_device``, ``get_model`` in
``megatron/training/training.py``) is right only for a checkpoint that is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments

_WITHOUT_WEIGHTS: Final = {
    "perform_initialization": "--no-initialization",
    "init_model_with_meta_device": "--init-model-with-meta-device",
}


def source_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield trainings whose attempts all start from the same checkpoint, or ask for one that is not there.

    :param trainings: the arguments of training jobs by run directory
    """
    for arguments in trainings.values():
        job = arguments.job
        load, own = arguments.value("load"), arguments.value("save") or job.checkpoint_dir
        elsewhere = isinstance(load, str) and load.rstrip("/") not in (
            str(own).rstrip("/"),
            job.checkpoint_dir,
        )
        finetunes = bool(arguments.value("finetune"))
        if job.script:
            continue
        if not elsewhere:
            yield from _of_own_directory(arguments)
        if not (elsewhere or finetunes):
            continue
        path = load if elsewhere else "DIRECTORY"
        step = arguments.value("ckpt_step")
        of = f", iteration: {step}" if step else ""
        name = "load" if elsewhere else "finetune"
        what = f"load {load}" if elsewhere else "finetune"
        effect = "begins there" if elsewhere else "loads only the weights and starts at iteration 0"
        yield Finding(
            f"every-attempt:{name}",
            job,
            (name,),
            f"{what} applies to every attempt: an attempt after a walltime limit or a failure {effect} again",
            f"start: {{from: {path}{of}{', mode: finetune' if finetunes else ''}}} for the first attempt only",
            warning=True,
        )


def _of_own_directory(arguments: TrainingArguments) -> Iterator[Finding]:
    """Yield what a training that loads its own checkpoints asks of them."""
    job = arguments.job
    if "--ckpt-step" in job.command and (step := arguments.value("ckpt_step")):
        place = "start: {checkpoint: %s}" if job.parent_dir else "start: {from: DIRECTORY, iteration: %s}"
        yield Finding(
            "step-of-nothing",
            job,
            ("ckpt_step",),
            f"ckpt_step {step} names no checkpoint: without load every attempt looks for it among the stage's own",
            f"{place % step} instead, for the first attempt only",
        )
    if (
        job.source is None
        and job.parent_dir is None
        and "--load" in job.command
        and "--exit-on-missing-checkpoint" in job.command
        and not arguments.value("pretrained_checkpoint")
    ):
        yield Finding(
            "exits-without-checkpoint",
            job,
            ("exit_on_missing_checkpoint",),
            "exit_on_missing_checkpoint ends the first attempt, which has no checkpoint to load, before it trains",
            "drop it, or name a checkpoint: start: {from: DIRECTORY}",
        )
    if (
        job.source is None
        and job.parent_dir is None
        and "--load" in job.command
        and not arguments.value("pretrained_checkpoint")
        and (name := _leaves_weights_empty(arguments))
    ):
        yield Finding(
            "uninitialized-weights",
            job,
            (name,),
            f"{_WITHOUT_WEIGHTS[name]} gives the weights no values, and no checkpoint is loaded: the training begins "
            "with what is in the memory",
            "drop it, or name a checkpoint: start: {from: DIRECTORY}",
        )


def _leaves_weights_empty(arguments: TrainingArguments) -> str:
    """Return the argument because of which upstream builds a model whose weights have no values; empty for none."""
    command = arguments.job.command
    fully_sharded = "--use-megatron-fsdp" in command or "--use-torch-fsdp2" in command
    left = {"init_model_with_meta_device"} if fully_sharded else set()  # which initializes them itself
    return next((name for name, flag in _WITHOUT_WEIGHTS.items() if flag in command and name not in left), "")
