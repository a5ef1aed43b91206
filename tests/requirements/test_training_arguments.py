"""The arguments of a plan's jobs are computed once for each job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from example_specs import CHAIN

from airflow_megatron.megatron.commands.commands import megatron_arguments
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.requirements.training_arguments import JobArguments, training_arguments
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile


def test_each_job_has_its_own(cluster: ClusterProfile) -> None:
    arguments = JobArguments(cluster)
    plan = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster, None, arguments)
    trainings = [job for job in plan.jobs if job.trains]
    assert len(trainings) > 1
    for job in trainings:
        assert arguments.of(job) == megatron_arguments(job, cluster)
        assert arguments.of(job) is arguments.of(job)
    found = training_arguments(plan.jobs, arguments)
    assert [values.value("save") for values in found.values()] == [job.checkpoint_dir for job in trainings]


def test_another_job_of_the_same_name(cluster: ClusterProfile) -> None:
    arguments = JobArguments(cluster)
    plan = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster, None, arguments)
    job = next(job for job in plan.jobs if job.trains)
    other = msgspec.structs.replace(job, params={**job.params, "train_iters": 77})
    assert arguments.of(job)["train_iters"] != arguments.of(other)["train_iters"] == 77
