"""Requests to the local Airflow on a busy machine."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest

from airflow_megatron.cli.local.local_airflow import LocalAirflow, LocalAirflowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAirflow, "credentials", lambda self: ("admin", "password"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def answered_by(airflow: LocalAirflow, answer: Callable[[httpx.Request], httpx.Response]) -> LocalAirflow:
    """Let a function answer the requests to Airflow."""
    vars(airflow)["_client"] = httpx.Client(transport=httpx.MockTransport(answer))
    airflow.port = 8080
    return airflow


def test_a_login_that_takes_too_long_is_tried_again(tmp_path: Path) -> None:
    logins: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"state": "success"})
        logins.append(request.url)
        if len(logins) == 1:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(201, json={"access_token": "t"})

    airflow = answered_by(LocalAirflow(tmp_path), answer)
    assert airflow.run_state("dag", "run") == "success"
    assert logins == ["http://localhost:8080/auth/token"] * 2


def test_a_request_is_repeated_while_the_database_is_locked(tmp_path: Path) -> None:
    """As Airflow 3.3 answers when SQLite has waited for another process for too long."""
    locked = {"detail": {"reason": "Database error", "statement": "hidden"}}
    answers = [(500, locked), (500, locked), (200, {"dag_run_id": "r"})]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": "t"})
        status, body = answers.pop(0)
        return httpx.Response(status, json=body)

    airflow = answered_by(LocalAirflow(tmp_path), answer)
    assert airflow.trigger("dag") == "r"
    answers += [(500, locked)] * 5
    with pytest.raises(LocalAirflowError, match="Database error"):
        airflow.trigger("dag")
    answers.append((500, {"detail": "Internal Server Error"}))
    with pytest.raises(LocalAirflowError, match="Internal Server Error"):
        airflow.trigger("dag")
    assert not answers


@pytest.mark.parametrize("fails", [False, True])
def test_the_routes_of_tasks_are_asked_for(fails: bool, tmp_path: Path) -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        if fails:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(200)

    answered_by(LocalAirflow(tmp_path), answer).build_task_routes()
    assert asked == ["http://localhost:8080/execution/health"]


@pytest.mark.parametrize(
    ("variables", "exceptions"),
    [
        ({}, "localhost,127.0.0.1"),
        ({"NO_PROXY": "site.org"}, "site.org,localhost,127.0.0.1"),
        ({"NO_PROXY": "site.org", "no_proxy": "lab.org"}, "lab.org,localhost,127.0.0.1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
@pytest.mark.slow
def test_requests_within_the_machine_use_no_proxy(
    variables: dict[str, str], exceptions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"http_proxy": "http://127.0.0.1:9", **variables}.items():
        monkeypatch.setenv(name, value)
    airflow = LocalAirflow(tmp_path)
    environment = airflow.environment()
    assert environment["no_proxy"] == environment["NO_PROXY"] == exceptions

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"state": "success"}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.end_headers()
            self.wfile.write(b'{"access_token": "t"}')

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        airflow.port = server.server_port
        assert airflow.run_state("dag", "run") == "success"
        server.shutdown()
