"""Sweeps that measure a short training for each point."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from example_specs import MODEL

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

SPEC = """\
name: speed
point: "b{{ micro_batch_size }}"
megatron: MODEL
benchmark:
  iterations: 30
  expect: "{{ fate }}"
  reported: {step_ms: "{{ theirs }}", memory_gb: 3}
sweep:
  configs:
    - {micro_batch_size: 4, fate: "", theirs: 12.5}
    - {micro_batch_size: 64, fate: oom, theirs: null}
""".replace("MODEL", json.dumps({**MODEL, "global_batch_size": 64}))


def jobs_of(text: str, cluster: ClusterProfile) -> list[Job]:
    return list(check_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs)


@pytest.mark.slow
def test_one_training_at_each_point(cluster: ClusterProfile) -> None:
    small, large = jobs_of(SPEC, cluster)
    assert (small.stage, small.kind, small.expect, large.expect) == ("benchmark", "benchmark", None, "oom")
    assert small.measure == {
        "skip": 10,
        "reported": {"step_ms": 12.5, "memory_gb": 3},
        "hidden": ["fate", "theirs"],
    }
    assert large.measure["reported"] == {"memory_gb": 3}
    words = " ".join(small.command)
    for flag in ("--train-iters 30", "--log-interval 1", "--eval-iters 0", "--log-throughput"):
        assert flag in words
    assert "--save" not in words
    assert "--load" not in words
    assert Job.from_json(json.loads(json.dumps(small.to_json()))) == small


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("benchmark:\n", "stages: {a: {kind: train}}\nbenchmark:\n", "benchmark stands in place of stages"),
        ("fate: oom", "fate: slow", "expect is 'slow'; it can be oom, or nothing"),
        ("theirs: 12.5", "theirs: quick", "measure.reported.step_ms is 'quick'; it must be a number"),
        ("theirs: 12.5", "theirs: .inf", "measure.reported.step_ms is inf; it must be a number"),
        ("theirs: 12.5", f"theirs: {10**400}", "measure.reported.step_ms is 1000"),
        ("iterations: 30", "iterations: 1", "benchmark.iterations is 1"),
        ('"seq_length"', '"seq_lenght"', "did you mean seq_length"),
    ],
)
def test_what_is_refused(old: str, new: str, message: str, cluster: ClusterProfile) -> None:
    assert old in SPEC
    with pytest.raises(SpecError) as caught:
        jobs_of(SPEC.replace(old, new), cluster)
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("iterations", "warned"), [(10, 1), (11, 0)])
def test_a_benchmark_of_which_nothing_is_measured(
    iterations: int, warned: int, cluster: ClusterProfile
) -> None:
    text = SPEC.replace("iterations: 30", f"iterations: {iterations}").replace("fate: oom", 'fate: ""')
    warnings = [str(warning) for warning in check_sweep(load_sweep_text(text, "s.yaml"), cluster).warnings]
    measured = [warning for warning in warnings if "nothing is measured" in warning]
    assert len(measured) == warned
    assert all("skip excludes the first 10 of 10 iterations" in warning for warning in measured)
