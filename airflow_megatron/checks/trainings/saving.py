"""Check that trainings save where their attempts, branches and conversions look for checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments


def saving_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield trainings with a ``save`` of their own, in which nothing else looks for checkpoints.

    :param trainings: the arguments of training jobs by run directory
    """
    for arguments in trainings.values():
        job, save = arguments.job, arguments.value("save")
        if job.script or not isinstance(save, str) or save.rstrip("/") == job.checkpoint_dir:
            continue
        message = (
            f"it saves to {save}, and later attempts, branches, conversions and its end are looked for in"
            f" {job.checkpoint_dir}"
        )
        yield Finding(
            "saves-elsewhere", job, ("save",), message, "drop save; run_dir names the folder", warning=True
        )
