"""Effects of Airflow's processes on runs of a sweep, in a real Airflow database."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow import settings
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.comms import _ResponseFrame
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from example_specs import CHAIN
from pydantic import TypeAdapter

from airflow_megatron.dag_factory.stopped_runs import stop_points_of
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.task_runtime.run_configuration import SWEEP_KEYS, refuse_unknown_keys
from airflow_megatron.task_runtime.stored_plan import CHANGED, own_job, stored_plan
from airflow_megatron.ui import run_listener
from airflow_megatron.ui.run_listener import (
    changes_note,
    on_dag_run_failed,
    on_dag_run_running,
    on_dag_run_success,
    on_starting,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session

pytestmark = pytest.mark.usefixtures("airflow_database")
MARKED = "Dag Run's state was manually set to `failed`."


@pytest.fixture
def session() -> Iterator[Session]:
    with settings.Session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        for dag_id, kind in (("chain", "sweep"), ("chain.point", "point"), ("other", "")):
            tags = [DagTag(name=name, dag_id=dag_id) for name in ("megatron", kind) if name]
            if session.get(DagModel, dag_id) is None:
                session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", tags=tags))
        session.flush()
        yield session
        session.rollback()


def run_of(session: Session, dag_id: str, run_id: str, **conf: Any) -> DagRun:
    run = DagRun(
        dag_id=dag_id,
        run_id=run_id,
        run_type=DagRunType.MANUAL,
        state=DagRunState.QUEUED,
        conf=conf,
        triggered_by=DagRunTriggeredByType.TEST,
    )
    session.add(run)
    session.flush()
    return run


@pytest.mark.parametrize(("msg", "state"), [(MARKED, "failed"), ("task_failure", "queued")])
def test_a_sweeps_run_that_a_person_marks_failed_stops_its_points(
    msg: str, state: str, session: Session
) -> None:
    sweep = run_of(session, "chain", "manual__1")
    own = run_of(session, "chain.point", "a", run="manual__1", point="a")
    others = [
        run_of(session, "chain.point", "b", run="manual__2", point="b"),
        run_of(session, "chain.point", "alone", point="c"),
    ]
    on_dag_run_failed(dag_run=sweep, msg=msg)
    assert own.state == state
    assert [run.state for run in others] == ["queued", "queued"]


@pytest.mark.parametrize(
    ("wait", "report", "state"),
    [
        ("failed", "skipped", "failed"),  # as Airflow's "Mark failed" leaves them
        ("failed", "success", "success"),
        ("success", "success", "success"),
        (None, None, "success"),
    ],
)
def test_a_concurrent_scheduler_does_not_undo_the_mark(
    wait: str | None, report: str | None, state: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {"wait": wait, "report": report}
    monkeypatch.setattr(
        DagRun,
        "get_task_instance",
        lambda self, task_id, session: SimpleNamespace(state=tasks[task_id]) if tasks[task_id] else None,
    )
    sweep = run_of(session, "chain", "manual__1")
    sweep.set_state(DagRunState.SUCCESS)
    on_dag_run_success(dag_run=sweep, msg="success")
    assert sweep.state == state


def test_runs_of_other_dags_are_left_alone(session: Session) -> None:
    other = run_of(session, "other", "manual__1")
    point = run_of(session, "chain.point", "a", run="manual__1")
    on_dag_run_failed(dag_run=other, msg=MARKED)
    assert point.state == "queued"
    assert stop_points_of(other, session) == []


def test_the_note_names_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    file, store = tmp_path / "chain.yaml", PinStore()
    file.write_text(CHAIN)
    sweep, around = load_sweep(file), PlanEnvironment.now("local")
    plan = PinnedSweep.stored(sweep, CHAIN, plan_sweep(sweep, around.cluster), around, store)
    store.set_newest("chain", "manual__1", plan.pin)
    launched = {"run": "manual__1", "point": "lr0.001"}
    assert changes_note("chain", "manual__1", {}) == ""
    assert changes_note("chain.point", "lr0.001", launched) == ""
    file.write_text(CHAIN + "# corrected\n")
    of_sweep = changes_note("chain", "manual__1", {})
    assert of_sweep.startswith(f"{CHANGED}: {file}.")
    assert "clear `plan` of this run" in of_sweep
    assert "clear `plan` of run manual__1 of chain" in changes_note("chain.point", "lr0.001", launched)
    assert changes_note("chain.point", "never planned", {}) == ""


@pytest.mark.parametrize("old", ["", "mine", "m" * 1000, "mine\n\n" + "m" * 990])
@pytest.mark.parametrize(
    "changed",
    [
        ", ".join(f"/specs/{'x' * 200}{number}.yaml" for number in range(64)),
        "x" * 1001,
        "é" * 5000,
        "/specs/![](/auth/logout).yaml",
        "/specs/\x1b[2J\x00.yaml",
        "/specs/\ud800.yaml",
    ],
    ids=["many files", "a long name", "letters", "an image", "escapes", "half a letter"],
)
def test_notes_fit_into_the_database(
    changed: str, old: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler writes it: PostgreSQL's error would end the scheduler, and each that is started after it."""
    run = run_of(session, "chain", f"manual__{len(old)}")
    run.clear_number = 1
    run.note = old
    monkeypatch.setattr(run_listener, "changes_note", lambda *_: f"{CHANGED}: {changed}")
    monkeypatch.setattr(
        DagRun, "get_task_instance", lambda self, task_id, session: SimpleNamespace(state="success")
    )
    on_dag_run_running(dag_run=run, msg="")
    assert run.note is not None
    assert len(run.note) <= 1000
    assert run.note[:999] == f"{old}\n\n{CHANGED}"[:999] if len(old) > 980 else run.note.startswith(old)
    assert "![" not in run.note
    assert run.note.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("before", "changed", "planned", "after"),
    [
        ("", f"{CHANGED}: a.yaml.", "success", f"{CHANGED}: a.yaml."),
        ("mine", f"{CHANGED}: a.yaml.", "success", f"mine\n\n{CHANGED}: a.yaml."),
        (f"mine\n\n{CHANGED}: a.yaml.", f"{CHANGED}: b.yaml.", "success", f"mine\n\n{CHANGED}: b.yaml."),
        (f"{CHANGED}: a.yaml.", "", "success", ""),
        (f"mine\n\n{CHANGED}: a.yaml.", f"{CHANGED}: a.yaml.", None, "mine"),
        ("mine", "", "success", "mine"),
    ],
)
def test_the_note_of_a_cleared_run(
    before: str,
    changed: str,
    planned: str | None,
    after: str,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If `plan` was cleared, too, it has no state yet and will read the change, so there is no note."""
    monkeypatch.setattr(run_listener, "changes_note", lambda *_: changed)
    monkeypatch.setattr(DagRun, "get_task_instance", lambda *_, **__: SimpleNamespace(state=planned))
    run = run_of(session, "chain", "manual__3")
    if before:
        run.note = before
    session.flush()
    run_listener.on_dag_run_running(dag_run=run, msg="started")
    assert (run.note or "") == before  # not cleared yet
    run.clear_number = 1
    run_listener.on_dag_run_running(dag_run=run, msg="started")
    session.flush()
    session.expire(run)
    assert (run.note or "") == after


def test_dags_follow_the_spec_again_when_all_points_have_ended(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    store = PinStore()

    def under_way(dag_id: str) -> list[str]:
        return [run.run_id for run in store.noted_runs(dag_id) if not run.ended]

    sweep = run_of(session, "chain", "manual__1")
    point = run_of(session, "chain.point", "a", run="manual__1", point="a")
    alone = run_of(session, "chain.point", "alone", point="b")
    store.set_newest("chain", "manual__1", "0" * 64)
    store.set_newest("chain", "deleted", "1" * 64)
    store.set_newest("chain.point", "alone", "2" * 64)
    on_dag_run_success(dag_run=run_of(session, "other", "manual__9"), msg="")
    assert len(under_way("chain")) == 2  # a run of another DAG gets no note
    sweep.state = DagRunState.FAILED  # failed by itself: its points continue
    on_dag_run_failed(dag_run=sweep, msg="task_failure")
    assert set(under_way("chain")) == {"manual__1", "deleted"}
    point.state = alone.state = DagRunState.SUCCESS
    on_dag_run_success(dag_run=point, msg="")
    assert (under_way("chain"), under_way("chain.point")) == ([], [])
    # a user clears a task of the point
    point.state, point.clear_number = DagRunState.RUNNING, 1
    on_dag_run_running(dag_run=point, msg="")
    assert under_way("chain") == ["manual__1"]
    on_starting(SimpleNamespace(job_type="TriggererJob"))
    assert under_way("chain") == ["manual__1"]


def test_the_end_of_a_run_reads_only_runs_in_progress(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    store, read = PinStore(), list[str]()
    for number in range(40):
        store.set_newest("chain", f"old{number}", "0" * 64)
        store.set_ended("chain", f"old{number}")
    for number in range(3):
        run_of(session, "chain", f"manual__{number}")
        store.set_newest("chain", f"manual__{number}", "0" * 64)
    store.set_newest("another", "of another sweep", "0" * 64)
    sweep = run_of(session, "chain", "manual__9")
    sweep.state = DagRunState.SUCCESS
    store.set_newest("chain", "manual__9", "0" * 64)
    noted = PinStore._noted

    def counting(path: Path) -> Any:
        read.append(path.name)
        return noted(path)

    monkeypatch.setattr(PinStore, "_noted", staticmethod(counting))
    on_dag_run_success(dag_run=sweep, msg="")
    assert set(read) == {"_manual__0", "_manual__1", "_manual__2", "_manual__9"}
    assert {run.run_id for run in store.under_way("chain")} == {"manual__0", "manual__1", "manual__2"}
    assert [run.run_id for run in store.under_way("another")] == ["of another sweep"]


def test_runs_that_an_older_version_has_noted_are_found(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    store = PinStore()
    for number in range(3):
        store.set_newest("chain", f"manual__{number}", "0" * 64)
    store.set_ended("chain", "manual__0")
    shutil.rmtree(store.root / "under_way")
    assert {run.run_id for run in store.under_way("chain")} == {"manual__1", "manual__2"}
    store.set_newest("chain", "manual__3", "0" * 64)
    assert {run.run_id for run in store.under_way("chain")} == {"manual__1", "manual__2", "manual__3"}
    store.forget("chain", "manual__3")
    assert {run.run_id for run in store.under_way("chain")} == {"manual__1", "manual__2"}


def test_a_starting_scheduler_finds_deleted_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    PinStore().set_newest("chain", "deleted with its DAG", "0" * 64)
    on_starting(SimpleNamespace(job_type="SchedulerJob"))
    assert [run.ended for run in PinStore().noted_runs("chain")] == [True]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("key", ["limit", "unknown"])
@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        *(
            (10**30, False),
            (-(2**63) - 1, False),
            (2**64, False),
            (10**4000, False),
            ([{"a": 10**30}], False),
        ),
        *((nested(240), False), (nested(900), False), ([{"\ud800": "\udc00"}], False)),
        *((2**64 - 1, True), (-(2**63), True), (1.5, True), (True, True), ({"work": [1, "x", None]}, True)),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_configuration_can_be_sent_between_airflows_processes(
    key: str, value: Any, allowed: bool, session: Session
) -> None:
    """Otherwise the callback of its task, which the scheduler sends to the DAG processor, ends that process."""
    run = run_of(session, "chain", "manual__1", **{key: value})
    on_dag_run_running(dag_run=run, msg="started")
    session.flush()
    session.expire(run)
    assert (run.conf == {key: value}) is allowed
    _ResponseFrame(id=0, body={"context": {"dag_run": {"conf": run.conf}}}).as_bytes()
    TypeAdapter(dict[str, Any]).dump_json({"context": {"dag_run": {"conf": run.conf}}})
    if not allowed:
        with pytest.raises(AirflowFailException, match=f"{key!r}"):
            refuse_unknown_keys(run.conf, SWEEP_KEYS)


def test_the_first_run_of_a_new_airflow_takes_no_job_from_an_xcom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could mark `resolve` successful and write the XCom before anything was planned."""
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    forged = {"name": "chain.a.pretrain", "stage": "pretrain", "script": "#!/bin/bash\nid\n", "pin": ""}
    on_starting(SimpleNamespace(job_type="SchedulerJob"))
    began = PinStore().began()
    assert began is not None
    run = SimpleNamespace(conf={"point": "a"}, run_type="manual", start_date=datetime.now(UTC))
    instance = SimpleNamespace(dag_id="chain.point", run_id="a", xcom_pull=lambda task_ids, key: forged)
    context: Any = {"ti": instance, "dag_run": run, "params": {}}
    with pytest.raises(AirflowFailException, match="has no plan"):
        own_job(context, "resolve", "pretrain")
    with pytest.raises(AirflowFailException, match="not a plan of this run"):
        stored_plan({"text": CHAIN, "file": "x.yaml", "cluster": "local", "points": []}, context)
    on_starting(SimpleNamespace(job_type="SchedulerJob"))
    assert PinStore().began() == began


def test_a_scheduler_starts_without_a_writable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "file" / "pins"))
    on_starting(SimpleNamespace(job_type="SchedulerJob"))
