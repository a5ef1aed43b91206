"""Results of jobs and requests of browsers cannot break the pages of other sweeps."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from page_users import token
from processor_limits import processor_limit

from airflow_megatron.spec.trust.plain_text import shown
from airflow_megatron.ui.live.answers import json_answer
from airflow_megatron.ui.live.point_table import plain
from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastapi import FastAPI

pytestmark = pytest.mark.usefixtures("airflow_database")
GOOD = [{"point": "p", "branch": "b", "state": "finished", "validation_loss": 2.5}]


def add(root: Path, name: str, results: str | bytes = json.dumps(GOOD)) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("report")
    (folder / "results.json").write_bytes(results.encode() if isinstance(results, str) else results)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add(tmp_path / "results", "good")
    (tmp_path / "secret.json").write_text("secret")
    (tmp_path / "results" / "loose.json").write_text("secret")
    return tmp_path / "results"


@pytest.fixture
def client(root: Path, server: Callable[[Path], FastAPI]) -> TestClient:
    client = TestClient(server(root), raise_server_exceptions=False)
    client.headers["Authorization"] = f"Bearer {token('ADMIN')}"
    return client


NAMES = (
    '"\\ud800"',
    '"\\u0000"',
    '"<script>alert(1)</script>"',
    '"\\u202egnp.exe"',
    "\"' onclick=alert(1) x='\"",
    '"' + "x" * 100_000 + '"',
    "1e400",
)


@pytest.mark.parametrize("key", ["point", "branch", "state", "validation_loss"])
@pytest.mark.parametrize("value", NAMES, ids=lambda value: value[:24])
def test_a_damaged_sweep_does_not_hide_the_list(client: TestClient, root: Path, key: str, value: str) -> None:
    add(root, "evil", json.dumps([{**GOOD[0], key: "@"}]).replace('"@"', value))
    for path in ("/megatron/", "/megatron/api/sweeps"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "good" in answer.text
        assert "<script>alert" not in answer.text or path.startswith("/megatron/api")
        assert "' onclick" not in answer.text or path.startswith("/megatron/api")
        assert "\u202e" not in answer.text


FILES = (
    b"\xff\xfe.csv",
    b"a\nb.csv",
    b"\x1b[2J.csv",
    b"<img src=x onerror=alert(1)>.svg",
    b'"; filename=x.exe; ".csv',
    b"%2e%2e%2fsecret.json",
    "\u202egpj.csv".encode(),
    b"x" * 250 + b".csv",
)


@pytest.mark.parametrize("name", FILES, ids=repr)
def test_a_file_of_any_name_hides_no_other(client: TestClient, root: Path, name: bytes) -> None:
    (root / "good" / os.fsdecode(name)).write_text("x")
    page = client.get("/megatron/sweeps/good")
    assert page.status_code == 200
    assert "results.json" in page.text
    assert "<img src=x" not in page.text
    assert client.get("/megatron/sweeps/good/files/results.json").json() == GOOD
    answer = client.get(f"/megatron/sweeps/good/files/{quote(name)}")
    assert answer.status_code in (200, 404)
    if answer.status_code == 200:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "x.exe;" not in answer.headers["content-disposition"].replace(
            "%22%3B%20filename%3Dx.exe%3B", ""
        )


@pytest.mark.parametrize("name", [*FILES, b"<b>run</b>", b"..."], ids=repr)
def test_a_run_of_any_name_hides_no_other(client: TestClient, root: Path, name: bytes) -> None:
    for run in (name, b"run1"):
        place = root / "good" / "runs" / os.fsdecode(run)
        place.mkdir(parents=True)
        (place / "report.html").write_text("of a run")
    page = client.get("/megatron/sweeps/good", params={"view": "report"})
    assert page.status_code == 200
    assert ">run1<" in page.text
    assert "<img src=x" not in page.text
    assert "<b>run" not in page.text


PARTS = (
    "..%2fsecret.json",
    "..%5csecret.json",
    "%252e%252e%252fsecret.json",
    "results.json%00.csv",
    "results.json/..%2f..%2floose.json",
    "%c0%ae%c0%ae%2fsecret.json",
    "/etc/passwd",
    "%ff",
    "x" * 5000,
)
PLACES = (
    "/megatron/sweeps/good/files/@",
    "/megatron/sweeps/good/runs/@/report",
    "/megatron/sweeps/@",
    "/megatron/static/x/@",
    "/megatron/api/sweeps/@",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part[:30])
def test_no_address_leads_out_of_the_folders(client: TestClient, place: str, part: str) -> None:
    answer = client.get(place.replace("@", part))
    assert answer.status_code < 500
    assert "secret" not in answer.text.replace("secret.json", "")
    assert "root:" not in answer.text


QUERIES = (
    *({"run": run} for run in ("\0", "' OR 1=1 --", "x" * 5000, "\u202e", "../x")),
    *({"metric": metric} for metric in ("__class__", "loss'", "LOSS", "x" * 41, "")),
    *(
        {"points": ["p"] * 1000},
        {"points": ["'; DROP TABLE x"]},
        {"most": 10**30},
        {"most": -1},
        {"most": "nan"},
    ),
    *(
        {"name": "x" * 501},
        {"name": "x" * 1001},
        {"name": "<b>"},
        {"name": "\0"},
        {"rate": "maybe"},
        {"view": "<script>"},
    ),
    *({"point": "\0", "run": "r"}, {"point": "p" * 5000, "run": "r" * 5000}),
)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query)[:40])
@pytest.mark.parametrize("page", ["/curves", "/point"])
def test_no_parameter_breaks_an_answer(client: TestClient, page: str, query: dict[str, object]) -> None:
    with processor_limit(2):
        answer = client.get(f"/megatron/api/sweeps/good{page}", params=query)  # type: ignore[arg-type]
        assert answer.status_code < 500
        assert answer.headers["content-type"] == "application/json"


class TestSizes:
    def test_a_table_of_any_size_is_not_read(self, root: Path) -> None:
        with (add(root, "evil") / "results.json").open("wb") as file:
            file.truncate(8 << 30)
        with processor_limit(0.2):
            found = {sweep.name: sweep.branches for sweep in ResultFolders(root).sweeps()}
        assert found == {"good": 1, "evil": 0}

    @pytest.mark.parametrize("shape", ["pipe", "folder", "link"])
    def test_no_table(self, root: Path, shape: str) -> None:
        path = add(root, "evil") / "results.json"
        path.unlink()
        if shape == "pipe":
            os.mkfifo(path)
        elif shape == "folder":
            path.mkdir()
        else:
            path.symlink_to("../good/results.json")
        found = {sweep.name: sweep.branches for sweep in ResultFolders(root).sweeps()}
        assert found == {"good": 1, "evil": 0}


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), "x", "\ud800", "\0", 10**400, [1, {"a": "\udfff"}], b"\xff"],
)
def test_any_value_of_a_sweep_can_be_sent(value: object) -> None:
    answer = json_answer(Request({"type": "http", "headers": []}), {"lr": plain(value)})
    sent = json.loads(bytes(answer.body))["lr"]
    assert sent == (value if isinstance(value, int) else shown(str(value)))


@pytest.mark.parametrize("value", ["a\u202ecod.exe", ["\u2066x"], "\x1b[2J", "\ud800"])
def test_a_value_of_a_sweep_does_not_reorder_the_page(value: object) -> None:
    assert str(plain(value)).isprintable()
