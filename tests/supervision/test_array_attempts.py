"""The jobs that become tasks of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.plan.difference import plan_difference
from airflow_megatron.plan.job_scripts import job_digest, job_script
from airflow_megatron.plan.overview import stage_overviews
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.schema import LimitsSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.array_attempts import ArrayMember, array_groups, attempts_to_submit

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

SPEC = """
name: s
point: "p{{ number }}"
params: {number: 0}
sweep: {params: {number: [0, 1, 2, 3, 4]}}
max_active_points: 3
stages:
  work:
    kind: command
    array: true
    slurm: {mem: "{{ 10 if number < 3 else 20 }}M"}
    command: [echo, "{{ number }}"]
  after: {kind: command, parent: work, command: ["true"]}
"""
ARRAY = Attempt("s.work.array.t1", "/r/s/.arrays/work.t1", 1)


def jobs_of(text: str, cluster: ClusterProfile) -> list[Job]:
    return [job for job in plan_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs if job.array]


def attempt(number: int = 1, **changes: Any) -> AttemptState:
    values: dict[str, Any] = {"job_id": None, "owner_job_id": None, "claimed": False, "exit": None}
    return AttemptState(number, **{**values, **changes})


@pytest.mark.parametrize(
    ("attempts", "verdict", "number"),
    [
        pytest.param([], None, 1, id="nothing yet"),
        pytest.param([attempt(job_id="7", claimed=True)], None, None, id="submitted"),
        pytest.param([attempt(claimed=True)], None, None, id="being submitted alone"),
        pytest.param([attempt(claimed=True, array=ARRAY)], None, 1, id="claimed by an array, cut short"),
        pytest.param([attempt()], None, 1, id="given back"),
        pytest.param([attempt(job_id="7")], "finished", None, id="finished"),
        pytest.param([attempt(job_id="7")], "failed", None, id="given up"),
    ],
)
def test_attempts_to_submit(
    cluster: ClusterProfile, attempts: list[AttemptState], verdict: str | None, number: int | None
) -> None:
    job = jobs_of(SPEC, cluster)[0]
    record = {"attempt": 1, "outcome": verdict, "digest": job_digest(job)} if verdict else None
    states = {job.stage_dir: StageRecord(tuple(attempts), RecordedVerdict.from_json(record))}
    assert attempts_to_submit([job], states) == ({job.name: number} if number else {})


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({}, [3, 2]),
        ({"max_array_size": 2}, [2, 1, 2]),
        ({"max_jobs": 2}, [2, 1, 2]),
        ({"max_jobs": 9}, [3, 2]),
    ],
)
def test_groups_have_equal_resources(
    cluster: ClusterProfile, limits: dict[str, int], sizes: list[int]
) -> None:
    cluster = cluster.model_copy(update={"limits": LimitsSection(**limits)})
    members = [ArrayMember(job, 1, job_script(job, cluster, 1)) for job in jobs_of(SPEC, cluster)]
    groups = array_groups(members, cluster)
    assert [len(group) for group in groups] == sizes
    assert [member for group in groups for member in group] == members
    assert {member.job.slurm.mem for member in groups[0]} == {"10M"}


def test_shown(cluster: ClusterProfile) -> None:
    sweep = load_sweep_text(SPEC, "s.yaml")
    plan = plan_sweep(sweep, cluster)
    assert [row["array"] for row in plan.to_json()["jobs"][:2]] == [3, None]
    assert [stage.kind for stage in stage_overviews(plan, sweep.tree)] == [
        "command, array of 5, 3 at once",
        "command",
    ]
    other = load_sweep_text(SPEC.replace("array: true", "array: 2"), "s.yaml")
    (change,) = plan_difference(plan, plan_sweep(other, cluster)).changes
    assert (change.stage, change.name, change.old, change.new) == ("work", "array", 3, 2)
    job = plan.jobs[0]
    assert Job.from_json(job.to_json()) == job


def test_array_does_not_change_what_a_job_computes(cluster: ClusterProfile) -> None:
    alone = plan_sweep(load_sweep_text(SPEC.replace("    array: true\n", ""), "s.yaml"), cluster)
    together = plan_sweep(load_sweep_text(SPEC, "s.yaml"), cluster)
    assert [job_digest(job) for job in alone.jobs] == [job_digest(job) for job in together.jobs]
