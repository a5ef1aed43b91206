"""The attempt that an array has submitted is taken from the cluster's records, not from the configuration alone."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from example_specs import CHAIN

from airflow_megatron.operators import slurm_submit
from airflow_megatron.operators.slurm_submit import ATTEMPT_RECORD, SlurmSubmitOperator
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.job_reference import JobHandle

NOTHING = StageRecord((), None)
SUBMITTED = StageRecord((AttemptState(1, "7_3", "0", True, None),), None)


class Store(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.mark.parametrize(
    ("state", "named", "taken"),
    [(SUBMITTED, 1, 1), (NOTHING, 1, 1), (NOTHING, 999, 1), (SUBMITTED, 999, 1)],
)
def test_a_number_that_no_array_has_submitted_is_not_used(
    state: StageRecord,
    named: int,
    taken: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = load_cluster("local")
    job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster).jobs[0]
    attempts = SimpleNamespace(job=job, cluster=cluster, state=lambda: state, commands=None)
    numbers: list[int] = []

    def submit(_: Any, number: int, *__: Any, **___: Any) -> JobHandle:
        numbers.append(number)
        return JobHandle(job.name, number, "7_3")

    monkeypatch.setattr(slurm_submit, "job_attempts", lambda *_: attempts)
    monkeypatch.setattr(slurm_submit, "submit_attempt", submit)
    monkeypatch.setattr(slurm_submit, "drop_cancellation", lambda *_: None)
    monkeypatch.setattr(slurm_submit, "take_up", lambda _, found: (False, found))
    monkeypatch.setattr(slurm_submit, "task_origin", lambda _: None)
    instance = SimpleNamespace(dag_id="chain.point", run_id="r", task_id="s", try_number=1, max_tries=0)
    store = Store()
    context: Any = {
        "ti": instance,
        "dag_run": SimpleNamespace(conf={}, start_date=None),
        "task_state_store": store,
    }
    task = SlurmSubmitOperator(task_id="submit", job=job.to_json(), attempt=named)
    context["task"] = task
    with caplog.at_level(logging.WARNING):
        handle = task.execute(context)
    assert (numbers, handle["attempt"]) == ([taken], taken)
    assert store[ATTEMPT_RECORD]["number"] == taken
