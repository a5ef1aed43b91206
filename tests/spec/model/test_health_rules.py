"""The health rules of each job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.schema import HealthSection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

STAGES = """\
point: p
megatron: {{train_iters: 10}}
params: {{minutes: 20}}
{of_sweep}
stages:
  train:
    kind: train
    {of_stage}
  after: {{kind: command, parent: train, command: [x]}}
"""


def rules(cluster: ClusterProfile, of_sweep: str = "", of_stage: str = "") -> HealthSection | None:
    sweep = load_sweep_text(STAGES.format(of_sweep=of_sweep, of_stage=of_stage), "s.yaml")
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}
    assert all(Job.from_json(json.loads(json.dumps(job.to_json()))) == job for job in jobs.values())
    assert next(job for job in jobs.values() if job.kind == "command").health is None
    return jobs["train"].health


def test_a_training_is_watched_without_being_asked_for(cluster: ClusterProfile) -> None:
    health = rules(cluster)
    assert health == HealthSection()
    assert health is not None
    reactions = [health.stall.do, health.throughput.do, health.nan.do, health.skipped.do, health.spike.do]
    assert reactions == ["restart", "notify", "notify", "notify", "notify"]


@pytest.mark.parametrize(
    ("of_sweep", "of_stage"),
    [
        ("health: off", ""),
        ("health: false", ""),
        ("", "health: off"),
        ("health: {nan: {do: fail}}", "health: off"),
    ],
)
def test_off_looks_for_nothing(cluster: ClusterProfile, of_sweep: str, of_stage: str) -> None:
    assert rules(cluster, of_sweep, of_stage) is None


def test_a_stage_changes_only_its_own_keys(cluster: ClusterProfile) -> None:
    health = rules(
        cluster,
        "health: {stall: {after: 30m, factor: 8}, spike: {do: rollback}}",
        'health: {stall: {after: "{{ minutes * 60 }}"}, nan: {iterations: 3}}',
    )
    assert health is not None
    assert (health.stall.after, health.stall.factor, health.stall.startup) == (1200, 8, 3600)
    assert (health.nan.iterations, health.nan.do, health.spike.do) == (3, "notify", "rollback")


@pytest.mark.parametrize("word", ["on", "true"])
def test_on_keeps_the_rules_of_the_sweep(cluster: ClusterProfile, word: str) -> None:
    assert rules(cluster, of_stage=f"health: {word}") == HealthSection()
    assert rules(cluster, f"health: {word}") == HealthSection()
    assert rules(cluster, "health: off", f"health: {word}") == HealthSection()
    health = rules(cluster, "health: {nan: {do: fail}}", f"health: {word}")
    assert health is not None
    assert health.nan.do == "fail"


def test_a_stage_may_be_watched_where_the_sweep_is_not(cluster: ClusterProfile) -> None:
    health = rules(cluster, "health: off", "health: {stall: {do: fail}}")
    assert health == HealthSection.model_validate({"stall": {"do": "fail"}})


@pytest.mark.parametrize(
    ("of_stage", "message"),
    [
        (
            "health: {stall: {do: rollback}}",
            "s.yaml:8:22: stages.train.health.stall.do is 'rollback' (expected one of",
        ),
        ("health: no", "s.yaml:8:5: stages.train.health is 'no' (expected on, off, or keys with values)"),
        ("health: {stal: {do: fail}}", "(did you mean 'stall'?)"),
        ("health: {throughput: {below: 30}}", "less than 1"),
        ("health: {stall: {after: soon}}", "'soon' is not a duration"),
        ("health: {stall: {after: '{{ minuts }}'}}", "minuts"),
    ],
)
def test_what_is_wrong_is_named(cluster: ClusterProfile, of_stage: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        rules(cluster, of_stage=of_stage)
    assert message in str(error.value)
    assert len(error.value.problems) == 1
