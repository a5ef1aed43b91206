"""What XComs of a sweep's tasks can refer to: somebody may have written them by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from example_specs import CHAIN

from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents.project import PINS_VARIABLE
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.task_runtime.stored_plan import own_job, stored_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POINT = "lr0.001"
STAGE = "pretrain"
OTHER = CHAIN.replace("name: chain", "name: victim")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinStore:
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "pins"))
    return PinStore()


def stored(text: str, run_id: str, store: PinStore) -> PinnedSweep:
    """Store the plan of a sweep's run, as ``plan`` does."""
    sweep, around = load_sweep_text(text, "s.yaml"), PlanEnvironment.now("local")
    with store.writing():
        plan = PinnedSweep.stored(sweep, text, plan_sweep(sweep, around.cluster), around, store)
        plan.use(sweep.name, run_id)
    return plan


@pytest.fixture
def plan(store: PinStore) -> PinnedSweep:
    return stored(CHAIN, "manual__1", store)


def context_of(dag_id: str, xcom: object = None, started: float | None = None, **conf: Any) -> Any:
    run_id = "manual__1" if dag_id == "chain" else POINT
    instance = SimpleNamespace(dag_id=dag_id, run_id=run_id, xcom_pull=lambda task_ids, key: xcom)
    start_date = datetime.fromtimestamp(started or time.time() + 60, UTC)
    run = SimpleNamespace(conf=conf, run_type="manual", start_date=start_date)
    return {"ti": instance, "dag_run": run, "params": {}}


def point_context(xcom: object) -> Any:
    return context_of("chain.point", xcom, point=POINT, run="manual__1")


def job_of(plan: PinnedSweep, stage: str = STAGE) -> dict[str, Any]:
    return next(job.to_json() for job in plan.jobs_of(POINT) if job.stage == stage)


class TestJobs:
    def test_a_planned_job_is_the_one_of_the_plan(self, plan: PinnedSweep) -> None:
        assert own_job(point_context(job_of(plan)), "resolve", STAGE) == job_of(plan)

    @pytest.mark.parametrize(
        "change",
        [
            {"command": ["bash", "-c", "echo PWNED"], "kind": "command"},
            {"run_dir": "/runs/victim/p1"},
            {"profile": {"name": "local", "ssh_conn_id": "somebody_elses_login"}},
            {"sweep": "victim"},
            {"stage": "cooldown"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_changed_job_is_the_planned_one(self, change: dict[str, Any], plan: PinnedSweep) -> None:
        assert own_job(point_context({**job_of(plan), **change}), "resolve", STAGE) == job_of(plan)

    @pytest.mark.parametrize(
        "forge",
        [
            lambda job: {**job, "pin": ""},
            lambda job: {**job, "pin": "f" * 64},
            lambda job: {**job, "pin": "../../etc"},
            lambda job: {**job, "pin": ["x"]},
            lambda job: [job],
            lambda job: "job",
        ],
    )
    def test_a_job_without_a_plan_of_the_run_is_refused(
        self, forge: Callable[[dict[str, Any]], object], plan: PinnedSweep
    ) -> None:
        with pytest.raises(AirflowFailException, match="clear `resolve`"):
            own_job(point_context(forge(job_of(plan))), "resolve", STAGE)

    @pytest.mark.parametrize(("text", "run_id"), [(OTHER, "manual__1"), (CHAIN, "another")])
    def test_a_plan_of_another_sweep_or_run_is_refused(
        self, text: str, run_id: str, plan: PinnedSweep, store: PinStore
    ) -> None:
        other = stored(f"{text}tags: [other]\n", run_id, store)
        assert other.pin != plan.pin
        with pytest.raises(AirflowFailException, match="has not stored the plan"):
            own_job(point_context(job_of(other)), "resolve", STAGE)

    def test_the_point_is_the_one_of_the_run(self, plan: PinnedSweep) -> None:
        of_other_point = next(job for job in plan.plan().jobs if job.point not in ("", POINT))
        found = own_job(point_context(of_other_point.to_json()), "resolve", of_other_point.stage)
        assert found is not None
        assert found["point"] == POINT

    def test_a_stage_that_the_run_lacks_has_no_job(self, plan: PinnedSweep) -> None:
        assert own_job(point_context(None), "resolve", STAGE) is None
        assert own_job(point_context(job_of(plan)), "resolve", "new") is None

    def test_a_run_of_a_version_without_stored_plans_goes_on(self, plan: PinnedSweep) -> None:
        unpinned = {**job_of(plan), "pin": ""}
        before = context_of("chain.point", unpinned, started=time.time() - 3600, point=POINT)
        assert own_job(before, "resolve", STAGE) == unpinned
        rest: dict[str, Any] = {"digest": "0", "cluster": "local", "fresh_start": False, "submitted": {}}
        conf = {"point": POINT, "jobs": {STAGE: unpinned}, **rest}
        launched = context_of("chain.point", {**unpinned, "run_dir": "/x"}, **conf)
        launched["dag_run"].run_type = "operator_triggered"
        assert own_job(launched, "resolve", STAGE) == unpinned


class TestPlans:
    def test_the_plan_of_the_run(self, plan: PinnedSweep) -> None:
        assert stored_plan(plan.to_json(), context_of("chain")) == plan

    @pytest.mark.parametrize(("text", "run_id"), [(OTHER, "manual__1"), (CHAIN, "another")])
    def test_of_another_sweep_or_run_is_refused(
        self, text: str, run_id: str, plan: PinnedSweep, store: PinStore
    ) -> None:
        other = stored(f"{text}tags: [other]\n", run_id, store)
        with pytest.raises(AirflowFailException, match="clear `plan`"):
            stored_plan(other.to_json(), context_of("chain"))

    @pytest.mark.parametrize("text", [OTHER, CHAIN])
    def test_a_spec_in_an_xcom_is_refused(self, text: str, plan: PinnedSweep) -> None:
        """Version 0.1.0 wrote it there."""
        written = {"file": "s.yaml", "text": text, "cluster": "local", "points": [POINT]}
        with pytest.raises(AirflowFailException, match="not a plan of this run"):
            stored_plan(written, context_of("chain"))
        before = context_of("chain", started=time.time() - 3600)
        if text == CHAIN:
            assert stored_plan(written, before).points == (POINT,)
        else:
            with pytest.raises(AirflowFailException, match="a plan of victim"):
                stored_plan(written, before)


@pytest.mark.parametrize(
    "forged",
    [
        {"job": "victim.p1.pretrain"},
        {"job_name": "victim.p1.pretrain.a1.0123"},
        {"job_name": "chainsaw.array.0123"},
        {"job_name": "chain.array|7"},
        {
            "job_id": "9" * 140_000
        },  # sacct's arguments would be too long, and no job of the cluster would get a verdict
        {"job_id": "7;id"},
        {"job_id": None},
        {"attempt": -1},
        {"attempt": "x"},
    ],
    ids=lambda forged: str(forged)[:40],
)
def test_a_task_watches_no_job_of_another_sweep(forged: dict[str, Any], plan: PinnedSweep) -> None:
    job = job_of(plan)
    handle = {"job": job["name"], "attempt": 1, "job_id": "7", **forged}
    task = SlurmWatchOperator(task_id="t", job=job, handle=handle)
    with pytest.raises(AirflowFailException, match="not a job of"):
        task.execute(context_of("chain.point"))


@pytest.mark.parametrize("handle", [[], "x", 7, {}, True])
def test_a_task_needs_the_reference_to_a_job(handle: Any, plan: PinnedSweep) -> None:
    task = SlurmWatchOperator(task_id="t", job=job_of(plan), handle=handle)
    with pytest.raises(AirflowFailException, match="not a job of"):
        task.execute(context_of("chain.point"))
