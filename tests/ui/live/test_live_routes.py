"""The data of the live pages, from a real Airflow database and a stored plan."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from fastapi.testclient import TestClient
from live_sweep import RUN, add_run
from page_users import deny, token
from sqlalchemy import delete, select
from stored_training import put, source, train

from airflow_megatron.results.readings.evaluations import measurements
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.tables import ATTEMPTS, EVALUATIONS
from airflow_megatron.ui.live import routes, stored
from airflow_megatron.ui.live.answers import STATIC, StaticFolder
from airflow_megatron.ui.live.sweep_runs import stage_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastapi import FastAPI
    from sqlalchemy.orm import Session

pytestmark = pytest.mark.usefixtures("airflow_database")
API = "/megatron/api/sweeps"
PRIVATE = [API + "/chain", f"{API}/chain/curves", f"{API}/chain/failures", f"{API}/chain/evaluations"]


@pytest.fixture
def client(tmp_path: Path, server: Callable[[Path], FastAPI]) -> TestClient:
    client = TestClient(server(tmp_path / "results"))
    client.headers["Authorization"] = f"Bearer {token('VIEWER')}"
    return client


@pytest.mark.parametrize("path", [API, *PRIVATE, f"/megatron/static/{StaticFolder().version}/page.css"])
def test_data_and_scripts_need_a_login(client: TestClient, path: str) -> None:
    del client.headers["Authorization"]
    assert client.get(path).status_code == 401


@pytest.mark.parametrize("path", PRIVATE)
def test_a_sweep_is_not_shown_to_a_user_without_rights(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Authorization": f"Bearer {token(None)}"}).status_code == 403


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("part", ["", "/curves", "/failures", "/evaluations", "/point?run=a&point=b"])
@pytest.mark.parametrize("sweep", ["unknown", "%2e%2e", "chain.point"])
def test_an_unknown_sweep_has_no_data(client: TestClient, sweep: str, part: str) -> None:
    kept = list(stored.StoredSweep._known)
    assert client.get(f"{API}/{sweep}{part}").status_code == 404
    assert list(stored.StoredSweep._known) == kept


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "path",
    [
        "api/sweeps/%00",
        "api/sweeps/chain?run=%00",
        "api/sweeps/chain/curves?points=%00&points=a",
        "sweeps/%00",
    ],
)
def test_a_name_with_nul_is_refused_before_the_database_is_asked(client: TestClient, path: str) -> None:
    """PostgreSQL's driver raises ValueError for it."""
    answer = client.get(f"/megatron/{path}")
    assert (answer.status_code, answer.json()) == (404, {"detail": "no name contains a NUL character"})


@pytest.mark.parametrize(
    ("dag_id", "entity"),
    [
        ("chain", None),
        ("chain", DagAccessEntity.RUN),
        ("chain.point", DagAccessEntity.TASK_INSTANCE),
    ],
)
@pytest.mark.parametrize("path", PRIVATE)
def test_each_required_permission_is_checked(
    client: TestClient,
    path: str,
    dag_id: str,
    entity: DagAccessEntity | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_auth_manager()

    deny(monkeypatch, dag_id, entity)
    assert client.get(path).status_code == 403


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(("role", "may"), [("VIEWER", False), ("USER", True), ("ADMIN", True)])
def test_actions_are_shown_to_permitted_users(client: TestClient, role: str, may: bool) -> None:
    answer = client.get(f"{API}/chain", headers={"Authorization": f"Bearer {token(role)}"})
    assert answer.json()["may"] == {"cancel_sweep": may, "change_points": may}


@pytest.mark.usefixtures("planned")
def test_the_table_has_a_row_for_each_point(client: TestClient) -> None:
    table = client.get(f"{API}/chain").json()
    assert (table["run"], table["state"], table["cluster"]) == (RUN, "running", "local")
    first, second = table["rows"]
    assert (first["point"], first["run"], first["state"]) == ("lr0.001", "lr0.001", "running")
    assert dict(zip(table["stages"], first["stages"], strict=True)) == {
        name: {"pretrain": "r"}.get(name, "w") for name in table["stages"]
    }
    assert (first["params"], second["params"]) == ({"lr": 1e-3}, {"lr": 4e-3})
    assert (first["training"], first["total"], second["state"]) == ("pretrain", 300, "none")
    assert "run" not in second


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_a_large_table_freezes_the_server_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MANY_ROWS", 1)
    routes.freeze_server.cache_clear()
    before = gc.get_freeze_count()
    client.get(f"{API}/chain")
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    client.get(f"{API}/chain")
    assert frozen > before
    assert gc.get_freeze_count() < frozen + len(kept)


@pytest.mark.usefixtures("planned")
def test_a_point_shows_its_jobs(client: TestClient) -> None:
    point = client.get(f"{API}/chain/point", params={"run": RUN, "point": "lr0.001"}).json()
    assert [job["stage"] for job in point["jobs"]][:2] == ["pretrain", "cooldown_300k"]
    assert point["jobs"][0]["run_dir"].endswith("/chain/lr0.001")
    for wrong in ({"run": RUN, "point": "no"}, {"run": "no", "point": "lr0.001"}):
        assert client.get(f"{API}/chain/point", params=wrong).status_code == 404


@pytest.mark.usefixtures("planned")
def test_unchanged_data_are_not_sent_again(client: TestClient, session: Session) -> None:
    before = client.get(f"{API}/chain")
    again = client.get(f"{API}/chain", headers={"If-None-Match": before.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    add_run(session, "chain.point", "lr0.004", "failed", {}, run=RUN, point="lr0.004")
    after = client.get(f"{API}/chain", headers={"If-None-Match": before.headers["etag"]})
    assert [row["state"] for row in after.json()["rows"]] == ["running", "failed"]


@pytest.mark.parametrize(("dag_id", "state"), [("chain", "running"), ("chain.point", "success")])
def test_a_paused_dag_is_named_while_a_run_goes_on(
    dag_id: str, state: str, client: TestClient, session: Session
) -> None:
    add_run(session, "chain", RUN, state, {"launch": "success"})
    add_run(session, "chain.point", "a", "running", {}, run=RUN, point="a")
    assert client.get(f"{API}/chain").json()["paused"] == []
    dag = session.get(DagModel, dag_id)
    dag.is_paused = True
    session.commit()
    try:
        assert client.get(f"{API}/chain").json()["paused"] == [dag_id]
        for run in session.scalars(select(DagRun)):
            run.state = "failed"
        session.commit()
        assert client.get(f"{API}/chain").json()["paused"] == []
    finally:
        dag.is_paused = False
        session.commit()


def test_the_report_is_not_offered_to_users_who_may_not_read_it(
    client: TestClient, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "results" / "chain" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<p>lines of logs")
    assert client.get(f"{API}/chain").json()["has_report"] is True
    deny(monkeypatch, "chain.point", DagAccessEntity.TASK_LOGS)
    assert client.get(f"{API}/chain").json()["has_report"] is False
    page = client.get("/megatron/sweeps/chain").text
    assert "the report is shown to users who may read the task logs of the points" in page
    assert "no report yet" not in page


def test_runs_are_distinguished(client: TestClient, session: Session) -> None:
    add_run(session, "chain", "old", "failed", {"launch": "success"})
    add_run(session, "chain", "new", "running", {})
    assert client.get(f"{API}/chain").json()["run"] == "new"
    assert client.get(f"{API}/chain?run=old").json()["state"] == "failed"
    assert client.get(f"{API}/chain?run=none").status_code == 404


@pytest.mark.usefixtures("planned")
def test_points_of_a_deleted_run_are_shown_until_they_end(client: TestClient, session: Session) -> None:
    session.execute(delete(DagRun).where(DagRun.dag_id == "chain"))
    session.commit()
    (listed,) = [row for row in client.get(API).json()["rows"] if row["sweep"] == "chain"]
    assert listed["state"] == "running"
    for query in ("", f"?run={RUN}"):
        table = client.get(f"{API}/chain{query}").json()
        assert (table["run"], table["state"]) == (RUN, "deleted")
        assert (table["rows"][0]["run"], table["rows"][0]["state"]) == ("lr0.001", "running")
    add_run(session, "chain", "new", "running", {})
    table = client.get(f"{API}/chain").json()
    assert [(run["run"], run["state"]) for run in table["runs"]] == [("new", "running"), (RUN, "deleted")]
    assert table["run"] == "new"
    session.scalars(select(DagRun).where(DagRun.dag_id == "chain.point")).one().state = "failed"
    session.commit()
    assert client.get(f"{API}/chain?run={RUN}").status_code == 404


@pytest.mark.parametrize("name", ["none", "chain.point"])
def test_sweeps_that_do_not_exist(client: TestClient, session: Session, name: str) -> None:
    add_run(session, "chain.point", "lr0.004", "running", {}, run=RUN, point="lr0.004")
    answer = client.get(f"{API}/{name}")
    assert (answer.status_code, answer.json()) == (404, {"detail": f"there is no sweep {name!r}"})
    assert client.get(f"/megatron/sweeps/{name}").status_code == 404


@pytest.mark.parametrize(
    ("run", "tasks", "points", "state"),
    [
        (None, {}, {}, "not started"),
        ("running", {}, {}, "running"),
        ("failed", {"plan": "failed", "launch": "upstream_failed"}, {}, "failed before launch"),
        ("failed", {"launch": "success"}, {"a": "failed"}, "failed"),
        ("failed", {"launch": "success"}, {"a": "running"}, "running"),
        ("success", {"launch": "success"}, {"a": "failed", "a~2": "success"}, "finished"),
        ("success", {"launch": "success"}, {"a": "success", "b": "failed"}, "failed"),
    ],
)
def test_the_list_shows_states_of_sweeps(
    run: str | None,
    tasks: dict[str, str],
    points: dict[str, str],
    state: str,
    client: TestClient,
    session: Session,
) -> None:
    if run:
        add_run(session, "chain", RUN, run, tasks)
    for name, of_point in points.items():
        add_run(session, "chain.point", name, of_point, {}, run=RUN, point=name[:1])
    rows = {row["sweep"]: row for row in client.get(API).json()["rows"]}
    assert rows["chain"]["state"] == state
    assert rows["other"]["state"] == "not started"


def test_the_list_counts_a_point_once_whoever_has_started_it(client: TestClient, session: Session) -> None:
    """Airflow makes an id of its own for a run that a user starts."""
    add_run(session, "chain", RUN, "success", {"launch": "success"})
    add_run(session, "chain.point", "a", "failed", {"resolve": "success"}, run=RUN, point="a")
    add_run(session, "chain.point", "manual__2", "success", {"resolve": "success"}, point="a")
    for number, conf in enumerate(({"point": "typo"}, {"point": "a", "clutser": "c"}, {"point": 3}, {}), 3):
        add_run(session, "chain.point", f"manual__{number}", "failed", {"resolve": "failed"}, **conf)
    (row,) = (row for row in client.get(API).json()["rows"] if row["sweep"] == "chain")
    assert (row["points"], row["state"]) == ({"success": 1}, "finished")


@pytest.mark.usefixtures("planned")
def test_the_list_shows_cost_and_time_left(
    client: TestClient, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    row = next(one for one in client.get(API).json()["rows"] if one["sweep"] == "chain")
    assert not {"gpu_hours", "eta_s"} & row.keys()
    store = SegmentStore(str(tmp_path))
    train(store, source("pretrain", point="lr0.001"), range(1, 101))
    put(store, ATTEMPTS, source("pretrain", point="lr0.001"), outcome="rolled over", gpu_hours=1.5)
    row = next(one for one in client.get(API).json()["rows"] if one["sweep"] == "chain")
    assert row["gpu_hours"] == 1.5
    # two cooldowns of 20 iterations; then the same and 300 iterations at the other point, as fast
    assert row["eta_s"] == (2 * 20 + 300 + 2 * 20) * 0.5


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("may_read", [True, False])
def test_lines_of_logs_need_the_right_to_read_logs(
    may_read: bool, client: TestClient, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    line = "RuntimeError: cannot read s3://bucket?sig=S3CRET"
    put(
        SegmentStore(str(tmp_path)),
        ATTEMPTS,
        source("pretrain", point="lr0.001"),
        outcome="failed",
        reason=f"the job ended as FAILED: a Python exception: {line}",
        line=line,
    )
    if not may_read:
        create_auth_manager()
        deny(monkeypatch, "chain.point", DagAccessEntity.TASK_LOGS)
    failures = client.get(f"{API}/chain/failures")
    point = client.get(f"{API}/chain/point", params={"run": RUN, "point": "lr0.001"})
    for answer in (failures, point):
        assert answer.status_code == 200
        assert ("S3CRET" in answer.text) is may_read
    row = failures.json()["rows"][0]
    assert (row["outcome"], "the task logs" in row["reason"]) == ("failed", not may_read)


@pytest.mark.usefixtures("planned")
def test_a_wrong_xcom_of_the_launch_does_not_hide_the_sweep(client: TestClient, session: Session) -> None:
    XComModel.set(
        key="return_value",
        value={"lr0.001": ["x"]},
        task_id="launch",
        dag_id="chain",
        run_id=RUN,
        session=session,
    )
    session.commit()
    assert client.get(f"{API}/chain").status_code == 200


@pytest.mark.parametrize("tag", ["sweep", "point"])
def test_a_spec_with_tags_of_the_project_is_one_sweep(tag: str, client: TestClient, session: Session) -> None:
    for dag_id in ("chain", "chain.point"):
        session.merge(DagTag(name=tag, dag_id=dag_id))
    session.commit()
    listed = [row["sweep"] for row in client.get(API).json()["rows"]]
    assert listed.count("chain") == 1
    assert "chain.point" not in listed


def test_evaluations_are_drawn_over_checkpoints(
    client: TestClient, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(session, "chain", RUN, "running", {})
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    assert client.get(f"{API}/chain/evaluations").json()["chart"] is None
    store = SegmentStore(str(tmp_path))
    for point in ("a", "b"):
        for iteration in (100, 200):
            place = source("pretrain", point=point)
            put(
                store,
                EVALUATIONS,
                place,
                iteration=iteration,
                task="arc",
                metric="acc",
                value=0.3,
                stderr=0.1,
                chance=0.25,
            )
            put(store, EVALUATIONS, place, iteration=iteration, task="wiki", metric="ppl", value=9.0)
    answer = client.get(f"{API}/chain/evaluations", params={"name": "arc/acc"}).json()
    assert (answer["names"], answer["name"]) == (["arc/acc", "wiki/ppl"], "arc/acc")
    first, second, chance = answer["chart"]["panels"][0]["series"]
    assert (first["name"], first["x"], first["y"], first["line"]) == (
        "a pretrain",
        [100, 200],
        [0.3, 0.3],
        True,
    )
    assert first["yRanges"] == [[0.2, 0.4], [0.2, 0.4]]
    assert first["colour"] != second["colour"]
    assert (chance["name"], chance["y"]) == ("chance", [0.25, 0.25])
    other = client.get(f"{API}/chain/evaluations", params={"name": "wiki/ppl"}).json()
    assert [one["name"] for one in other["chart"]["panels"][0]["series"]] == ["a pretrain", "b pretrain"]
    assert client.get(f"{API}/chain/evaluations", params={"name": "gone"}).json()["name"] == "arc/acc"


def test_a_metric_with_the_longest_name_can_be_chosen(
    client: TestClient, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    (found,) = measurements({"results": {"t" * 300: {f"{'m' * 300},{'f' * 300}": 0.5}}})
    put(
        SegmentStore(str(tmp_path)),
        EVALUATIONS,
        source("pretrain", point="a"),
        iteration=10,
        task=found.task,
        metric=found.metric,
        filter=found.filter,
        value=found.value,
    )
    name = client.get(f"{API}/chain/evaluations").json()["name"]
    assert client.get(f"{API}/chain/evaluations", params={"name": name}).json()["name"] == name


def test_the_list_contains_only_permitted_sweeps(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(session, "chain", "one", "running", {})
    add_run(session, "other", "one", "running", {})
    permitted = ("other", "other.point")
    monkeypatch.setattr(
        SimpleAuthManager, "is_authorized_dag", lambda self, *, details, **_: details.id in permitted
    )
    assert [row["sweep"] for row in client.get(API).json()["rows"]] == ["other"]


@pytest.mark.parametrize(
    ("steps", "letter"),
    [
        ({}, "w"),
        ({"submit": "", "watch": ""}, "w"),
        ({"await_checkpoint": "deferred", "submit": "", "watch": ""}, "w"),
        ({"await_checkpoint": "failed", "submit": "upstream_failed", "watch": "upstream_failed"}, "u"),
        ({"await_checkpoint": "failed", "submit": "", "watch": ""}, "u"),
        ({"await_log": "failed", "submit": "upstream_failed", "watch": "upstream_failed"}, "u"),
        ({"await_start": "failed", "submit": "upstream_failed", "watch": "upstream_failed"}, "x"),
        ({"await_checkpoint": "success", "submit": "success", "watch": "failed"}, "x"),
        ({"submit": "scheduled", "watch": ""}, "q"),
        ({"submit": "up_for_retry", "watch": ""}, "t"),
        ({"submit": "success", "watch": ""}, "r"),
        ({"submit": "success", "watch": "deferred"}, "r"),
        ({"submit": "success", "watch": "success"}, "f"),
        ({"submit": "success", "watch": "failed"}, "x"),
        ({"submit": "success", "watch": "skipped"}, "s"),
        ({"submit": "failed", "watch": "upstream_failed"}, "x"),
        ({"submit": "upstream_failed", "watch": "upstream_failed"}, "u"),
    ],
)
def test_the_state_of_a_stage(steps: dict[str, str], letter: str) -> None:
    assert stage_state(steps) == letter


def test_scripts_are_kept_by_browsers_and_nothing_else_is_sent(client: TestClient) -> None:
    version = StaticFolder().version
    for path in STATIC.glob("*.*"):
        answer = client.get(f"/megatron/static/{version}/{path.name}")
        assert answer.text == path.read_text()
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/megatron/static/old/page.css").headers["cache-control"] == "no-store"
    for name in ("../app.py", "..%2fapp.py", "no.js", "vendor/versions.json", ""):
        assert client.get(f"/megatron/static/{version}/{name}").status_code == 404


@pytest.mark.usefixtures("planned")
def test_pages_hold_no_script_of_their_own(client: TestClient) -> None:
    for path in ("/megatron/", "/megatron/sweeps/chain"):
        page = client.get(path)
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert "<style" not in page.text
        assert " style=" not in page.text


def test_a_run_older_than_those_in_the_list_is_shown(client: TestClient, session: Session) -> None:
    add_run(session, "chain", "manual__old", "success", {})
    for number in range(routes.RUNS_SHOWN):
        add_run(session, "chain", f"manual__new{number}", "success", {})
    newest = client.get(API + "/chain").json()
    assert "manual__old" not in {one["run"] for one in newest["runs"]}
    old = client.get(API + "/chain", params={"run": "manual__old"})
    assert (old.status_code, old.json()["run"], old.json()["runs"][-1]["run"]) == (
        200,
        "manual__old",
        "manual__old",
    )
    assert client.get(API + "/chain", params={"run": "manual__none"}).status_code == 404
