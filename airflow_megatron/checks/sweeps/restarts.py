"""Check that the changes of a restart policy in later attempts are possible."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import msgspec

from airflow_megatron.checks.findings import Finding
from airflow_megatron.checks.trainings.loaded_state import changed_state
from airflow_megatron.checks.trainings.loading import loading_findings
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.jobs import Job

_DIRECTORIES = ("save", "load")
_CHANGES = ("restart", "after_rollback")
_MODEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "ds_sequence_parallel_size",
)


def restart_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield the problems of ``restart.nodes`` and ``restart.after_rollback``.

    :param trainings: the arguments of the training jobs, by run directory
    """
    for training in trainings.values():
        job = training.job
        yield from _nodes(training)
        if not job.restart.after_rollback:
            continue
        try:
            to_argv(job.restart.after_rollback, training.table)
        except ArgumentError as error:
            yield Finding(
                "after-rollback",
                job,
                _CHANGES,
                str(error),
                "write it as under megatron:",
            )
            continue
        directory = next((name for name in _DIRECTORIES if name in job.restart.after_rollback), None)
        if directory is not None:
            yield Finding(
                "after-rollback-directory",
                job,
                _CHANGES,
                f"with {directory} its checkpoints would be elsewhere, where no later attempt and stage looks for them",
                f"drop {directory}",
            )
        after = training.changed(job.restart.after_rollback)
        yield from loading_findings(job, _CHANGES, after, training, job.stage)
        yield from changed_state(job, _CHANGES, after, training, job.stage)


def commands_after_rollbacks(trainings: Mapping[str, TrainingArguments]) -> list[Job]:
    """Return the trainings whose command changes after a rollback, with that command."""
    changed = []
    for training in trainings.values():
        job = training.job
        if job.restart.after_rollback and job.script is None:
            words = to_argv(job.restart.after_rollback, training.table)
            changed.append(msgspec.structs.replace(job, command=(*job.command, *words)))
    return changed


def after_rollback(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings about such commands, placed at the changes."""
    for finding in findings:
        rule, message = f"after-rollback:{finding.rule}", f"after a rollback, {finding.message}"
        yield replace(finding, rule=rule, message=message, keys=_CHANGES, names=())


def _nodes(training: TrainingArguments) -> Iterator[Finding]:
    """Yield the numbers of nodes that are not smaller, or that cannot divide the model and the batch.

    The global batch size does not change, so fewer nodes mean a smaller data-parallel size
    (``megatron/core/num_microbatches_calculator.py``).
    """
    job, place = training.job, ("restart", "nodes")
    sizes = job.restart.nodes
    if not sizes:
        return
    wanted = job.slurm.node_count
    if sorted(set(sizes), reverse=True) != sizes or sizes[0] >= wanted:
        hint = f"numbers below slurm.nodes ({wanted}), the largest first"
        yield Finding("nodes-order", job, place, f"restart.nodes is {sizes}", hint)
        return
    model = prod(training.count(name) or 1 for name in _MODEL_SIZES)
    micro, batch = training.count("micro_batch_size"), training.count("global_batch_size")
    for nodes in sizes:
        gpus = nodes * (1 if job.slurm.gpus_per_node is None else job.slurm.gpus_per_node)
        if gpus % model:
            parallel = f"tensor × pipeline × context (or sequence) parallel size ({model})"
            having = counted(nodes, "node has", "nodes have")
            message = f"{having} {counted(gpus, 'GPU')}, which {parallel} does not divide"
            yield Finding("nodes-model", job, place, message, "remove this number of nodes")
        elif micro and batch and batch % (micro * gpus // model):
            message = (
                f"on {counted(nodes, 'node')} the data parallel size is {gpus // model}: times "
                f"micro_batch_size ({micro}) it does "
                f"not divide global_batch_size ({batch})"
            )
            yield Finding("nodes-batch", job, place, message, "remove this number of nodes")
