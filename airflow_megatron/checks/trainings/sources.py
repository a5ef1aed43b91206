"""Check for Megatron's arguments ``load`` and ``finetune``, which apply to every attempt.

``start: {from: …}`` is loaded as long as a training has no checkpoint of its own. ``load`` and ``finetune`` among the
arguments apply to each attempt: the second one starts where the first started (``load_checkpoint`` in
``megatron/training/checkpointing.py`` of all releases).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments


def source_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield trainings whose attempts all start from the same checkpoint.

    :param trainings: the arguments of training jobs by run directory
    """
    for arguments in trainings.values():
        job = arguments.job
        load, own = arguments.value("load"), arguments.value("save") or job.checkpoint_dir
        elsewhere = isinstance(load, str) and load.rstrip("/") != str(own).rstrip("/")
        finetunes = bool(arguments.value("finetune"))
        if not (elsewhere or finetunes) or job.script:
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
