"""Records pushed to a real MLflow server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from peer_servers import (
    BEGAN,
    JOBS,
    SWEEP,
    StoredSweep,
    loss,
    mlflow_history,
    mlflow_runs,
    mlflow_server,
)

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.results.trackers.mlflow import Mlflow
from airflow_megatron.results.trackers.pushing import Pushed, push_sweep
from airflow_megatron.spec.model.schema import TrackerSection
from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining, TrackerAccess, TrackerError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTION = TrackerSection(tracker="mlflow", connection="any")
TRUNK = TrackedTraining(SWEEP, "p", "trunk")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


def history(url: str, project: str, stage: str, metric: str = "loss") -> list[tuple[int, float]]:
    """Return MLflow's values of a stage's metric as (step, value), in the order of its response."""
    return mlflow_history(url, mlflow_runs(url, project)[f"{SWEEP}/p/{stage}"], metric)


def test_a_training_is_one_run_over_a_restart_a_rollback_and_a_branch(
    server: str, stored: StoredSweep
) -> None:
    access, section = TrackerAccess(server), SECTION.model_copy(update={"project": "whole"})

    def push(*, ended: bool = False) -> Pushed:
        return push_sweep(stored.store, SWEEP, JOBS, section, access, ended=ended)

    stored.log("trunk", 1, range(1, 61))
    stored.validate("trunk", 1, 50, 3.5)
    push()
    stored.log("trunk", 2, range(41, 81))  # continues from the checkpoint of iteration 40
    stored.log("decay", 3, range(51, 71))  # from the trunk's checkpoint of iteration 50
    push(ended=True)
    assert push(ended=True) == Pushed(0, 0)

    trunk, branch = history(server, "whole", "trunk"), history(server, "whole", "decay")
    # records pushed before the rollback are kept, and none is duplicated
    assert trunk == [(n, loss(n, 1 if n <= 60 else 2)) for n in range(1, 81)]
    assert branch == [
        *((n, loss(n, 1 if n <= 40 else 2)) for n in range(1, 51)),
        *((n, loss(n, 3)) for n in range(51, 71)),
    ]
    assert history(server, "whole", "trunk", "validation_loss") == [(50, 3.5)]
    run = mlflow_runs(server, "whole")[f"{SWEEP}/p/trunk"]
    assert run["info"]["status"] == "FINISHED"
    assert {each["key"]: each["value"] for each in run["data"]["params"]} == {"lr": "0.001"}


def test_a_stored_batch_without_a_record_is_not_sent_again(server: str, stored: StoredSweep) -> None:
    """The process is killed after MLflow received the first batch, before the process recorded this."""
    access, section = TrackerAccess(server), SECTION.model_copy(update={"project": "killed"})
    stored.log("trunk", 1, range(1, 301))
    with Mlflow().open(access, "killed") as session:
        whole_push = session._api.post  # type: ignore[attr-defined]

        def killed(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = whole_push(path, body)
            if path == "runs/log-batch" and "metrics" in body:
                raise KeyboardInterrupt
            return answer

        session._api.post = killed  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            push_with(session, stored)
    there = len(history(server, "killed", "trunk"))
    assert 0 < there < 300
    pushed = push_sweep(stored.store, SWEEP, JOBS, section, access, ended=True)
    assert pushed.records == 300 - there
    assert [step for step, _ in history(server, "killed", "trunk")] == [*range(1, 301)]


def push_with(session: Any, stored: StoredSweep) -> None:
    from airflow_megatron.results.store.reading import Results
    from airflow_megatron.results.trackers.tracked_records import SweepRecords

    session.last_step(TRUNK)
    session.push(
        TRUNK, [*SweepRecords(Results(stored.store, SWEEP), {}, BEGAN).after("p", "trunk", None, ended=True)]
    )


def test_an_unreachable_server_delays_only_the_push(stored: StoredSweep) -> None:
    stored.log("trunk", 1, range(1, 5))
    with pytest.raises(TrackerError, match="mlflow does not answer"):
        push_sweep(
            stored.store,
            SWEEP,
            JOBS,
            SECTION,
            TrackerAccess(f"http://127.0.0.1:{free_port()}", "u", "secret"),
        )


def test_two_processes_that_begin_at_once_share_one_run(server: str) -> None:
    access, records = TrackerAccess(server), [TrackedRecord(1, BEGAN, {"loss": 2.0})]
    with Mlflow().open(access, "both") as one, Mlflow().open(access, "both") as other:
        assert one.last_step(TRUNK) is other.last_step(TRUNK) is None
        one.push(TRUNK, records)
        other.push(TRUNK, records)
    assert history(server, "both", "trunk") == [(1, 2.0)]
