"""The checks before submission on the resolved jobs of a sweep."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import problems_of
from airflow_megatron.checks.sweeps.limits import budget_problems, limit_findings, number_findings
from airflow_megatron.checks.sweeps.names import name_findings, resource_name_findings, template_findings
from airflow_megatron.checks.sweeps.outputs import output_findings
from airflow_megatron.checks.sweeps.patterns import pattern_findings
from airflow_megatron.checks.sweeps.restarts import after_rollback, commands_after_rollbacks, restart_findings
from airflow_megatron.checks.sweeps.restricted_keys import restricted_key_findings
from airflow_megatron.checks.sweeps.sbatch import sbatch_findings
from airflow_megatron.checks.sweeps.secrets import secret_findings
from airflow_megatron.checks.sweeps.shell_texts import shell_text_findings
from airflow_megatron.checks.sweeps.site_rules import (
    chain_before_purge,
    purge_problems,
    queue_rule_problems,
    run_root_problems,
    site_rule_findings,
)
from airflow_megatron.checks.sweeps.trackers import tracker_findings
from airflow_megatron.checks.sweeps.walltime import walltime_findings
from airflow_megatron.checks.trainings.architectures import architecture_findings
from airflow_megatron.checks.trainings.checkpoints import checkpoint_findings
from airflow_megatron.checks.trainings.data import data_findings
from airflow_megatron.checks.trainings.equal_points import equal_point_findings
from airflow_megatron.checks.trainings.loaded_state import loaded_state_findings
from airflow_megatron.checks.trainings.megatron import megatron_findings
from airflow_megatron.checks.trainings.memory import memory_findings
from airflow_megatron.checks.trainings.saving import saving_findings
from airflow_megatron.checks.trainings.schedules import schedule_findings
from airflow_megatron.checks.trainings.sources import source_findings
from airflow_megatron.checks.trainings.stages import stage_findings
from airflow_megatron.checks.trainings.trainer import trainer_findings
from airflow_megatron.checks.trainings.validation_samples import validation_sample_findings
from airflow_megatron.checks.trainings.work import work_findings
from airflow_megatron.requirements.queue_estimates import gpu_hours
from airflow_megatron.requirements.training_arguments import training_arguments
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.checks.findings import Finding
    from airflow_megatron.requirements.training_arguments import JobArguments, TrainingArguments
    from airflow_megatron.requirements.training_estimates import JobEstimate
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep


def check_jobs(
    sweep: Sweep,
    jobs: Sequence[Job],
    points: int,
    arguments: JobArguments,
    estimates: Mapping[str, JobEstimate],
) -> tuple[list[Problem], list[Problem]]:
    """Check the jobs of a plan against each other and against the cluster's limits.

    :param jobs: the jobs with their commands
    :param points: the number of their points
    :param arguments: Megatron arguments of the training jobs, and the cluster's profile
    :param estimates: estimated needs of jobs, by name
    :return: errors and warnings
    """
    cluster = arguments.cluster
    trainings = training_arguments(jobs, arguments)
    errors, warnings = problems_of(own_findings(sweep, jobs, trainings, arguments, estimates), sweep, cluster)
    if not errors:  # the project's own rules give better messages, with the nearest valid values
        errors, more = problems_of(asked_findings(jobs, trainings, arguments), sweep, cluster)
        warnings += more
    of_all = budget_problems(sweep, gpu_hours(jobs), len(jobs), points, cluster)
    placed = run_root_problems(sweep, cluster)
    queued = queue_rule_problems(sweep, jobs, points, cluster)
    purged = purge_problems(sweep, chain_before_purge(jobs, cluster), points, cluster)
    return errors + of_all[0] + placed[0], warnings + of_all[1] + placed[1] + queued + purged


def own_findings(
    sweep: Sweep,
    jobs: Sequence[Job],
    trainings: Mapping[str, TrainingArguments],
    arguments: JobArguments,
    estimates: Mapping[str, JobEstimate],
) -> Iterator[Finding]:
    """Yield the findings of this project's rules; the parameters are those of :func:`check_jobs`.

    :param trainings: the arguments of the training jobs by run directory
    """
    cluster = arguments.cluster
    return itertools.chain(
        name_findings(jobs),
        template_findings(jobs, refuse=isinstance(sweep, NativeSweep)),
        output_findings(sweep, jobs, trainings),
        checkpoint_findings(jobs, trainings),
        data_findings(trainings),
        schedule_findings(trainings),
        validation_sample_findings(trainings),
        work_findings(jobs, arguments),
        megatron_findings(jobs, arguments),
        loaded_state_findings(trainings),
        equal_point_findings(sweep, trainings),
        restart_findings(trainings),
        source_findings(trainings),
        saving_findings(trainings),
        walltime_findings(trainings),
        limit_findings(jobs, cluster),
        number_findings(jobs),
        site_rule_findings(jobs, cluster),
        memory_findings(jobs, estimates, cluster),
        stage_findings(jobs, misspelt=isinstance(sweep, NativeSweep)),
        pattern_findings(jobs),
        restricted_key_findings(jobs, cluster),
        sbatch_findings(jobs),
        secret_findings(jobs, cluster),
        shell_text_findings(jobs, cluster),
        tracker_findings(sweep, jobs),
        resource_name_findings(sweep, jobs),
    )


def asked_findings(
    jobs: Sequence[Job], trainings: Mapping[str, TrainingArguments], arguments: JobArguments
) -> Iterator[Finding]:
    """Yield the findings of the programs of jobs, which check their arguments before submission."""
    cluster = arguments.cluster
    templates = cluster.templates_folder
    changed = commands_after_rollbacks(trainings)
    of_changed = itertools.chain(trainer_findings(changed, templates), megatron_findings(changed, arguments))
    return itertools.chain(
        trainer_findings(jobs, templates),
        architecture_findings(jobs, trainings, cluster),
        after_rollback(of_changed),
    )
