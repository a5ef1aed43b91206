"""Records pushed to a real trackio server."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import typer
from example_specs import CHAIN
from peer_servers import BEGAN, JOBS, SWEEP, StoredSweep, loss, peer_python, served

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.cli.runs.results_commands import push
from airflow_megatron.megatron.logs.iteration_lines import IterationRecord
from airflow_megatron.operators import push_records
from airflow_megatron.operators.push_records import PushRecordsOperator
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches
from airflow_megatron.results.trackers.pushing import Pushed, push_sweep
from airflow_megatron.results.trackers.trackio import Trackio
from airflow_megatron.spec.documents.project import PINS_VARIABLE
from airflow_megatron.spec.model.schema import TrackerSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.trackers.tracker import (
    TrackedRecord,
    TrackedTraining,
    TrackerAccess,
    TrackerError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-this-test"
SECTION = TrackerSection(tracker="trackio", connection="any")
SERVE = """
import sys
import uvicorn
from trackio.server import build_starlette_app_only
app = build_starlette_app_only()
uvicorn.run(app[0] if isinstance(app, tuple) else app, host="127.0.0.1", port=int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("trackio")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(peer_python("trackio")), "-c", SERVE, str(port)]
    environment = {"TRACKIO_DIR": str(folder / "data"), "TRACKIO_WRITE_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}
    with served(command, url, folder, **environment):
        yield url


def history(url: str, project: str, stage: str) -> list[dict[str, float]]:
    """Return the rows that trackio has of a run."""
    listed = call(url, "get_runs_for_project", project=project)
    run_ids = [run["id"] for run in listed if run["name"] == f"p/{stage}"]
    assert len(run_ids) == 1, listed
    return call(url, "get_logs", project=project, run=f"p/{stage}", run_id=run_ids[0])


def call(url: str, name: str, **arguments: object) -> list[dict[str, float]]:
    return httpx.post(f"{url}/api/{name}", json={"args": [], "kwargs": arguments}).json()["data"]


def test_a_training_is_one_run_over_a_restart_a_rollback_and_a_branch(
    server: str, stored: StoredSweep
) -> None:
    def send(*, ended: bool = False) -> Pushed:
        access = TrackerAccess(server, password=TOKEN)
        return push_sweep(stored.store, SWEEP, JOBS, SECTION, access, ended=ended)

    stored.log("trunk", 1, range(1, 61))
    stored.validate("trunk", 1, 50, 3.5)
    send()
    stored.log("trunk", 2, range(41, 81))
    stored.log("decay", 3, range(51, 71))
    send(ended=True)
    assert send(ended=True) == Pushed(0, 0)

    trunk, branch = history(server, SWEEP, "trunk"), history(server, SWEEP, "decay")
    assert [(row["step"], row["loss"]) for row in trunk] == [
        (n, loss(n, 1 if n <= 60 else 2)) for n in range(1, 81)
    ]
    assert [row["step"] for row in branch] == [*range(1, 71)]
    assert [row["step"] for row in trunk if row.get("validation_loss") == 3.5] == [50]


def test_a_batch_that_is_sent_again_changes_nothing(server: str) -> None:
    training, records = TrackedTraining("again", "p", "trunk"), [TrackedRecord(1, 0.0, {"loss": 2.0})]
    with Trackio().open(TrackerAccess(server, password=TOKEN), "again") as session:
        session.push(training, records)
        session.push(training, records)
        assert session.last_step(training) == 1
    assert len(history(server, "again", "trunk")) == 1


def test_a_wrong_token_is_refused_in_words_without_it(server: str, stored: StoredSweep) -> None:
    stored.log("trunk", 1, range(1, 5))
    with pytest.raises(TrackerError, match="write_token is required") as refused:
        push_sweep(
            stored.store,
            SWEEP,
            JOBS,
            SECTION.model_copy(update={"project": "closed"}),
            TrackerAccess(server, password="a-wrong-token"),
            ended=True,
        )
    assert "a-wrong-token" not in str(refused.value)


def test_the_task_sends_what_is_stored_of_a_planned_sweep_and_the_command_finds_nothing_left(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = {"conn_type": "http", "host": server, "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_OURS", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_MEGATRON_TRACKER_CONNECTIONS", "ours")
    monkeypatch.setenv("AIRFLOW__MEGATRON__RESULTS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv(PINS_VARIABLE, str(tmp_path / "pins"))
    monkeypatch.setattr(push_records, "runs_without_scheduler", lambda: True)
    text = f"trackers: [{{tracker: trackio, connection: ours, project: planned}}]\n{CHAIN}"
    (tmp_path / "chain.yaml").write_text(text)
    sweep, around = load_sweep_text(text, "chain.yaml"), PlanEnvironment.now("local")
    plan = plan_sweep(sweep, around.cluster)
    pinned = PinnedSweep.stored(sweep, text, plan, around, PinStore())
    pinned.use("chain", "manual__1")
    for job_id, stage, numbers in (("7", "pretrain", range(1, 21)), ("8", "cooldown_300k", range(11, 16))):
        source = Source("chain", "manual__1", "lr0.001", stage, 1, job_id, f"/r/{stage}-1")
        rows = [IterationRecord(number, 100, 16 * number, losses={"lm loss": 2.0}) for number in numbers]
        batch = Batch("iterations", source, BEGAN, rows, [100 * number for number in numbers])
        write_batches(SegmentStore(str(tmp_path / "store")), [batch])

    context: Any = {"ti": SimpleNamespace(dag_id="chain", run_id="manual__1")}
    PushRecordsOperator(
        task_id="trackers", pinned=pinned.to_json(), point_dag_id="chain.point", runs={}, plan_only=False
    ).execute(context)

    runs = call(server, "get_runs_for_project", project="planned")
    steps = {
        run["name"]: [row["step"] for row in call(server, "get_logs", project="planned", run_id=run["id"])]
        for run in runs
    }
    assert steps == {"lr0.001/pretrain": [*range(1, 21)], "lr0.001/cooldown_300k": [*range(1, 16)]}
    push(str(tmp_path / "chain.yaml"), to="trackio", cluster=None)
    assert "trackio: 0 records of 0 trainings sent" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        push(str(tmp_path / "chain.yaml"), to="wandb", cluster=None)
    assert "trackers: has no wandb; it has trackio" in capsys.readouterr().err
