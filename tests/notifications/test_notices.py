"""Delivery of notices from a task to notifiers."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.execution_time.context import set_current_context
from airflow.serialization.serialized_objects import DagSerialization
from example_specs import CHAIN

from airflow_megatron.dag_factory.callbacks import callbacks
from airflow_megatron.dag_factory.spec_files import build_sweep_dags
from airflow_megatron.notices.notice import Notice
from airflow_megatron.notifications.json_lines import JsonLinesNotifier
from airflow_megatron.notifications.notices import NoticeCallback, send
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents.project import PINS_VARIABLE, project_root
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.model.schema import NotifySection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

OWN = "airflow_megatron.notifications.json_lines.JsonLinesNotifier"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTICES", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTIFIERS", f"{__name__}.BrokenNotifier,{__name__}.HangingNotifier")


class BrokenNotifier(BaseNotifier):
    def notify(self, context: Any) -> None:
        raise ConnectionError("the chat is down")


class HangingNotifier(BaseNotifier):
    """Waits for the answer of a server that accepts connections and says nothing."""

    def notify(self, context: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
            client.connect(server.getsockname())
            client.settimeout(5)  # the end of a test without the limit
            client.recv(1)


def section(path: Path, *kinds: str, message: str = "") -> NotifySection:
    return NotifySection(notifier=OWN, on=list(kinds), arguments={"path": str(path), "message": message})


def context(**values: Any) -> Any:
    task = SimpleNamespace(dag_id="s.point", task_id="pretrain.watch", run_id="lr1", try_number=1)
    return {"ti": task, "dag": DAG("s.point"), **values}


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_ends_the_task_waits_for_its_callbacks(tmp_path: Path) -> None:
    sections = [section(tmp_path / "a", "failure", "retry", message="{{ notice.name }} of {{ notice.what }}")]
    values = context()
    with set_current_context(values):
        send(sections, Notice("retry", "s.p.x", "lost"))
        send(sections, Notice("health", "s.p.x", "nobody wants it"))
        send(sections, Notice("failure", "s.p.x", "given up", iteration=3))
    assert [line["what"] for line in written(tmp_path / "a")] == ["retry"]
    NoticeCallback("failure", sections, always=True)(values)
    (_, line) = written(tmp_path / "a")
    assert (line["what"], line["reason"], line["iteration"]) == ("failure", "given up", 3)
    assert line["message"] == "s.p.x of failure"


def test_each_notifier_gets_a_divergence_once(tmp_path: Path) -> None:
    kinds = {"both": ("failure", "diverged"), "one": ("diverged",), "none": ("report",)}
    sections = [section(tmp_path / name, *wanted) for name, wanted in kinds.items()]
    values = context()
    with set_current_context(values):
        send(sections, Notice("health", "s.p.x", "NaN", also="diverged"))
        send(sections, Notice("failure", "s.p.x", "given up for NaN", also="diverged"))
    NoticeCallback("failure", sections, always=True)(values)
    found = {name: [line["what"] for line in written(tmp_path / name)] for name in kinds}
    assert found == {"both": ["diverged", "failure"], "one": ["diverged", "diverged"], "none": []}


def test_task_that_failed_without_a_job(tmp_path: Path) -> None:
    callback = NoticeCallback("failure", [section(tmp_path / "a", "failure")], always=True)
    callback(context(exception=ValueError("sbatch: invalid account")))
    (line,) = written(tmp_path / "a")
    assert (line["sweep"], line["point"], line["stage"]) == ("s", "lr1", "pretrain")
    assert line["text"].startswith("s.point.pretrain.watch: failure: sbatch: invalid account")


def test_a_job_that_had_finished_before_is_not_reported_again(tmp_path: Path) -> None:
    NoticeCallback("finished", [section(tmp_path / "a", "finished")], always=False)(context())
    assert written(tmp_path / "a") == []


def test_notifier_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = NotifySection(notifier=f"{__name__}.BrokenNotifier", on=["failure"])
    callback = NoticeCallback("failure", [broken, section(tmp_path / "a", "failure")], always=True)
    callback(context())
    assert len(written(tmp_path / "a")) == 1
    assert "failed to send" in caplog.text


def test_notifier_that_hangs_delays_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_megatron.notifications.notices.NOTIFIER_SECONDS", 0.2)
    hanging = NotifySection(notifier=f"{__name__}.HangingNotifier", on=["retry"])
    with set_current_context(context()):
        send([hanging, section(tmp_path / "a", "retry")], Notice("retry", "s.p.train", "node failed"))
    assert len(written(tmp_path / "a")) == 1
    assert "failed to send" in caplog.text
    assert "no end within" in caplog.text


NOTIFY = f"""\
notify:
  - notifier: {OWN}
    on: [failure, finished, report]
    arguments: {{path: "x-{{{{ notice.sweep }}}}.jsonl"}}
"""


@pytest.mark.slow
def test_callbacks_of_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN + NOTIFY)
    dags = {dag.dag_id: dag for dag in build_sweep_dags(tmp_path)}
    for dag in dags.values():
        assert all(task.on_failure_callback for task in dag.tasks)
    point, sweep = dags["chain.point"], dags["chain"]
    telling = {task.task_id for task in point.tasks if task.on_success_callback}
    assert telling == {task.task_id for task in point.tasks if task.task_id.endswith("watch")}
    assert {task.task_id for task in sweep.tasks if task.on_success_callback} == {"report", "prepare.watch"}


def test_no_recipients(tmp_path: Path) -> None:
    for callback in callbacks(SweepOutline.of(load_sweep_text(CHAIN, "chain.yaml")), "failure", always=True):
        callback(context())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dag_id", "run_id", "conf", "pinned"),
    [
        ("chain", "manual__1", {}, True),
        ("chain.point", "lr0.001", {"run": "manual__1"}, True),
        ("chain.point", "lr0.001", {"run": "manual__2"}, False),
        ("chain.point", "lr0.001", None, False),
    ],
)
def test_a_run_notifies_its_pinned_recipients(
    dag_id: str, run_id: str, conf: Any, pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of `notify` does not affect runs in progress."""
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "pins"))
    text = (
        f"{CHAIN}\nnotify: [{{notifier: {OWN}, on: [failure], arguments: {{path: planned, message: x}}}}]\n"
    )
    sweep, around = load_sweep_text(text, "chain.yaml"), PlanEnvironment.now("local")
    plan = plan_sweep(sweep, around.cluster)
    PinnedSweep.stored(sweep, text, plan, around, PinStore()).use("chain", "manual__1")
    edited = [section(tmp_path / "edited", "failure")]
    task = SimpleNamespace(dag_id=dag_id, task_id="pretrain.watch", run_id=run_id, try_number=1)
    NoticeCallback("failure", edited, always=True)(
        context(ti=task, dag_run=SimpleNamespace(conf=conf, run_id=run_id))
    )
    assert (len(written(tmp_path / "planned")), len(written(tmp_path / "edited"))) == (
        int(pinned),
        int(not pinned),
    )


@pytest.mark.slow
def test_dags_with_callbacks_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow stores only that callbacks exist; the recipients are read from the file when the task runs."""
    (tmp_path / "chain.yaml").write_text(CHAIN + NOTIFY)
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(tmp_path))
    bag = DagBag(project_root() / "dags" / "sweeps.py", bundle_path=project_root() / "dags")
    assert bag.import_errors == {}
    stored = [DagSerialization.to_dict(dag) for dag in bag.dags.values()]
    texts = [json.dumps(data, sort_keys=True) for data in stored]
    assert all("has_on_failure_callback" in text for text in texts)
    assert not any("x-{{" in text for text in texts)
    assert {DagSerialization.from_dict(data).dag_id for data in stored} == {"chain", "chain.point"}


def test_the_notifier_in_callbacks_of_a_users_dag(tmp_path: Path) -> None:
    notifier = JsonLinesNotifier("own.jsonl", message="{{ run_id }} {{ reason }}")
    # what Airflow's processor passes if the last task is no longer in the DAG
    notifier({"dag": DAG("mine"), "run_id": "r1", "reason": "task_failure"})
    (line,) = written(tmp_path / "own.jsonl")
    assert (line["name"], line["sweep"], line["message"]) == ("r1", "mine", "r1 task_failure")
