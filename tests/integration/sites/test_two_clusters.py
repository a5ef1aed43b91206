"""Sweeps on several clusters: each point runs completely on a cluster that has room."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from patience import wait_until
from slurm_cluster import SlurmCluster
from sweep_site import processes_left

from airflow_megatron.cli.local.local_connection import local_connections
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.results import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

POINTS = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A second cluster."""
    cluster = SlurmCluster(tmp_path_factory.mktemp("second"))
    try:
        cluster.control("up")
        yield cluster
    finally:
        cluster.control("down", "--purge")
    assert processes_left(cluster.place) == []


def connection(cluster: SlurmCluster) -> dict[str, object]:
    return local_connections(cluster.description)["slurm_local"]


def placed(site: SweepSite, sweep: str) -> dict[str, str]:
    """Return point → its cluster, as recorded beside the stored plans."""
    return {point: its.cluster for point, its in Placements(sweep, site.local / "pins").read().items()}


def jobs(cluster: SlurmCluster, prefix: str) -> list[str]:
    """Return the attempts of a sweep that have completed on a cluster, without the digests in their names."""
    rows = cluster.slurm(
        "sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-o", "JobName,State"
    ).splitlines()
    found = [row.split("|") for row in rows if row.startswith(prefix)]
    return sorted(name.rpartition(".")[0] for name, state in found if state == "COMPLETED")


def expected(places: dict[str, str], cluster: str, *, again: str = "") -> list[str]:
    """Return the attempts that must have completed on a cluster, with a second one of a point's work."""
    here = [point for point, its in places.items() if its == cluster]
    shared = ["spread.data.a1"] if here else []
    repeated = [f"spread.{again}.work.a2"] if again in here else []
    return sorted([*shared, *repeated, *(f"spread.{point}.work.a1" for point in here)])


def test_points_are_spread_and_stay(site: SweepSite, airflow: SiteAirflow, second: SlurmCluster) -> None:
    answer = airflow._request(
        "POST", "/connections", json={"connection_id": "slurm_second", **connection(second)}
    )
    assert answer.status_code == 201, answer.text
    airflow.wait_for_dag("spread")
    airflow.wait_for_dag("spread.point")
    run_id = airflow.trigger("spread", {})
    assert airflow.ended("spread", run_id) == "success"
    places = placed(site, "spread")
    assert set(places) == set(POINTS)
    assert set(places.values()) == {"local", "second"}
    clusters = {"local": site.cluster, "second": second}

    def as_expected(again: str = "") -> bool:
        return all(
            jobs(cluster, "spread.") == expected(places, name, again=again)
            for name, cluster in clusters.items()
        )

    wait_until(
        as_expected, 30, "accounting to know each job on its cluster, and the shared stage once on each"
    )
    report = Path(airflow.xcom("spread", run_id, "report")[0]).parent
    rows = json.loads((report / "attempts.json").read_text())
    assert {row["point"] for row in rows if row["stage"] == "work"} == set(POINTS)
    assert {row["point"] for row in rows if row["stage"] == "data"} == {"(sweep)@local", "(sweep)@second"}
    stored = load("spread", run_id, root=str(site.local / "results")).attempts
    assert sorted(stored.filter(pl.col("stage") == "data")["point"]) == ["(sweep)@local", "(sweep)@second"]

    tasks = ["resolve", "data.submit", "data.watch", "work.submit", "work.watch"]
    airflow.clear("spread.point", "a", tasks)
    wait_until(lambda: airflow.try_number("spread.point", "a", "work.watch") > 1, 60, "another try")
    assert airflow.ended("spread.point", "a") == "success"
    wait_until(lambda: as_expected("a"), 30, "the second attempt on the cluster of the first")

    again = airflow.trigger("spread", {})
    assert airflow.ended("spread", again) == "success"
    assert sorted(airflow.xcom("spread", again, "launch", "passed_over")) == []
    assert placed(site, "spread") == places
    assert as_expected("a")


@pytest.mark.long
def test_full_and_unreachable_clusters_are_skipped(site: SweepSite, second: SlurmCluster) -> None:
    connections = {
        "AIRFLOW_CONN_SLURM_SECOND": json.dumps(connection(second)),
        "AIRFLOW_CONN_SLURM_GONE": json.dumps({**connection(second), "port": 1}),
    }
    status, output = site.run_dags_test("crowded", **connections)
    assert status == 0, output[-6000:]
    assert "cluster gone is not used" in output
    places = placed(site, "crowded")
    assert set(places) == {"a", "b"}
    assert "gone" not in places.values()
    # jobs of another test may fill the limited one, too
    assert list(places.values()).count("narrow") <= 1

    def command(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_megatron.cli.app", *words],
            env={**site.without_scheduler.environment(), **connections},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # the unreachable cluster gets no commands, because no point is on it
    jobs_seen = json.loads(command("status", "crowded", "--format", "json"))["jobs"]
    assert len(jobs_seen) == 2 + len(set(places.values()))
    assert {row["state"] for row in jobs_seen} == {"finished"}
    assert "0 jobs cancelled" in command("cancel", "crowded")
    here = [point for point, cluster in places.items() if cluster == "second"]
    command("delete", "crowded", "--select", here[0], "--yes")
    assert set(placed(site, "crowded")) == set(places) - {here[0]}
    assert not (site.local / "second_runs" / "crowded" / here[0] / "work").exists()
