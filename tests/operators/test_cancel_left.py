"""The stages of a run that may still have a job in Slurm when the run ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from example_specs import CHAIN

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.cancel_left import CancelLeftJobsOperator, left_stages, queued_behind
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import JobAttempts
from airflow_megatron.supervision.submission import stages_ahead
from airflow_megatron.supervision.submission.remembered_cancellations import (
    Cancellation,
    drop_cancellation,
    remember,
)

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.slurm.remote.transport import CommandResult, Transport
    from airflow_megatron.spec.model.jobs import Job


@pytest.mark.parametrize(
    ("submit", "watch", "left"),
    [
        ("success", "success", False),
        ("success", "failed", True),
        ("success", "skipped", True),  # the run was stopped before the wait began
        ("failed", "upstream_failed", True),  # killed while it submitted
        ("skipped", "skipped", False),
        ("upstream_failed", "upstream_failed", False),
        (None, None, False),
    ],
)
def test_stages_are_selected_by_the_states_of_their_tasks(
    submit: str | None, watch: str | None, left: bool
) -> None:
    states = {"a.submit": submit, "a.watch": watch, "b.submit": "success", "b.watch": "success"}
    assert left_stages(["a", "b"], states) == (["a"] if left else [])


@pytest.mark.parametrize(
    ("ahead", "unbegun", "behind"),
    [
        (0, ["b", "b.c"], []),
        (1, ["b", "b.c"], ["b", "b.c"]),
        (1, ["b.c"], ["b.c"]),
        (1, [], []),
    ],
)
def test_what_may_have_been_queued_behind_others(ahead: int, unbegun: list[str], behind: list[str]) -> None:
    spec = f"""
name: s
point: p
ahead: {ahead}
stages:
  a: {{kind: train, command: ["true"], megatron: {{train_iters: 9}}}}
  b: {{kind: train, parent: a, command: ["true"], megatron: {{train_iters: 10}}}}
  c: {{kind: command, parent: b, command: ["true"]}}
  d: {{kind: command, parent: a, start: {{checkpoint: 3}}, command: ["true"]}}
"""
    jobs = plan_sweep(load_sweep_text(spec, "s.yaml"), load_cluster("local")).jobs
    assert [job.stage for job in queued_behind(jobs, [*unbegun, "a.d"])] == behind


def test_a_successful_run_sends_no_command() -> None:
    class Instance:
        dag_id, run_id = "x.point", "p"

        def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
            assert (dag_id, run_ids) == ("x.point", ["p"])
            return {"p": {"a.submit": "success", "a.watch": "success"}}

    task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a"])
    assert task.execute({"ti": Instance()}) == []  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TransportError("login1 is away"), TaskDeferred),
        (LoginExpiredError("login refused"), TaskDeferred),
        (LoginRefusedError("no"), AirflowFailException),
    ],
)
def test_an_unreachable_login_node_is_tried_again(
    error: TransportError, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would continue, and cost, until it is cancelled."""
    job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]

    class Instance:
        dag_id, run_id = "x.point", "p"

        def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
            return {"p": {"a.submit": "success", "a.watch": "failed"}}

        def xcom_pull(self, task_ids: str, key: str) -> dict[str, Any]:
            return job.to_json()

    def away(hook: SlurmHook, script: str) -> CommandResult:
        raise error

    monkeypatch.setattr(SlurmHook, "run", away)
    monkeypatch.setattr("airflow_megatron.supervision.attempts.TROUBLE_WINDOW_S", 0)
    task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a"])
    context: Any = {"ti": Instance(), "dag_run": SimpleNamespace(conf={})}
    with pytest.raises(outcome):
        task.execute(context)
    with pytest.raises(outcome):
        task.try_again(context)


def test_what_another_run_has_queued_behind_its_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """This run's submission was refused, because the job of another run's command has its name."""
    spec = """
name: s
point: p
ahead: 2
stages:
  a: {kind: command, command: ["true"]}
  b: {kind: command, parent: a, command: ["true"]}
"""
    jobs = plan_sweep(load_sweep_text(spec, "s.yaml"), load_cluster("local")).jobs

    class Instance:
        dag_id, run_id = "s.point", "p"

        def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
            return {"p": {"a.submit": "failed", "a.watch": "upstream_failed", "b.submit": "upstream_failed"}}

        def xcom_pull(self, task_ids: str, key: str) -> dict[str, Any]:
            return next(job.to_json() for job in jobs if job.stage == key)

    def asked(hook: SlurmHook, script: str) -> CommandResult:
        raise AssertionError(script)

    monkeypatch.setattr(SlurmHook, "run", asked)
    monkeypatch.setattr(JobAttempts, "is_of_another_run", lambda *_: True)
    monkeypatch.setattr(stages_ahead, "jobs_of_point", lambda *_: jobs)
    task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a", "b"])
    assert task.execute({"ti": Instance(), "dag_run": SimpleNamespace(conf={})}) == []  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("handle", "text"), [({"job_id": "7"}, "may continue in Slurm"), (None, "was not submitted")]
)
def test_a_refused_login_reports_the_known_state_of_the_job(
    handle: object, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]

    class Instance:
        dag_id, run_id = "x.point", "p"

        def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
            return {"p": {"a.submit": "failed", "a.watch": "upstream_failed"}}

        def xcom_pull(self, task_ids: str, key: str) -> object:
            return job.to_json() if key == "a" else handle

    def refused(hook: SlurmHook, script: str) -> CommandResult:
        raise LoginRefusedError("no")

    monkeypatch.setattr(SlurmHook, "run", refused)
    task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a"])
    context: Any = {"ti": Instance(), "dag_run": SimpleNamespace(conf={})}
    with pytest.raises(AirflowFailException, match=text):
        task.execute(context)


class TestRememberedCancellations:
    """The trigger could not cancel the job."""

    @pytest.fixture
    def job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
        monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
        job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
        name = f"{job.name}.a1"
        assert remember(Cancellation("slurm_local", {}, "7", name, f"{job.stage_dir}/1"))
        return job

    def run(self, job: Job, watch: str) -> Any:
        class Instance:
            dag_id, run_id = "x.point", "p"

            def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
                return {"p": {"a.submit": "success", "a.watch": watch}}

            def xcom_pull(self, task_ids: str, key: str) -> dict[str, Any]:
                return job.to_json()

        task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a"])
        return task.execute({"ti": Instance(), "dag_run": SimpleNamespace(conf={})})  # type: ignore[typeddict-item]

    def test_also_of_a_task_marked_success(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        async def away(hook: SlurmHook) -> Transport:
            raise LoginExpiredError("login refused")

        monkeypatch.setattr(SlurmHook, "transport", away)
        with pytest.raises(TaskDeferred):
            self.run(job, "success")

    def test_not_of_a_job_that_another_run_has_taken_over(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked(hook: SlurmHook, script: str) -> CommandResult:
            raise AssertionError(script)

        monkeypatch.setattr(SlurmHook, "run", asked)
        drop_cancellation("slurm_local", job.stage_dir, "x.point p~2")
        assert self.run(job, "failed") == []
