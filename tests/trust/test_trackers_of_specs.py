"""``trackers:`` of a spec can only name connections that the operator permits, not addresses."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Connection

from airflow_megatron.checks.sweeps.trackers import tracker_problems
from airflow_megatron.hooks.tracker_access import tracker_access
from airflow_megatron.results.trackers import json_api
from airflow_megatron.results.trackers.json_api import JsonApi
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.trackers.tracker import TrackerError

if TYPE_CHECKING:
    from airflow_megatron.spec.model.sweep import Sweep

SECRET = "never-in-a-message"


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that permits one of two connections."""
    monkeypatch.setenv("AIRFLOW_MEGATRON_TRACKER_CONNECTIONS", " our_mlflow ,")
    for name in ("OUR_MLFLOW", "SLURM_LOCAL"):
        text = json.dumps(
            {"conn_type": "http", "host": "h.example", "login": "me", "password": SECRET, "port": 5000}
        )
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", text)


def sweep(*trackers: dict[str, Any]) -> Sweep:
    text = f"name: s\npoint: p\ntrackers: {json.dumps(trackers)}\nstages: {{a: {{kind: command, command: [x]}}}}\n"
    return load_sweep_text(text, "s.yaml")


def test_a_permitted_connection_is_taken_and_pinned() -> None:
    loaded = sweep({"tracker": "mlflow", "connection": "our_mlflow", "project": "Scaling laws"})
    assert [*tracker_problems(loaded)] == []
    outline = SweepOutline.of(loaded)
    assert SweepOutline.from_json(json.loads(json.dumps(outline.to_json()))) == outline
    access = tracker_access("our_mlflow")
    assert (access.url, access.user, access.password) == ("https://h.example:5000", "me", SECRET)
    assert SECRET not in repr(access)


@pytest.mark.parametrize("connection", ["slurm_local", "our_mlflow2", "OUR_MLFLOW", "our_mlflow.x"])
def test_other_connections_are_refused_with_file_and_line_and_never_looked_up(connection: str) -> None:
    problems = [*tracker_problems(sweep({"tracker": "mlflow", "connection": connection}))]
    assert len(problems) == 1
    assert str(problems[0]).startswith("s.yaml:3:")
    assert "AIRFLOW_MEGATRON_TRACKER_CONNECTIONS" in problems[0].hint
    with pytest.raises(TrackerError, match="is not a connection that trackers"):
        tracker_access(connection)


@pytest.mark.parametrize(
    "section",
    [
        {"tracker": "mlflow", "connection": "https://evil.example/"},
        {"tracker": "mlflow", "connection": "{{ env.HOME }}"},
        {"tracker": "mlflow", "connection": "../our_mlflow"},
        {"tracker": "mlflow", "connection": "our_mlflow\n"},
        {"tracker": "mlflow", "connection": "our_mlflow", "url": "https://evil.example/"},
        {"tracker": "mlflow", "connection": "our_mlflow", "host": "evil.example"},
        {"tracker": "mlflow", "connection": "our_mlflow", "project": "../../x"},
        {"tracker": "mlflow", "connection": "our_mlflow", "project": "a' OR '1'='1"},
        {"tracker": "os:system", "connection": "our_mlflow"},
        {"tracker": "airflow_megatron.results.trackers.mlflow:Mlflow", "connection": "our_mlflow"},
        {"connection": "our_mlflow"},
        {"tracker": "mlflow"},
    ],
)
def test_addresses_classes_and_texts_for_other_parts_are_not_values(section: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"s\.yaml:3"):
        sweep(section)


def test_the_same_place_twice_would_receive_all_twice() -> None:
    twice = {"tracker": "mlflow", "connection": "our_mlflow"}
    assert "twice" in str(*tracker_problems(sweep(twice, {**twice, "project": "s"})))
    assert [*tracker_problems(sweep(twice, {**twice, "project": "other"}))] == []


def test_a_message_about_a_server_holds_no_credentials() -> None:
    with pytest.raises(TrackerError) as refused:
        JsonApi("mlflow", "http://127.0.0.1:1/", auth=("me", SECRET)).post("x", {})
    assert SECRET not in str(refused.value)
    for address in ("https://h\x00/", "https://[::1", "https://h:notaport/"):
        with pytest.raises(TrackerError):
            JsonApi("mlflow", address, auth=("me", SECRET)).post("x", {})


@pytest.mark.parametrize(
    ("parts", "length", "limit_s", "message"),
    [
        ([b" " * 1000] * 1000, 10**6, 60.0, "is larger than"),
        ([b" "] * 50, 1000, 0.3, "takes longer than"),
        ([b"[" * 10**5], 10**5, 60.0, "answers 200 to x"),
        ([b"{"], 1, 60.0, "answers 200 to x"),
    ],
    ids=["endless", "slow", "deep", "torn"],
)
def test_no_answer_holds_the_push(
    parts: list[bytes], length: int, limit_s: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_api, "LARGEST_ANSWER", 500_000)
    monkeypatch.setattr(json_api, "ANSWER_S", limit_s)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(answer_in_parts, server, parts, length)
        api = JsonApi("mlflow", f"http://127.0.0.1:{server.getsockname()[1]}/")
        with pytest.raises(TrackerError, match=message):
            api.post("x", {})
        api.close()


def answer_in_parts(server: socket.socket, parts: list[bytes], length: int) -> None:
    client, _ = server.accept()
    with client, suppress(OSError):
        request = b""
        # Closing a socket with unread data resets the connection, and the answer is lost.
        while not request.endswith(b"\r\n\r\n{}"):
            received = client.recv(1 << 16)
            assert received, "the client has closed the connection"
            request += received
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        for part in parts:
            client.sendall(part)
            if len(part) == 1:
                time.sleep(0.02)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "http://h:5000"}, "http://h:5000"),
        ({"host": "http://h", "port": 5000}, "http://h:5000"),
        ({"host": "h", "schema": "http"}, "http://h"),
        ({"host": "h"}, "https://h"),
        ({}, ""),
    ],
)
def test_the_address_is_the_connections(
    fields: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OUR_MLFLOW", Connection(conn_id="x", conn_type="http", **fields).as_json()
    )
    assert tracker_access("our_mlflow").url == url
