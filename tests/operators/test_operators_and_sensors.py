"""Operators and sensors: template fields, and behaviour without a cluster."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import pkgutil
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from example_specs import CHAIN, spec_text
from login_node import LoginNode

import airflow_megatron
from airflow_megatron.get_provider_info import get_provider_info
from airflow_megatron.operators import plan_sweep as plan_sweep_module
from airflow_megatron.operators import slurm_watch
from airflow_megatron.operators.cancel_left import CancelLeftJobsOperator
from airflow_megatron.operators.described_job import DescribedJobOperator
from airflow_megatron.operators.launch_points import LaunchPointsOperator
from airflow_megatron.operators.plan_sweep import PlanSweepOperator
from airflow_megatron.operators.push_records import PushRecordsOperator
from airflow_megatron.operators.resolve_point import ResolvePointOperator
from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.operators.submit_arrays import SubmitArraysOperator
from airflow_megatron.operators.sweep_report import SweepReportOperator
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.sweep_plan import check_sweep, plan_sweep
from airflow_megatron.sensors import point_runs
from airflow_megatron.sensors.checkpoint import CheckpointSensor
from airflow_megatron.sensors.condition import StartConditionSensor
from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.sensors.point_runs import PointRunsSensor
from airflow_megatron.sensors.produced_file import ProducedFileSensor
from airflow_megatron.sensors.slurm_job import SlurmJobSensor
from airflow_megatron.slurm.remote.records import TaskOrigin
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.schema import HealthSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import SubmissionRefusedError
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.task_runtime.run_configuration import LAUNCHED_POINT_KEYS

if TYPE_CHECKING:
    from pathlib import Path

GIVEN: dict[type[BaseOperator], dict[str, Any]] = {
    PlanSweepOperator: {"spec_file": "a.yaml"},
    LaunchPointsOperator: {"point_dag_id": "x.point", "pinned": {}},
    ResolvePointOperator: {"spec_file": "a.yaml", "sweep": "a", "stages": ["a"]},
    SlurmSubmitOperator: {"job": None},
    SlurmWatchOperator: {"job": None, "handle": None},
    SubmitArraysOperator: {"pinned": {}},
    SweepReportOperator: {"pinned": {}},
    CancelLeftJobsOperator: {"source": "resolve", "stages": ["a"]},
    CheckpointSensor: {"path": None, "iteration": None},
    LogSensor: {"path": None, "pattern": None},
    PointRunsSensor: {"point_dag_id": "x.point", "runs": {}},
    StartConditionSensor: {"job": None},
    SlurmJobOperator: {"command": "hostname"},
    PushRecordsOperator: {"pinned": {}, "point_dag_id": "x.point", "runs": {}},
    SlurmJobSensor: {"submission": {}},
}


STAGES = [*(instance.name for instance in load_sweep_text(CHAIN, "s.yaml").tree), "other"]


class Instance:
    """A stub of the task instance in the first try of a task with two retries; it keeps pushed XComs."""

    try_number, max_tries = 1, 2

    def __init__(self, dag_id: str = "chain", run_id: str = "manual__1") -> None:
        self.pushed: dict[str, Any] = {}
        self.dag_id, self.run_id, self.task_id = dag_id, run_id, ""
        self.states: dict[str, dict[str, str]] = {}

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
        return self.states

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class Run:
    def __init__(self, conf: dict[str, Any] | None = None) -> None:
        self.conf = conf


def classes_of(package: str) -> set[type]:
    folder = importlib.import_module(f"airflow_megatron.{package}")
    found: set[type] = set()
    for module in pkgutil.iter_modules(folder.__path__):
        loaded = importlib.import_module(f"{folder.__name__}.{module.name}")
        found |= {
            item
            for item in vars(loaded).values()
            if inspect.isclass(item) and issubclass(item, BaseOperator) and item.__module__ == loaded.__name__
        }
    return found


def test_every_operator_is_tested() -> None:
    assert (classes_of("operators") | classes_of("sensors")) - {
        ProducedFileSensor,
        DescribedJobOperator,
    } == set(GIVEN)


@pytest.mark.parametrize("operator", GIVEN, ids=lambda operator: operator.__name__)
def test_template_fields_are_attributes_and_arguments(operator: type[BaseOperator]) -> None:
    task = operator(task_id="t", **GIVEN[operator])
    named = {
        name
        for base in operator.__mro__
        if base.__module__.startswith(airflow_megatron.__name__)
        for name in inspect.signature(base.__init__).parameters
    }
    for field in operator.template_fields:
        assert hasattr(task, field)
        assert field in named
    assert set(operator.template_fields_renderers) <= set(operator.template_fields)


def test_what_the_provider_names_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for integration in info[kind]:
            for module in integration["python-modules"]:
                importlib.import_module(module)
    for item in info.get("connection-types", ()):
        module, _, name = item["hook-class-name"].rpartition(".")
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    "task",
    [
        SlurmSubmitOperator(task_id="a", job=None),
        SlurmWatchOperator(task_id="b", job=None, handle=None),
        CheckpointSensor(task_id="c", cluster="local", path=None, iteration=None),
        LogSensor(task_id="d", cluster="local", path=None, pattern=None),
    ],
    ids=lambda task: type(task).__name__,
)
def test_a_point_without_the_stage_skips_it(task: BaseOperator) -> None:
    with pytest.raises(AirflowSkipException, match="this point has no such stage"):
        task.execute({})


def test_a_dry_run_says_why_a_stage_is_skipped() -> None:
    task = SlurmSubmitOperator(task_id="prepare.submit", job=None)
    context: Any = {"ti": Instance("chain"), "dag_run": Run(), "params": {"dry_run": True}}
    with set_current_context(context), pytest.raises(AirflowSkipException, match="dry run: this stage"):
        task.execute(context)


@pytest.mark.parametrize(
    ("dag_id", "conf", "clear"),
    [
        ("chain.point", {"run": "manual__1"}, "clear `plan` of run manual__1 of chain"),
        ("chain", {}, "clear `plan` of this run"),
    ],
)
def test_a_stage_that_the_run_does_not_know_names_what_to_clear(
    dag_id: str, conf: dict[str, Any], clear: str, tmp_path: Path
) -> None:
    TestPlanSweep().run(tmp_path / "s.yaml", CHAIN)
    for stage, expected_message in (
        ("anneal.convert", f"had a stage 'anneal.convert'; to run it, {clear}"),
        ("pretrain.convert", ""),
    ):
        task = SlurmSubmitOperator(task_id=f"{stage}.submit", job=None)
        instance = Instance(dag_id)
        instance.task_id = task.task_id
        context: Any = {"ti": instance, "dag_run": Run(conf)}
        with set_current_context(context), pytest.raises(AirflowSkipException) as caught:
            task.execute(context)
        assert expected_message in str(caught.value)
        assert ("no such stage" in str(caught.value)) is (not expected_message)


class TestPlanSweep:
    def run(
        self, file: Path, text: str, conf: dict[str, Any] | None = None, **choice: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        file.write_text(text)
        instance = Instance()
        task = PlanSweepOperator(task_id="plan", spec_file=str(file), **choice)
        return task.execute({"ti": instance, "dag_run": Run(conf)}), instance.pushed  # type: ignore[typeddict-item]

    @pytest.mark.slow
    def test_stores_the_plan_and_the_choice(self, tmp_path: Path) -> None:
        file = tmp_path / "s.yaml"
        result, pushed = self.run(file, CHAIN, points="*4")
        file.write_text("changed")
        pinned = PinnedSweep.from_json(result)
        assert pinned.points == ("lr0.004",)
        assert (pinned.choice, pinned.limit, pinned.text) == ("*4", None, CHAIN)
        assert pinned.plan().digest == pinned.digest
        assert PinStore().newest("chain", "manual__1") == pinned.pin
        assert len(json.dumps(result)) < 500
        assert [Job.from_json(job).name for job in pushed.values()] == ["chain.prepare"]
        assert list(pushed) == ["prepare"]

    @pytest.mark.parametrize("plan_only", [True, False])
    def test_a_dry_run_gives_the_stages_of_the_whole_sweep_no_job(
        self, plan_only: bool, tmp_path: Path
    ) -> None:
        result, pushed = self.run(tmp_path / "s.yaml", CHAIN, plan_only=plan_only)
        assert result["points"]
        assert list(pushed) == ([] if plan_only else ["prepare"])

    def test_the_log_of_a_big_sweep_names_its_first_jobs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(plan_sweep_module, "LOGGED_JOBS", 2)
        self.run(tmp_path / "s.yaml", CHAIN)
        printed = capsys.readouterr().out
        named = ["chain.prepare ", "chain.lr0.001.pretrain  after chain.prepare finished "]
        assert [name for name in named if f"]   {name}" in printed] == named
        assert "]   and 17 more; all of them: airflow-megatron plan chain " in printed
        assert printed.count("]   ") == 3

    @pytest.mark.parametrize(
        ("text", "choice", "message"),
        [
            ("point: p\n", {}, "'stages' is missing"),
            (CHAIN, {"points": "X*"}, "no point matches 'X*'"),
            (CHAIN, {"cluster": "lokal"}, "did you mean 'local'"),
            (spec_text(point="p", more="megatron: {num_layer: 1}"), {}, "did you mean num_layers"),
        ],
    )
    def test_a_wrong_spec_fails_without_a_retry(
        self, text: str, choice: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(AirflowFailException) as caught:
            self.run(tmp_path / "s.yaml", text, **choice)
        assert message in str(caught.value)

    def test_a_deleted_file(self, tmp_path: Path) -> None:
        with pytest.raises(AirflowFailException, match="cannot be read"):
            PlanSweepOperator(task_id="plan", spec_file=str(tmp_path / "no.yaml")).execute(
                {"dag_run": Run()}  # type: ignore[typeddict-item]
            )

    @pytest.mark.parametrize(
        ("conf", "message"),
        [
            ({"limits": 1}, "unknown key 'limits'; did you mean 'limit'?"),
            ({"point": "x"}, "unknown key 'point'; did you mean 'points'?"),
            ({"zzz": 1}, "known: cluster, dry_run, fresh_start, limit, points"),
        ],
    )
    def test_unknown_keys_are_refused(self, conf: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(AirflowFailException) as caught:
            self.run(tmp_path / "s.yaml", CHAIN, conf)
        assert message in str(caught.value)
        assert PinStore().newest("chain", "manual__1") is None


class TestResolvePoint:
    def run(self, file: Path, conf: dict[str, Any] | None, **params: Any) -> dict[str, Any]:
        instance = Instance("chain.point", "lr0.004")
        task = ResolvePointOperator(task_id="resolve", spec_file=str(file), sweep="chain", stages=STAGES)
        context: Any = {"ti": instance, "dag_run": Run(conf), "params": params}
        assert task.execute(context) == "lr0.004"
        return instance.pushed

    def test_a_run_that_a_person_started_expands_the_spec(self, tmp_path: Path) -> None:
        (tmp_path / "s.yaml").write_text(CHAIN)
        pushed = self.run(tmp_path / "s.yaml", {"point": "lr0.004"}, cluster="local")
        sweep = load_sweep_text(CHAIN, "s.yaml")
        planned = plan_sweep(sweep, load_cluster("local")).job("chain.lr0.004.pretrain")
        assert Job.from_json(pushed["pretrain"]) == planned
        assert pushed["other"] is None
        assert pushed["pretrain"]["pin"] == PinStore().newest("chain.point", "lr0.004")

    @pytest.mark.slow
    def test_a_launched_run_reads_the_newest_plan_of_its_sweeps_run(self, tmp_path: Path) -> None:
        file = tmp_path / "s.yaml"
        plan = TestPlanSweep()
        first, _ = plan.run(file, CHAIN)
        conf = {"point": "lr0.004", "pin": first["pin"], "run": "manual__1", "digest": "x", "submitted": {}}
        file.unlink()
        before = self.run(file, conf)
        assert before["pretrain"]["pin"] == first["pin"]
        second, _ = plan.run(file, CHAIN.replace("global_batch_size: 16", "global_batch_size: 32"))
        after = self.run(file, conf)
        assert second["pin"] != first["pin"]
        assert after["pretrain"]["pin"] == second["pin"]
        sizes = [jobs["pretrain"]["params"]["global_batch_size"] for jobs in (before, after)]
        assert sizes == [16, 32]

    @pytest.mark.parametrize(("tries", "goes_on"), [((1, 2), False), ((4, 5), True)])
    def test_a_run_launched_while_its_sweep_was_stopped(
        self, tries: tuple[int, int], goes_on: bool, tmp_path: Path
    ) -> None:
        """It ends, unless a user clears it later."""
        file = tmp_path / "s.yaml"
        plan, _ = TestPlanSweep().run(file, CHAIN)
        instance = Instance("chain.point", "lr0.004")
        instance.try_number, instance.max_tries = tries
        instance.states = {"manual__1": {"launch": "failed"}}
        task = ResolvePointOperator(
            task_id="resolve", spec_file=str(file), sweep="chain", stages=STAGES, retries=2
        )
        conf = {"point": "lr0.004", "pin": plan["pin"], "run": "manual__1"}
        context: Any = {"ti": instance, "dag_run": Run(conf), "params": {}, "task": task}
        if goes_on:
            assert task.execute(context) == "lr0.004"
        else:
            with pytest.raises(AirflowFailException, match="was stopped while it launched its points"):
                task.execute(context)

    def test_stages_that_the_dag_no_longer_has(self, tmp_path: Path) -> None:
        file = tmp_path / "s.yaml"
        file.write_text(CHAIN)
        task = ResolvePointOperator(task_id="resolve", spec_file=str(file), sweep="chain", stages=["prepare"])
        context: Any = {"ti": Instance(), "dag_run": Run({"point": "lr0.004"}), "params": {}}
        with pytest.raises(AirflowFailException, match="has a stage 'pretrain' that this DAG no longer has"):
            task.execute(context)

    @pytest.mark.parametrize(
        ("conf", "message"),
        [
            (None, 'which point? give the run a configuration: {"point": "<name>"}'),
            ({"point": "lr9"}, "the sweep has no point 'lr9'"),
            ({"point": "lr0.004", "cluster": "lokal"}, "did you mean 'local'"),
            (
                {"point": "lr0.004", "fresh_stat": True},
                "unknown key 'fresh_stat'; did you mean 'fresh_start'?",
            ),
            ({"point": "lr0.004", "digest": "x"}, "unknown key 'digest'"),
            (
                {"point": "lr0.004", "jobs": {"pretrain": {"script": "#!/bin/bash"}}},
                "jobs come from a plan, not from a run's configuration",
            ),
            (
                {"point": "lr0.004", "pin": "0" * 64},
                (
                    "a run with a stored plan needs both pin and run, the run of chain that stored it; "
                    'to run the point by itself, write {"point": "lr0.004"} alone'
                ),
            ),
            ({"point": "lr0.004", "pin": None, "run": "r"}, "needs both pin and run"),
            ({"point": "lr0.004", "pin": "0" * 64, "run": "../x"}, "has stored no plan"),
            ({"point": "lr0.004", "pin": "x", "run": "r", "script": "x"}, "unknown key 'script'"),
        ],
    )
    def test_refused(self, conf: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
        (tmp_path / "s.yaml").write_text(CHAIN)
        with pytest.raises(AirflowFailException) as caught:
            self.run(tmp_path / "s.yaml", conf)
        assert message in str(caught.value)


class TestLaunchPoints:
    def test_a_dry_run_starts_nothing(self) -> None:
        # the form of version 0.1.0, which a run of then may have in its XCom
        pinned = {"file": "s.yaml", "text": CHAIN, "cluster": "local", "points": ["lr0.001"], "sources": {}}
        task = LaunchPointsOperator(task_id="l", point_dag_id="chain.point", pinned=pinned, plan_only=True)
        context: Any = {"ti": Instance("chain"), "dag_run": Run()}
        with pytest.raises(AirflowSkipException, match="dry run: 1 point is not started"):
            task.execute(context)

    @pytest.mark.slow
    def test_configurations_are_small(self) -> None:
        """The plan of a point is stored, because an argument of a process is limited to 128 kB."""
        file = sweep_specs_dir() / "scaling_exps.yaml"
        context: Any = {"ti": Instance(), "dag_run": Run()}
        plan = PlanSweepOperator(task_id="plan", spec_file=str(file)).execute(context)
        pinned = PinnedSweep.from_json(plan)
        task = LaunchPointsOperator(task_id="l", point_dag_id="x.point", pinned=pinned.to_json())
        confs = task.configurations(pinned, "manual__2026-11-22T08:20:13.939576+00:00")
        assert len(confs) == len(pinned.points) > 50
        assert max(len(json.dumps(conf)) for conf in confs.values()) < 1000
        assert set(confs[pinned.points[0]]) == set(LAUNCHED_POINT_KEYS)

    @pytest.mark.slow
    @pytest.mark.parametrize(("most_at_once", "seen"), [(1, 1), (2, 2), (16, 3)])
    def test_without_a_scheduler_the_limit_of_points_holds(self, most_at_once: int, seen: int) -> None:
        """A benchmark's machine is one point's at a time, under `airflow dags test` too."""
        running: list[int] = [0]
        together, lock = threading.Barrier(seen), threading.Lock()

        class Counting(LaunchPointsOperator):
            def _work(self, conf: Any) -> int:
                with lock:
                    running.append(running[-1] + 1)
                together.wait(60)
                time.sleep(0.05)
                with lock:
                    running.append(running[-1] - 1)
                return 0

        task = Counting(task_id="l", point_dag_id="x.point", pinned={}, most_at_once=most_at_once)
        task._execute_runs({f"p{number}": {} for number in range(6)})
        assert max(running) == seen


class TestWaiting:
    def test_for_a_checkpoint(self) -> None:
        sensor = CheckpointSensor(
            task_id="c",
            cluster="local",
            path="/r/checkpoints",
            iteration="130",
            producer={"attempt": 2},
            producer_dir="/r/.jobs/pretrain",
            timeout=60,
        )
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute({})
        _, stored = deferred.value.trigger.serialize()
        assert (stored["iteration"], stored["producer_attempt"], stored["ssh_conn_id"]) == (
            130,
            2,
            "slurm_local",
        )
        assert sensor.execute_complete({}, {"status": "complete", "path": "/r/x"}) == "/r/x"
        with pytest.raises(
            AirflowFailException, match="no complete checkpoint of iteration 130 in /r/checkpoints: ended"
        ):
            sensor.execute_complete({}, {"status": "missed", "reason": "ended"})

    def test_for_a_line(self) -> None:
        sensor = LogSensor(task_id="c", cluster="local", path="/r/a.out", pattern="x+", timeout=60)
        with pytest.raises(TaskDeferred):
            sensor.execute({})
        assert sensor.execute_complete({}, {"status": "found", "line": "xx"}) == "xx"
        with pytest.raises(
            AirflowFailException, match=r"/r/a\.out: no line; the sensor's timeout of 60 s has passed"
        ):
            sensor.execute_complete({}, {"status": "timeout", "reason": "no line"})

    def test_for_a_line_that_no_pattern_describes(self) -> None:
        with pytest.raises(AirflowFailException, match=r"'\(' is not a regular expression"):
            LogSensor(task_id="c", cluster="local", path="/r/a.out", pattern="(").execute({})

    @pytest.mark.parametrize(
        ("sensor", "arguments", "message"),
        [
            (
                CheckpointSensor,
                {"path": "/c", "iteration": "abc"},
                "iteration is 'abc'; write a whole number",
            ),
            (CheckpointSensor, {"path": "/c", "iteration": -1}, "iteration is -1; write a whole number"),
            (CheckpointSensor, {"path": "/c", "iteration": ""}, "iteration is ''; write a whole number"),
            (CheckpointSensor, {"path": "c", "iteration": 1}, "'c' is not absolute"),
            (CheckpointSensor, {"path": "", "iteration": 1}, "'' is not absolute"),
            (LogSensor, {"path": "logs/a.out", "pattern": "x"}, "'logs/a.out' is not absolute"),
            (LogSensor, {"path": "", "pattern": "x"}, "'' is not absolute"),
        ],
    )
    def test_for_what_cannot_be(
        self,
        sensor: type[CheckpointSensor | LogSensor],
        arguments: dict[str, Any],
        message: str,
    ) -> None:
        with pytest.raises(AirflowFailException) as caught:
            sensor(task_id="t", cluster="local", **arguments).execute({})
        assert message in str(caught.value)

    def test_on_an_unknown_cluster(self) -> None:
        sensor = LogSensor(task_id="c", cluster="lokal", path="/r/a.out", pattern="x")
        with pytest.raises(AirflowFailException, match="did you mean 'local'"):
            sensor.execute({})

    @pytest.mark.slow
    async def test_for_a_job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The operator reads the records on the login node, then defers to the trigger."""
        monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
        plan = check_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local"))
        node = LoginNode()
        await node.start()
        monkeypatch.setenv("AIRFLOW_CONN_SLURM_LOCAL", json.dumps(node.connection(tmp_path)))
        for name in ("chain.lr0.001.pretrain", "chain.prepare"):
            job = plan.job(name)
            handle = {"job": name, "attempt": 2, "job_id": "7", "finished": False, "job_name": None}
            task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle, timeout=60, retries=2)
            context = {"ti": Instance(), "task": task, "task_state_store": Store()}
            with pytest.raises(TaskDeferred) as deferred:
                await asyncio.to_thread(task.execute, context)
            _, stored = deferred.value.trigger.serialize()
            assert stored["attempt_dir"] == f"{job.stage_dir}/2"
            assert stored["log_file"] == job.log_file(2)
            assert stored["train_iters"] == (300 if job.kind == "train" else None)
            assert stored["required_files"] == list(job.outputs)
            watched = {"rules": HealthSection().model_dump(), "intervals": [10]}
            assert stored["health"] == (watched if job.kind == "train" else {})
            assert JobHandle(**stored["carry"]["handle"]) == JobHandle(**handle)
        await node.stop()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("source", "made"),
        [
            ("/old/checkpoints", "{run}/converted_checkpoints/iter_*.done"),
            ("/old/*/checkpoints", "{run}/runs/*/converted_checkpoints/iter_*.done"),
        ],
    )
    async def test_for_what_a_conversion_has_made_before_its_walltime(
        self, source: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A job that has converted some of the checkpoints when its walltime ends is continued."""
        stages = f"stages:\n  all: {{kind: convert, each_checkpoint: true, start: {{from: {source}}}}}\n"
        spec = spec_text(point="p", stages=stages, more="params: {tokenizer: /data/tokenizer}")
        (job,) = check_sweep(load_sweep_text(spec, "s.yaml"), load_cluster("local")).jobs
        node = LoginNode()
        await node.start()
        monkeypatch.setenv("AIRFLOW_CONN_SLURM_LOCAL", json.dumps(node.connection(tmp_path)))
        handle = {"job": job.name, "attempt": 1, "job_id": "7", "finished": False, "job_name": None}
        task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle, timeout=60)
        with pytest.raises(TaskDeferred) as deferred:
            await asyncio.to_thread(
                task.execute, {"ti": Instance(), "task": task, "task_state_store": Store()}
            )
        _, stored = deferred.value.trigger.serialize()
        assert stored["pieces"] == [made.replace("{run}", job.run_dir)]
        await node.stop()

    def test_for_a_job_that_has_finished_before(self) -> None:
        job = check_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
        handle = {"job": job.name, "attempt": 2, "job_id": None, "finished": True}
        result = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle).execute({})
        assert (result["outcome"], result["attempt"], result["passed_over"]) == ("finished", 2, True)

    def test_for_a_job_that_its_own_condition_cancelled_before(self) -> None:
        job = check_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
        handle = {"job": job.name, "attempt": 2, "job_id": "7", "cancelled": True}
        task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle, retries=2)
        with pytest.raises(AirflowSkipException, match="was cancelled before, by its own condition"):
            task.execute({"ti": Instance(), "task": task})  # type: ignore[typeddict-item]

    def test_for_a_job_whose_task_is_sent_the_end_of_another(self) -> None:
        job = check_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
        handle = {"job": job.name, "attempt": 2, "job_id": None, "finished": True}
        other = JobHandle("other.a.work", 1, "7")
        event = JobEvent(Verdict(Outcome.FAILED, "exit code 1", job_id="7"), seen=(), watched=other).to_json()
        result = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle).execute_complete({}, event)
        assert (result["outcome"], result["attempt"], result["passed_over"]) == ("finished", 2, True)

    def test_for_a_job_longer_than_the_timeout(self) -> None:
        job = check_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
        handle = {"job": job.name, "attempt": 2, "job_id": "7", "finished": False}
        event = {"log_tail": ["last line"], "carry": {"handle": handle, "history": []}}
        task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle)
        with pytest.raises(
            AirflowFailException, match="no verdict before the task's timeout; the job continues in Slurm"
        ):
            task.execute_complete({}, event)


@pytest.mark.parametrize("running", [0, 1])
def test_a_sweep_whose_task_is_sent_the_end_of_another_waits_again(
    running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"a": "a", "b": "b"}
    monkeypatch.setattr(point_runs, "count_ended_runs", lambda dag_id, run_ids: len(run_ids) - running)
    monkeypatch.setattr(point_runs, "count_runs", lambda dag_id, run_ids: len(run_ids))
    sensor = PointRunsSensor(task_id="wait", point_dag_id="held.point", runs=runs)
    with pytest.raises(TaskDeferred) if running else nullcontext() as waiting:
        sensor.execute_complete({}, {"ended": 2})
    assert not running or waiting.value.trigger.run_ids == ["a", "b"]


def test_a_later_attempt_names_the_task_that_submits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the end of another run would take its job for one of its own, and cancel it."""
    job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
    origins: list[TaskOrigin] = []

    def submit(*_: Any, origin: TaskOrigin) -> None:
        origins.append(origin)
        raise SubmissionRefusedError("enough")

    monkeypatch.setattr(slurm_watch, "submit_attempt", submit)
    task = SlurmWatchOperator(task_id="watch", job=job.to_json(), handle=None)
    instance = SimpleNamespace(dag_id="s.point", run_id="p", task_id="a.watch", try_number=1)
    context: Any = {"ti": instance, "dag_run": SimpleNamespace(conf={"run": "ours"})}
    with set_current_context(context), pytest.raises(AirflowFailException, match="enough"):
        task.submit_next(context, {"number": 2})
    assert origins == [TaskOrigin("s.point", "p", "ours", "a.watch", 1)]
