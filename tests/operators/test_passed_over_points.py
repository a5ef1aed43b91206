"""``launch`` starts runs only for points with at least one job to submit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagRunResult, DRCount, ErrorResponse, GetDagRun, GetDRCount
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.launch_points import LaunchPointsOperator, finished_points
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import PinnedSweep, jobs_by_point
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.run_results import ReportedRun, _about, _lines
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import next_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

SMALL = """\
name: small
point: "p{{ lr }}"
sweep: {lr: [1, 2]}
stages:
  prepare: {kind: command, scope: sweep, command: [make], outputs: [data]}
  first: {kind: command, parent: prepare, command: [first, "{{ lr }}"]}
  second: {kind: command, parent: first, command: [second]}
"""


def shell(script: str) -> CommandResult:
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False)
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def planned(root: Path, cluster: ClusterProfile, text: str = SMALL) -> Plan:
    return plan_sweep(load_sweep_text(text, "s.yaml"), cluster.model_copy(update={"run_root": str(root)}))


def end(job: Job, *, attempts: int = 1, **changes: Any) -> None:
    """Write the records of an ended job to the cluster."""
    verdict = {"job": job.name, "attempt": attempts, "outcome": "finished", "reason": "it's\n 'done'"}
    verdict |= {"digest": job_digest(job), **changes}
    for number in range(1, attempts + 1):
        (Path(job.stage_dir) / str(number)).mkdir(parents=True, exist_ok=True)
    (Path(job.stage_dir) / "verdict.json").write_text(json.dumps(verdict, indent=2))


def test_points_all_of_whose_jobs_have_finished(tmp_path: Path, cluster: ClusterProfile) -> None:
    jobs = jobs_by_point(planned(tmp_path / "it's a run root", cluster).jobs)
    assert finished_points(jobs, shell) == set()
    for job in (*jobs[""], *jobs["p1"], jobs["p2"][0]):
        end(job, attempts=3)
    assert finished_points(jobs, shell) == {"p1"}
    end(jobs["p2"][1], outcome="cancelled", intended=True)
    assert finished_points(jobs, shell) == {"p1", "p2"}


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "failed"},
        {"outcome": "cancelled"},
        {"outcome": "cancelled", "withdrawn": True},
        {"digest": "0123456789abcdef"},
        {"attempt": 1, "attempts": 2},
        {"attempt": None},
    ],
)
def test_a_point_with_a_job_to_submit_is_never_skipped(
    changes: Mapping[str, Any], tmp_path: Path, cluster: ClusterProfile
) -> None:
    jobs = jobs_by_point(planned(tmp_path, cluster).jobs)
    for its in jobs.values():
        for job in its:
            end(job)
    assert finished_points(jobs, shell) == {"p1", "p2"}
    end(jobs["p1"][1], **changes)
    assert finished_points(jobs, shell) == {"p2"}
    end(jobs[""][0], **changes)
    assert finished_points(jobs, shell) == set()


STAGE = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(0, 2),
        "verdict": st.fixed_dictionaries(
            {
                "attempt": st.integers(0, 2),
                "outcome": st.sampled_from(["finished", "failed", "cancelled", "?"]),
            },
            optional={"intended": st.booleans(), "digest": st.sampled_from(["now", "then"])},
        )
        | st.sampled_from(["", "{", "[]", '{"outcome"']),
    },
)


@pytest.mark.slow
@given(stages=st.lists(STAGE, min_size=5, max_size=5))
def test_it_decides_like_the_submit_task(
    stages: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, cluster: ClusterProfile
) -> None:
    plan = planned(tmp_path_factory.mktemp("runs"), cluster)
    for job, stage in zip(plan.jobs, stages, strict=True):
        folder = Path(job.stage_dir)
        for number in range(1, stage.get("attempts", 0) + 1):
            (folder / str(number)).mkdir(parents=True)
        if (verdict := stage.get("verdict")) is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if isinstance(verdict, dict) and verdict.get("digest") == "now":
                verdict = {**verdict, "digest": job_digest(job)}
            (folder / "verdict.json").write_text(verdict if isinstance(verdict, str) else json.dumps(verdict))
    directories = [job.stage_dir for job in plan.jobs]
    states = parse_stage_states(directories, shell(stage_state_script(directories)))

    def submits(job: Job) -> bool:
        chosen = next_attempt(states[job.stage_dir], rerun=False, digest=job_digest(job))
        return not (chosen.finished or chosen.cancelled)

    jobs = jobs_by_point(plan.jobs)
    wanted = {point for point in plan.points if not any(submits(job) for job in (*jobs[""], *jobs[point]))}
    assert finished_points(jobs, shell) == wanted


class Airflow:
    """A stub of a task's channel to Airflow, with the runs of the point DAG."""

    def __init__(self, **runs: tuple[str, dict[str, Any]]) -> None:
        self.runs = dict(runs)
        self.started: list[str] = []

    def send(self, msg: Any) -> Any:
        if isinstance(msg, GetDRCount):
            return DRCount(count=sum(run in self.runs for run in msg.run_ids or ()))
        known = self.runs.get(msg.run_id)
        if isinstance(msg, GetDagRun):
            assert known is not None
            state, conf = known
            return DagRunResult.model_construct(state=state, conf=conf)
        if known is not None:
            return ErrorResponse.model_validate({"error": "DAGRUN_ALREADY_EXISTS"})
        self.started.append(msg.run_id)
        return None


class TestLaunch:
    @pytest.fixture
    def plan(self, tmp_path: Path, cluster: ClusterProfile) -> Plan:
        plan = planned(tmp_path / "runs", cluster)
        for job in plan.jobs:
            if job.point != "p2":
                end(job)
        return plan

    @pytest.fixture
    def launched(
        self, plan: Plan, tmp_path: Path, cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch
    ) -> Any:
        sweep = load_sweep_text(SMALL, "s.yaml")
        own = cluster.model_copy(update={"run_root": str(tmp_path / "runs")})
        pinned = PinnedSweep.stored(sweep, SMALL, plan, PlanEnvironment.now(own), PinStore())
        monkeypatch.setattr(SlurmHook, "run", lambda self, script: shell(script))

        def launch(airflow: Airflow, **options: Any) -> tuple[dict[str, str], list[str], list[str]]:
            monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)
            pushed: dict[str, Any] = {}
            instance = SimpleNamespace(
                dag_id="small", run_id="r", xcom_push=lambda key, value: pushed.update({key: value})
            )
            pinned.use("small", "r")
            task = LaunchPointsOperator(
                task_id="l", point_dag_id="small.point", pinned=pinned.to_json(), **options
            )
            runs = task.execute({"ti": instance})  # type: ignore[typeddict-item]
            return runs, airflow.started, pushed["passed_over"]

        launch.digest = lambda point: LaunchPointsOperator(  # type: ignore[attr-defined]
            task_id="l", point_dag_id="small.point", pinned={}
        ).configurations(pinned, "r")[point]["digest"]
        return launch

    def test_a_finished_point_needs_no_run(self, launched: Any, capsys: pytest.CaptureFixture[str]) -> None:
        assert launched(Airflow()) == ({"p2": "p2"}, ["p2"], ["p1"])
        assert "1 of 2 points have finished and are not started again: p1" in capsys.readouterr().out

    def test_a_fresh_start_runs_it_again(self, launched: Any) -> None:
        assert launched(Airflow(), fresh_start=True) == ({"p1": "p1", "p2": "p2"}, ["p1", "p2"], [])

    @pytest.mark.parametrize("state", ["running", "queued", "success"])
    def test_its_run_is_waited_for(self, state: str, launched: Any) -> None:
        """A task of it may have been cleared."""
        airflow = Airflow(p1=(state, {"digest": launched.digest("p1")}))
        assert launched(airflow) == ({"p1": "p1", "p2": "p2"}, ["p2"], [])

    def test_no_run_follows_a_failed_one(self, launched: Any) -> None:
        airflow = Airflow(p1=("failed", {"digest": launched.digest("p1")}))
        assert launched(airflow) == ({"p2": "p2"}, ["p2"], ["p1"])

    @pytest.mark.parametrize("later", [None, "running", "queued", "success"])
    def test_a_run_is_repeated_if_its_directories_are_gone(
        self, later: str | None, plan: Plan, launched: Any
    ) -> None:
        its = {"digest": launched.digest("p2")}
        runs = {"p2": ("success", its)} | ({"p2~2": (later, its)} if later else {})
        started = {None: "p2~2", "success": "p2~3"}.get(later)
        assert launched(Airflow(**runs)) == ({"p2": started or "p2~2"}, [started] if started else [], ["p1"])

    def test_a_later_run_is_waited_for_that_has_made_directories_again(
        self, plan: Plan, launched: Any
    ) -> None:
        (Path(jobs_by_point(plan.jobs)["p2"][0].stage_dir) / "1").mkdir(parents=True)
        its = {"digest": launched.digest("p2")}
        airflow = Airflow(**{"p2": ("success", its), "p2~2": ("running", its)})
        assert launched(airflow) == ({"p2": "p2~2"}, [], ["p1"])

    def test_jobs_that_a_user_has_marked_are_not_started_again(self, plan: Plan, launched: Any) -> None:
        job = jobs_by_point(plan.jobs)["p2"][0]
        end(job, outcome="failed")
        airflow = Airflow(p2=("success", {"digest": launched.digest("p2")}))
        assert launched(airflow) == ({"p2": "p2"}, [], ["p1"])

    def test_no_run_is_repeated_while_the_login_node_is_unreachable(
        self, launched: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(self: SlurmHook, script: str) -> CommandResult:
            raise TransportError("no route to host")

        monkeypatch.setattr(SlurmHook, "run", away)
        airflow = Airflow(p2=("success", {"digest": launched.digest("p2")}))
        assert launched(airflow) == ({"p1": "p1", "p2": "p2"}, ["p1"], [])

    def test_all_points_are_started_while_the_login_node_is_unreachable(
        self, launched: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(self: SlurmHook, script: str) -> CommandResult:
            raise TransportError("no route to host")

        monkeypatch.setattr(SlurmHook, "run", away)
        assert launched(Airflow()) == ({"p1": "p1", "p2": "p2"}, ["p1", "p2"], [])


def test_the_report_counts_skipped_points(tmp_path: Path, cluster: ClusterProfile) -> None:
    from datetime import UTC, datetime

    plan = planned(tmp_path, cluster)
    reported = ReportedRun("r", "", "", None, 2, "", passed_over=1)
    about = _about(plan, reported, "d", datetime(2026, 11, 22, tzinfo=UTC))
    assert about.passed_over == 1
    assert "2 of 2 points, 1 of them finished in an earlier run, on alps" in _lines(about)[0]
