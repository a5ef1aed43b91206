"""The pages behind Airflow's own authentication, with a real auth manager, tokens and database."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from page_users import deny, token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastapi import FastAPI

RUN = "manual__2026-11-22T08:20:13.939576+00:00"
pytestmark = pytest.mark.usefixtures("airflow_database")

PATHS = [
    "/megatron/",
    "/megatron/sweeps/demo",
    "/megatron/sweeps/demo/report",
    "/megatron/sweeps/demo/files/results.json",
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "demo"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>the report</h1>")
    rows = [{"point": "<b>S</b>", "branch": "pretrain", "state": "finished", "validation_loss": 2.5}]
    (folder / "results.json").write_text(json.dumps(rows))
    run = folder / "runs" / RUN
    run.mkdir(parents=True)
    (run / "report.html").write_text("<h1>of one run</h1>")
    (tmp_path / "secret.json").write_text("secret")
    return folder.parent


@pytest.fixture
def client(results: Path, server: Callable[[Path], FastAPI]) -> TestClient:
    return TestClient(server(results))


@pytest.fixture
def reader(client: TestClient) -> TestClient:
    client.headers["Authorization"] = f"Bearer {token('VIEWER')}"
    return client


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_a_token_is_refused(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401


@pytest.mark.parametrize("path", PATHS)
def test_a_forged_token_is_refused(client: TestClient, path: str) -> None:
    header, payload, _ = token("ADMIN").split(".")
    forged = f"{header}.{payload}.{'A' * 86}"
    assert client.get(path, headers={"Authorization": f"Bearer {forged}"}).status_code == 403


@pytest.mark.parametrize("path", PATHS[1:])
def test_a_user_without_rights_is_refused(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Authorization": f"Bearer {token(None)}"}).status_code == 403


@pytest.mark.parametrize(
    ("dag_id", "entity"),
    [("demo", None), ("demo", DagAccessEntity.RUN), ("demo.point", DagAccessEntity.TASK_INSTANCE)],
)
def test_reports_need_the_permissions_of_the_live_page(
    reader: TestClient, dag_id: str, entity: DagAccessEntity | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, dag_id, entity)
    for path in (*PATHS[1:], f"/megatron/sweeps/demo/runs/{RUN}/report"):
        assert reader.get(path).status_code == 403, path
    assert "demo" not in reader.get("/megatron/").text


def test_reports_contain_lines_of_logs(reader: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, "demo.point", DagAccessEntity.TASK_LOGS)
    for path in (*PATHS[2:], f"/megatron/sweeps/demo/runs/{RUN}/report"):
        assert reader.get(path).status_code == 403, path
    assert reader.get("/megatron/sweeps/demo").status_code == 404  # Airflow does not have it: only a report
    assert "demo" in reader.get("/megatron/").text


def test_a_user_without_rights_sees_no_sweep(client: TestClient) -> None:
    page = client.get("/megatron/", headers={"Authorization": f"Bearer {token(None)}"})
    assert "demo" not in page.text


@pytest.mark.parametrize("path", PATHS)
def test_the_browsers_cookie_logs_in(client: TestClient, path: str) -> None:
    client.cookies.set(COOKIE_NAME_JWT_TOKEN, token("VIEWER"))
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/megatron/docs", "/megatron/redoc", "/megatron/openapi.json"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_list_shows_sweeps_and_escapes_what_jobs_wrote(reader: TestClient) -> None:
    page = reader.get("/megatron/").text
    assert 'href="sweeps/demo"' in page
    assert 'href="../dags/demo.point"' in page
    assert "&lt;b&gt;S&lt;/b&gt; pretrain" in page
    assert "2.5000" in page


def test_an_empty_list_shows_what_to_do(reader: TestClient, results: Path) -> None:
    (results / "demo" / "report.html").unlink()
    assert "No sweep has a report yet" in reader.get("/megatron/").text


@pytest.mark.parametrize(("role", "shown"), [(None, False), ("VIEWER", True), ("ADMIN", True)])
def test_the_folder_is_shown_to_whoever_may_read_the_configuration(
    client: TestClient, results: Path, role: str | None, shown: bool
) -> None:
    (results / "demo" / "report.html").unlink()
    page = client.get("/megatron/", headers={"Authorization": f"Bearer {token(role)}"}).text
    assert (str(results) in page) == shown


def test_a_sweep_shows_its_report_without_giving_it_access_to_airflow(reader: TestClient) -> None:
    page = reader.get("/megatron/sweeps/demo")
    assert 'src="demo/report"' in page.text
    assert 'href="demo/files/results.json"' in page.text
    report = reader.get("/megatron/sweeps/demo/report")
    assert report.text == "<h1>the report</h1>"
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")


def test_each_run_has_a_report_of_its_own(reader: TestClient) -> None:
    (address,) = re.findall(r'href="(demo/runs/[^"]*)"', reader.get("/megatron/sweeps/demo").text)
    report = reader.get(f"/megatron/sweeps/{address}")
    assert report.text == "<h1>of one run</h1>"
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")


@pytest.mark.parametrize("name", ["nonexistent", "laterr", "LATER", "a.b", "%00", "é", "x" * 300])
@pytest.mark.parametrize("page", ["", "/report", "/files/results.json"])
def test_sweeps_that_do_not_exist(name: str, page: str, reader: TestClient) -> None:
    assert reader.get(f"/megatron/sweeps/{name}{page}").status_code == 404


def test_a_sweep_without_a_report_shows_a_message(reader: TestClient) -> None:
    with create_session() as session:
        session.add(DagBundleModel(name="dags"))
        session.flush()
        tags = [DagTag(name=name, dag_id="later") for name in ("megatron", "sweep")]
        session.add(DagModel(dag_id="later", bundle_name="dags", is_paused=False, tags=tags))
    page = reader.get("/megatron/sweeps/later")
    assert page.status_code == 200
    assert "no report yet" in page.text
    assert reader.get("/megatron/sweeps/later/report").status_code == 404


def test_files_are_sent_as_downloads(reader: TestClient) -> None:
    answer = reader.get("/megatron/sweeps/demo/files/results.json")
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (
        answer.headers["cache-control"] == "no-store"
    )  # a proxy, or the browser after a logout, keeps no copy
    assert answer.json()[0]["branch"] == "pretrain"


@pytest.mark.parametrize(
    "path",
    [
        "sweeps/demo/files/..%2f..%2fsecret.json",
        "sweeps/demo/files/%2e%2e%2f%2e%2e%2fsecret.json",
        "sweeps/demo/files/....//secret.json",
        "sweeps/..%2f/files/secret.json",
        "sweeps/%2e%2e/files/secret.json",
        "sweeps/demo/files/%00",
        "sweeps/demo/files/report.html",
        "sweeps/demo/runs/%2e%2e/report",
        "sweeps/demo/runs/..%2f..%2fdemo/report",
    ],
)
def test_no_path_leaves_the_result_folders(reader: TestClient, path: str) -> None:
    answer = reader.get(f"/megatron/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text
