"""The DAGs in Airflow: tasks and dependencies, their serialized form, and errors of invalid specs."""

from __future__ import annotations

import functools
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from example_specs import CHAIN

from airflow_megatron.dag_factory.own_sweep import read_sweep
from airflow_megatron.dag_factory.spec_files import (
    SweepSpecErrors,
    build_sweep_dags,
    raise_for_spec_errors,
)
from airflow_megatron.dag_factory.spec_folder import read_spec_folder
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.sweep_owners import record_owner
from airflow_megatron.spec.documents.project import PINS_VARIABLE, project_root, sweep_specs_dir
from airflow_megatron.spec.spec_files import load_sweep, spec_files
from airflow_megatron.task_runtime.stored_plan import MACROS

if TYPE_CHECKING:
    from airflow.sdk import DAG

SHIPPED = [load_sweep(path).name for path in spec_files(sweep_specs_dir())]


def edges(dag: DAG) -> set[tuple[str, str]]:
    return {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids}


def serialized(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def built(folder: Path) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in build_sweep_dags(folder)}


@functools.cache
def shipped() -> dict[str, DAG]:
    return built(sweep_specs_dir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    return tmp_path


@pytest.mark.slow
def test_a_benchmarks_machine_is_one_points_at_a_time_without_a_scheduler_too() -> None:
    assert shipped()["parallelism_gpt2_large"].get_task("launch").workers == 1
    assert shipped()["quickstart"].get_task("launch").workers == 3


class TestTasks:
    @pytest.mark.slow
    def test_of_the_sweep(self, folder: Path) -> None:
        dag = built(folder)["chain"]
        assert edges(dag) == {
            ("plan", "launch"),
            ("plan", "prepare.submit"),
            ("prepare.submit", "prepare.watch"),
            ("prepare.watch", "launch"),
            ("launch", "wait"),
            ("wait", "report"),
            ("prepare.watch", "cancel_left"),
        }

    @pytest.mark.slow
    def test_records_are_sent_beside_the_jobs_and_nothing_waits_for_it(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_MEGATRON_TRACKER_CONNECTIONS", "ours")
        (folder / "chain.yaml").write_text(f"trackers: [{{tracker: mlflow, connection: ours}}]\n{CHAIN}")
        task = built(folder)["chain"].get_task("trackers")
        assert task.upstream_task_ids == {"launch"}
        assert task.downstream_task_ids == set()

    @pytest.mark.slow
    def test_of_a_sweep_with_arrays(self, folder: Path) -> None:
        text = CHAIN.replace("  pretrain:\n", "  pretrain:\n    array: true\n")
        (folder / "chain.yaml").write_text(text)
        dags = built(folder)
        assert edges(dags["chain"]) == {
            ("plan", "launch"),
            ("plan", "arrays"),
            ("plan", "prepare.submit"),
            ("prepare.submit", "prepare.watch"),
            ("prepare.watch", "arrays"),
            ("prepare.watch", "cancel_left"),
            ("arrays", "launch"),
            ("launch", "wait"),
            ("wait", "report"),
        }
        submit = dags["chain.point"].get_task("pretrain.submit")
        template = dags["chain.point"].get_template_env().from_string(submit.attempt)

        class Run:
            conf: dict[str, Any] = {"submitted": {"pretrain": 3}}  # noqa: RUF012

        assert template.render(dag_run=Run) in ("3", 3)
        assert dags["chain.point"].get_task("cooldown_300k.submit").attempt is None

    @pytest.mark.slow
    def test_of_a_point(self, folder: Path) -> None:
        dag = built(folder)["chain.point"]
        submitted_and_watched = {(f"{stage}.submit", f"{stage}.watch") for stage in self.stages()}
        expected = submitted_and_watched | {(f"{stage}.watch", "cancel_left") for stage in self.stages()}
        expected |= {
            ("resolve", "prepare.submit"),
            ("prepare.watch", "pretrain.submit"),
        }
        for branch in ("pretrain", "cooldown_300k", "cooldown_600k"):
            expected |= {
                (f"{branch}.watch", f"{branch}.convert.submit"),
                (f"{branch}.convert.watch", f"{branch}.evaluate.submit"),
            }
            if branch != "pretrain":
                # the branch starts at the parent's checkpoint, not at its end
                expected |= {
                    ("pretrain.submit", f"{branch}.await_checkpoint"),
                    (f"{branch}.await_checkpoint", f"{branch}.submit"),
                }
        assert edges(dag) == expected

    @staticmethod
    def stages() -> list[str]:
        branches = ["pretrain", "cooldown_300k", "cooldown_600k"]
        return [
            "prepare",
            *branches,
            *(f"{one}.{stage}" for one in branches for stage in ("convert", "evaluate")),
        ]

    @pytest.mark.slow
    def test_a_stage_that_waits_for_a_line_in_a_log(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text(
            "name: x\npoint: p\nstages:\n  a: {kind: train, megatron: {train_iters: 9}}\n"
            "  b: {kind: command, command: [x], parent: a, start: {log: 'iteration +5/'}}\n"
        )
        assert edges(built(tmp_path)["x.point"]) >= {
            ("a.submit", "a.b.await_log"),
            ("a.b.await_log", "a.b.submit"),
        }
        sensor: Any = built(tmp_path)["x.point"].get_task("a.b.await_log")
        context = {**MACROS, "planned_job": lambda task, stage: {"run_dir": "/r", "log": None}}
        rendered = sensor.render_template(sensor.path, context)
        assert rendered == "/r/logs/a-{attempt}.out"  # of whichever attempt writes the line

    @pytest.mark.slow
    def test_every_wait_is_behind_the_submission_that_it_waits_for(self) -> None:
        """A run whose tasks are worked one after the other must not wait for a job that was never submitted."""
        for dag in build_sweep_dags():
            for task in dag.tasks:
                if task.task_id.rpartition(".")[2] in ("watch", "await_checkpoint", "await_log"):
                    upstream = {other.task_id for other in task.get_flat_relatives(upstream=True)}
                    assert any(name.endswith("submit") for name in upstream), task.task_id

    @pytest.mark.slow
    def test_a_stopped_run_still_cancels_and_does_not_succeed_for_it(self, folder: Path) -> None:
        """Airflow leaves teardowns out when a run is marked, and when it works out how the run ended."""
        for dag in built(folder).values():
            teardown = dag.get_task("cancel_left")
            assert (teardown.is_teardown, teardown.on_failure_fail_dagrun) == (True, False)

    @pytest.mark.slow
    def test_limits_come_from_the_spec(self, folder: Path) -> None:
        (folder / "chain.yaml").write_text(CHAIN + "max_active_points: 3\npoll_interval: 7\ntags: [mine]\n")
        dag = built(folder)["chain.point"]
        assert dag.max_active_runs == 3
        assert dag.get_task("pretrain.watch").poll_interval == 7
        assert "mine" in dag.tags

    @pytest.mark.slow
    def test_the_tree_does_not_grow_with_the_points(self, folder: Path) -> None:
        before = {name: len(dag.tasks) for name, dag in built(folder).items()}
        (folder / "chain.yaml").write_text(
            CHAIN.replace("[1e-3, 4e-3]", str([i / 1000 for i in range(1, 500)]))
        )
        assert {name: len(dag.tasks) for name, dag in built(folder).items()} == before


class TestTemplates:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "choice", ["", "S_*,M_lr0.001", "{{ lr < 1e-2 and size == 'S' }}", "1", "True", "a\"b'c", "[x]"]
    )
    def test_the_choice_of_points_arrives_as_it_was_typed(self, choice: str, folder: Path) -> None:
        dag = built(folder)["chain"]
        params = {"points": choice or None, "limit": None, "cluster": "local"}
        plan = dag.get_task("plan")
        plan.render_template_fields({"params": params}, dag.get_template_env())
        assert (plan.points, plan.limit, plan.cluster) == (choice, 0, "local")

    @pytest.mark.slow
    @pytest.mark.parametrize("value", [True, False])
    def test_switches_stay_true_or_false(self, value: bool, folder: Path) -> None:
        launch = built(folder)["chain"].get_task("launch")
        context: Any = {
            "params": {"points": None, "limit": None, "cluster": "c", "dry_run": value, "fresh_start": value},
            "ti": FakeInstance({"plan": {"points": ["p"]}}),
        }
        launch.render_template_fields(context, launch.get_template_env())
        assert launch.plan_only is value
        assert launch.fresh_start is value
        plan = launch.dag.get_task("plan")
        plan.render_template_fields(context, plan.get_template_env())
        assert plan.plan_only is value
        assert launch.pinned == {"points": ["p"]}

    @pytest.mark.slow
    def test_jobs_and_handles_reach_their_tasks(self, folder: Path) -> None:
        dag = built(folder)["chain.point"]
        own = {"run_dir": "/r/cool", "cluster": "alps", "depends_on": [{"iteration": 130}]}
        parent = {"run_dir": "/r", "cluster": "alps", "depends_on": []}
        handle = {"job": "j", "attempt": 2, "job_id": "7", "finished": False}
        context: Any = {
            "ti": FakeInstance({"pretrain.submit": handle}, {"cooldown_300k": own, "pretrain": parent}),
            "dag_run": BEFORE_PINS,
        }
        wait = dag.get_task("cooldown_300k.await_checkpoint")
        wait.render_template_fields(context, wait.get_template_env())
        assert (wait.path, wait.iteration, wait.cluster) == ("/r/checkpoints", 130, "alps")
        assert (wait.producer, wait.producer_dir) == (handle, "/r/.jobs/pretrain")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "text",
        ["42", "[0]", "[0-9]+", "(1)", "None", "True", "'done'", "{1}", "1e5", "-1", '"a"', "{{ conn.x }}", "\\d\n",
         "{'a': 1}", "(1, 2)", "é\U0001f600", "b'x'", "...", "0x10", "1_000", "a'b\"c", " x "],
    )  # fmt: skip
    def test_patterns_and_clusters_arrive_as_they_were_written(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text(
            "name: x\npoint: p\nstages:\n  a: {kind: train, megatron: {train_iters: 9}}\n"
            "  b: {kind: command, command: [x], parent: a, start: {log: 'iteration +5/'}}\n"
        )
        sensor: Any = built(tmp_path)["x.point"].get_task("a.b.await_log")
        parent = {"run_dir": "/r", "log": None, "cluster": text, "depends_on": []}
        own = {"run_dir": "/r", "cluster": text, "depends_on": [{"pattern": text}]}
        context: Any = {
            "ti": FakeInstance({"a.submit": {"attempt": 1}}, {"a.b": own, "a": parent}),
            "dag_run": BEFORE_PINS,
        }
        sensor.render_template_fields(context, sensor.get_template_env())
        assert (sensor.pattern, sensor.cluster) == (text, text)

    @pytest.mark.slow
    def test_a_point_without_a_stage_renders_to_nothing(self, folder: Path) -> None:
        dag = built(folder)["chain.point"]
        context: Any = {"ti": FakeInstance({}), "dag_run": type("Run", (), {"conf": {}})}
        for name in ("cooldown_300k.await_checkpoint", "pretrain.submit", "pretrain.watch"):
            task = dag.get_task(name)
            task.render_template_fields(context, task.get_template_env())
        assert dag.get_task("cooldown_300k.await_checkpoint").path is None
        assert dag.get_task("pretrain.submit").job is None
        assert dag.get_task("pretrain.watch").handle is None


BEFORE_PINS = SimpleNamespace(conf={}, start_date=datetime(2026, 1, 1, tzinfo=UTC))
"""A stub of a run whose jobs are in XComs only."""


class FakeInstance:
    """A stub of a task instance with XComs for templates."""

    def __init__(self, results: dict[str, Any], jobs: dict[str, Any] | None = None) -> None:
        self.results, self.jobs = results, jobs or {}

    def xcom_pull(self, task_ids: str, key: str | None = None) -> Any:
        return self.results.get(task_ids) if key is None else self.jobs.get(key)


class TestSerialization:
    @pytest.mark.slow
    @pytest.mark.parametrize("dag_id", [name for sweep in SHIPPED for name in (sweep, f"{sweep}.point")])
    def test_shipped_specs_are_stored_and_read_back(self, dag_id: str) -> None:
        dag = shipped()[dag_id]
        stored = DagSerialization.to_dict(dag)
        again = DagSerialization.from_dict(json.loads(json.dumps(stored)))
        assert set(again.task_dict) == {task.task_id for task in dag.tasks}
        assert {
            (task.task_id, after) for task in again.task_dict.values() for after in task.downstream_task_ids
        } == edges(dag)

    @pytest.mark.slow
    def test_two_builds_are_stored_equally(self) -> None:
        assert [serialized(dag) for dag in build_sweep_dags()] == [
            serialized(dag) for dag in shipped().values()
        ]

    @pytest.mark.slow
    def test_the_order_of_files_does_not_matter(self, folder: Path) -> None:
        before = serialized(built(folder)["chain"])
        (folder / "another.yaml").write_text(CHAIN.replace("name: chain", "name: another"))
        assert serialized(built(folder)["chain"]) == before


class TestWrongSpecs:
    @pytest.mark.slow
    def test_do_not_hide_other_sweeps(self, folder: Path) -> None:
        (folder / "bad.yaml").write_text("point: p\nstages: {a: {kind: trian}}\n")
        (folder / "broken.yaml").write_text("point: {{ lr }}\n")
        (folder / "release.yaml").write_text("release: core_v9\n" + CHAIN.replace("chain", "other"))
        (folder / "zz.yaml").write_text(CHAIN.replace("name: chain", "name: last"))
        assert list(built(folder)) == ["chain", "chain.point", "last", "last.point"]
        with pytest.raises(SweepSpecErrors) as caught:
            raise_for_spec_errors(folder)
        errors_of = str(caught.value)
        assert errors_of.startswith("3 problems in sweep specs:")
        assert f"{folder}/bad.yaml:2:14: stages.a.kind is 'trian'" in errors_of
        assert f"{folder}/broken.yaml:1:" in errors_of
        assert f"{folder}/release.yaml:1:1: core_v9: no such release" in errors_of

    @pytest.mark.slow
    def test_two_sweeps_of_one_name(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PINS_VARIABLE, str(folder / "pins"))
        copy = folder / "a copy.yaml"
        copy.write_text(CHAIN)
        found = read_spec_folder(folder)
        assert found.outlines == ()
        assert read_sweep(folder, "chain") is None
        assert {Path(problem.file).name for problem in found.problems} == {"a copy.yaml", "chain.yaml"}
        assert all("neither has been planned: both are refused" in one.message for one in found.problems)
        record_owner("chain", f"{folder}/chain.yaml", PinStore())
        found = read_spec_folder(folder)
        assert [Path(sweep.file).name for sweep in found.outlines] == ["chain.yaml"]
        (problem,) = found.problems
        assert str(problem).startswith(
            f"{copy}:1:1: {folder}/chain.yaml defines a sweep 'chain' too, and keeps"
        )
        kept = read_sweep(folder, "chain")
        assert kept is not None
        assert Path(kept.file).name == "chain.yaml"

    @pytest.mark.slow
    def test_no_errors(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Airflow ends a parse by the clock: on a busy machine, specs wait for the next one
        monkeypatch.setenv("AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT", "600")
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT", "1000")
        raise_for_spec_errors(folder)
        raise_for_spec_errors(sweep_specs_dir())

    def test_no_folder_no_dags(self, tmp_path: Path) -> None:
        assert build_sweep_dags(tmp_path / "nothing") == []


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["chain", "chain.point"])
def test_a_worker_builds_only_its_sweep(wanted: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "another.yaml").write_text(CHAIN.replace("name: chain", "name: another"))
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
    assert list(built(folder)) == ["chain", "chain.point"]


class TestDagFiles:
    @pytest.fixture
    def bag(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Return a function that reads ``dags/`` as Airflow does, with specs from a folder; the machine may be busy."""
        monkeypatch.setenv("AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT", "300")
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT", "600")

        def read(specs: Path) -> DagBag:
            monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(specs))
            for name in [name for name in sys.modules if name.startswith("unusual_prefix_")]:
                del sys.modules[name]
            return DagBag(project_root() / "dags", collect_dags=True, bundle_name="dags")

        return read

    @pytest.mark.slow
    def test_shipped(self, bag: Any) -> None:
        found = bag(sweep_specs_dir())
        assert found.import_errors == {}
        assert set(found.dags) == {name for sweep in SHIPPED for name in (sweep, f"{sweep}.point")}
        for stat in found.dagbag_stats:
            print(f"{stat.file}: {stat.dag_num} DAGs in {stat.duration.total_seconds():.3f} s")

    @pytest.mark.slow
    def test_a_wrong_spec_is_an_import_error_beside_the_good_ones(self, bag: Any, folder: Path) -> None:
        (folder / "bad.yaml").write_text("point: p\nstages: {a: {kind: trian}}\n")
        found = bag(folder)
        assert set(found.dags) == {"chain", "chain.point"}
        ((file, message),) = found.import_errors.items()
        assert file.endswith("sweep_spec_errors.py")
        assert "bad.yaml:2:14: stages.a.kind is 'trian'" in message


def test_a_folder_of_specs_that_does_not_exist_is_an_import_error(tmp_path: Path) -> None:
    with pytest.raises(SweepSpecErrors, match="nowhere, the folder of sweep specs, does not exist"):
        raise_for_spec_errors(tmp_path / "nowhere")
