"""Requests to the local Airflow on a busy machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from airflow_megatron.cli.local.local_airflow import LocalAirflow, LocalAirflowError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAirflow, "credentials", lambda self: ("admin", "password"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_a_login_that_takes_too_long_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logins: list[str] = []

    def log_in(url: str, **options: Any) -> httpx.Response:
        logins.append(url)
        if len(logins) == 1:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(201, json={"access_token": "t"}, request=httpx.Request("POST", url))

    monkeypatch.setattr(httpx, "post", log_in)
    monkeypatch.setattr(
        httpx, "request", lambda *words, **options: httpx.Response(200, json={"state": "success"})
    )
    assert LocalAirflow(tmp_path).run_state("dag", "run") == "success"
    assert len(logins) == 2


def test_a_request_is_repeated_while_the_database_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Airflow 3.3 answers when SQLite has waited for another process for too long."""
    locked = httpx.Response(500, json={"detail": {"reason": "Database error", "statement": "hidden"}})
    answers = [locked, locked, httpx.Response(200, json={"dag_run_id": "r"})]
    login = httpx.Response(201, json={"access_token": "t"}, request=httpx.Request("POST", "http://a"))
    monkeypatch.setattr(httpx, "post", lambda *words, **options: login)
    monkeypatch.setattr(httpx, "request", lambda *words, **options: answers.pop(0))
    assert LocalAirflow(tmp_path).trigger("dag") == "r"
    answers += [locked] * 5
    with pytest.raises(LocalAirflowError, match="Database error"):
        LocalAirflow(tmp_path).trigger("dag")
    answers.append(httpx.Response(500, text="Internal Server Error"))
    with pytest.raises(LocalAirflowError, match="Internal Server Error"):
        LocalAirflow(tmp_path).trigger("dag")
    assert not answers


@pytest.mark.parametrize("fails", [False, True])
def test_the_routes_of_tasks_are_asked_for(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(url: str, **options: Any) -> httpx.Response:
        asked.append(url)
        if fails:
            raise httpx.ReadTimeout("timed out")
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "get", answer)
    airflow = LocalAirflow(tmp_path)
    airflow.port = 8080
    airflow.build_task_routes()
    assert asked == ["http://localhost:8080/execution/health"]
