"""A fresh start runs the jobs of a point again, except jobs that other points use."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from example_specs import CHAIN

from airflow_megatron.dag_factory.point_dag import build_point_dag
from airflow_megatron.operators.slurm_submit import ChosenAttempt, SlurmSubmitOperator
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


@pytest.fixture(scope="module")
def job() -> Job:
    return plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).job("prepare")


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_finished_shared_job_is_skipped(shared: bool, cleared: bool, job: Job) -> None:
    verdict = {"attempt": 1, "outcome": "finished", "digest": job_digest(job)}
    state = StageRecord((AttemptState(1, "7", "0", True, None),), RecordedVerdict.from_json(verdict))
    attempts: Any = SimpleNamespace(state=lambda: state)
    task = SlurmSubmitOperator(task_id="submit", job=job.to_json(), fresh_start=True, shared=shared)
    chosen, _ = task._next_attempt(job, attempts, None, cleared=cleared)
    assert (chosen.number, chosen.finished) == ((1, True) if shared else (2, False))


def test_only_the_stages_of_the_sweep_are_shared_in_a_points_dag() -> None:
    dag = build_point_dag(SweepOutline.of(load_sweep_text(CHAIN, "s.yaml")), {})
    submits = {task.task_id: task.shared for task in dag.tasks if isinstance(task, SlurmSubmitOperator)}
    assert {name for name, shared in submits.items() if shared} == {"prepare.submit"}
    assert len(submits) > 5


def test_the_chosen_attempt_is_read_as_written() -> None:
    for chosen in (ChosenAttempt(2), ChosenAttempt(3, fresh=True, phase="submitting")):
        assert ChosenAttempt.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert ChosenAttempt.from_json({"phase": "done", "number": 1}) == ChosenAttempt(1, phase="done")
    assert [ChosenAttempt.from_json(value) for value in (None, {}, [], {"number": None})] == [None] * 4
