"""The separately checked plan of some of a sweep's points, with a test whether the separate check is sufficient.

Checks across points find fewer problems in a subset of the points. A half is therefore valid only if all paths that
its jobs write and wait for are in the directories of their own points, or in directories that all points share;
otherwise the sweep is planned in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import alike_findings
from airflow_megatron.checks.sweeps.site_rules import chain_before_purge
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.submission_checks import asked_findings, own_findings
from airflow_megatron.plan.sweep_plan import Plan, check_scripts, plan_sweep
from airflow_megatron.requirements.queue_estimates import gpu_hours
from airflow_megatron.requirements.training_arguments import JobArguments, training_arguments
from airflow_megatron.requirements.training_estimates import job_estimates
from airflow_megatron.spec.layout.run_layout import SweepLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.checks.findings import AlikeFindings, RuleInStage
    from airflow_megatron.requirements.queue_estimates import GpuHours
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Point, Sweep

FindingsByRule = dict["RuleInStage", "AlikeFindings"]


class NeedsOneProcessError(AirflowMegatronError):
    """A half that has errors, or is not valid for the whole; the sweep must be planned in one process."""


@dataclass(frozen=True)
class CheckedHalf:
    """The contribution of a half to the plan of all points, as a small object of plain values.

    :param findings: warnings of this project's rules, and of the programs of jobs, each by rule and stage
    :param hours: GPU-hours of each job that has GPUs
    :param jobs: the number of jobs
    :param no_estimates: why there are no estimates
    :param chain: the longest time of jobs that wait for each other, in seconds
    """

    findings: tuple[FindingsByRule, FindingsByRule]
    hours: tuple[GpuHours, ...]
    jobs: int
    no_estimates: str | None
    chain: int


def checked_half(
    sweep: Sweep, cluster: ClusterProfile, points: Sequence[Point], shared: int
) -> tuple[CheckedHalf, Plan]:
    """Plan and check some points.

    :param shared: number of jobs of the whole sweep, which come first and are not counted
    :return: the contribution, and its plan
    :raises NeedsOneProcessError: if there are errors, or the check needs the other points
    :raises SpecError: if a job cannot be created
    """
    arguments = JobArguments(cluster)
    plan = plan_sweep(sweep, cluster, points, arguments)
    _check_paths(plan.jobs, SweepLayout.of(cluster.run_root, sweep.name).path, arguments)
    check_scripts(sweep, plan.jobs, cluster)
    estimates = job_estimates(plan.jobs, arguments)
    trainings = training_arguments(plan.jobs, arguments)
    own = alike_findings(own_findings(sweep, plan.jobs, trainings, arguments, estimates.jobs))
    _refuse_errors(own)
    asked = alike_findings(asked_findings(plan.jobs, trainings, arguments))
    _refuse_errors(asked)
    hours = tuple(gpu_hours([job]) for job in plan.jobs[shared:] if job.slurm.gpus)
    chain = chain_before_purge(plan.jobs, cluster)
    half = CheckedHalf((own, asked), hours, len(plan.jobs) - shared, estimates.unknown_gpu, chain)
    return half, Plan(
        plan.sweep, plan.cluster, plan.points, plan.jobs, estimates=estimates, several=plan.several
    )


def _refuse_errors(findings: Mapping[RuleInStage, AlikeFindings]) -> None:
    if not all(alike.warning for alike in findings.values()):
        raise NeedsOneProcessError


def _check_paths(jobs: Sequence[Job], sweep_dir: str, arguments: JobArguments) -> None:
    shared = f"{sweep_dir}/_shared/"
    for job in jobs:
        own = f"{sweep_dir}/{job.point}/" if job.point else shared
        if job.trains and (
            "--save" in job.params or arguments.of(job).get("save") not in (None, job.checkpoint_dir)
        ):
            raise NeedsOneProcessError
        for path in (job.run_dir, *job.outputs):
            if not f"{path}/".startswith(own) or ".." in path:
                raise NeedsOneProcessError
        for path in _read(job):
            inside = f"{path}/".startswith((own, shared)) and ".." not in path
            if not inside and (path.startswith(sweep_dir) or ".." in path or "*" in path):
                raise NeedsOneProcessError


def _read(job: Job) -> Iterator[str]:
    """Yield the paths that a job waits for and starts from."""
    if job.parent_dir:
        yield job.parent_dir
    if job.source is not None:
        yield job.source.path
    conditions: list[Condition | None] = [job.start, job.cancel, job.finish]
    conditions += [event.condition for event in job.events]
    for condition in conditions:
        for leaf in condition.leaves() if condition is not None else ():
            if leaf.path:
                yield leaf.path
