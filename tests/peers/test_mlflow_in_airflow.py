"""A sweep on the local cluster whose task ``trackers`` sends the records of its trainings to a real MLflow server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from blocks import yaml_blocks
from peer_servers import mlflow_history, mlflow_runs, mlflow_server
from slurm_cluster import SlurmCluster
from sweep_site import SweepSite

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACKERS = "\ntrackers: [{tracker: mlflow, connection: our_mlflow}]\n"
PASSWORD = "a-password-that-no-log-may-hold"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


@pytest.fixture(scope="module")
def site(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepSite]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("cluster"))
    connection = {"conn_type": "http", "host": server, "login": "me", "password": PASSWORD}
    try:
        cluster.control("up")
        site = SweepSite(tmp_path_factory.mktemp("site"), cluster)
        site.prepare()
        site.airflow.folders |= {
            "AIRFLOW_CONN_OUR_MLFLOW": json.dumps(connection),
            "AIRFLOW_MEGATRON_TRACKER_CONNECTIONS": "our_mlflow",
        }
        (text,) = (
            block.text for block in yaml_blocks() if block.page == "README.md" and "point:" in block.text
        )
        (site.specs / "learning-rates.yaml").write_text(text + TRACKERS)
        site.airflow.start()
        try:
            yield site
        finally:
            site.stop()
    finally:
        cluster.control("down", "--purge")


def test_the_trainings_of_a_sweep_are_in_mlflow_when_its_run_ends(site: SweepSite, server: str) -> None:
    site.airflow.wait_for_dag("learning-rates.point")
    site.airflow.wait_for_dag("learning-rates")
    run_id = site.airflow.trigger("learning-rates", {"points": "lr0.003"})
    assert site.airflow.ended("learning-rates", run_id, timeout=600) == "success"
    assert site.airflow.task_states("learning-rates", run_id)["trackers"] == "success"

    runs = mlflow_runs(server, "learning-rates")
    assert set(runs) == {f"learning-rates/lr0.003/{stage}" for stage in ("pretrain", "cooldown")}
    for key, run in runs.items():
        assert run["info"]["status"] == "FINISHED"
        assert {each["key"]: each["value"] for each in run["data"]["params"]} == {"lr": "0.003"}
        steps = [step for step, _ in mlflow_history(server, run)]
        assert steps == sorted(set(steps)), key
    branch, trunk = (mlflow_history(server, run) for _, run in sorted(runs.items()))
    assert [step for step, _ in trunk] == [1, *range(10, 121, 10)]
    # the branch has its trunk's iterations before its own first one
    assert [step for step, _ in branch] == [1, *range(10, 101, 10), 101, 110, 120]
    assert branch[:11] == trunk[:11]
    assert branch[-1] != trunk[-1]

    log = site.airflow.task_log("learning-rates", run_id, "trackers")
    assert "mlflow: " in log
    assert PASSWORD not in log
