"""What a browser shows if it opens a page that the user may not see, or without a login."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from fastapi.testclient import TestClient
from page_users import token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastapi import FastAPI

pytestmark = pytest.mark.usefixtures("airflow_database")

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
WITHOUT_LOGIN = "You are not logged in, or your login has expired."


@pytest.fixture
def client(tmp_path: Path, server: Callable[[Path], FastAPI]) -> TestClient:
    client = TestClient(server(tmp_path / "results"))
    client.headers.update(BROWSER)
    return client


def links(page: str, address: str) -> dict[str, str]:
    """Return text → address of the links of a page."""
    found = re.findall(r'<a href="([^"]*)">([^<]*)</a>', page)
    return {text: urljoin(f"http://site{address}", unescape(target)) for target, text in found}


@pytest.mark.parametrize(
    "address", ["/megatron/", "/megatron/sweeps/demo?run=a%2Bb&view=report", "/megatron/sweeps/demo/report"]
)
def test_a_reader_whose_login_has_expired_is_led_to_the_login_and_back(
    client: TestClient, address: str
) -> None:
    answer = client.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert WITHOUT_LOGIN in answer.text
    login = urlsplit(links(answer.text, address)["Log in"])
    assert login.path == "/api/v2/auth/login"
    assert parse_qs(login.query) == {"next": [address]}
    assert not re.findall(r'(?:src|href)="[^"]*/static/', answer.text)  # they need a login


def test_the_login_leads_back_behind_a_proxy(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/team/airflow/")
    login = urlsplit(links(client.get("/megatron/").text, "/megatron/")["Log in"])
    assert parse_qs(login.query) == {"next": ["/team/airflow/megatron/"]}


def test_a_user_without_rights_gets_a_sentence(client: TestClient) -> None:
    answer = client.get("/megatron/sweeps/demo", headers={"Authorization": f"Bearer {token(None)}"})
    assert answer.status_code == 403
    assert "Your user may not see this" in answer.text
    assert links(answer.text, "/megatron/sweeps/demo")["All sweeps"] == "http://site/megatron/"
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_sweep_that_does_not_exist(client: TestClient) -> None:
    client.headers["Authorization"] = f"Bearer {token('VIEWER')}"
    answer = client.get("/megatron/sweeps/<b>x")
    assert answer.status_code == 404
    assert unescape(answer.text).count("There is no sweep '<b>x'.") == 1
    assert "<b>" not in answer.text
    assert "Log in" not in answer.text


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_scripts_get_json(client: TestClient, accept: str) -> None:
    answer = client.get("/megatron/api/sweeps", headers={"Accept": accept})
    assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
