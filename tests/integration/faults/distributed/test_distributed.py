"""Sweeps on PostgreSQL, Redis and Celery, with two or three of each daemon, while daemons are killed."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from aftermath import settled
from airflow_storm import work_through
from distributed_site import DistributedStorm, in_random_order
from patience import wait_until
from proxied_site import planned_jobs

if TYPE_CHECKING:
    from distributed_site import DistributedSite

pytestmark = pytest.mark.distributed

SEED = int(os.environ.get("FAULTS_SEED", 7))
BETWEEN_S = 6


def test_sweep_while_each_service_is_killed_once(distributed_site: DistributedSite) -> None:
    site, airflow = distributed_site, distributed_site.airflow
    jobs = planned_jobs(site, "distributed")
    airflow.wait_for_dag("distributed")
    run_id = airflow.trigger("distributed")
    for name in in_random_order(SEED):
        time.sleep(BETWEEN_S)
        airflow.kill_daemon(name, with_children=True)
        time.sleep(1)
        airflow.supervise()
    airflow.wait_until_serving()
    assert airflow.ended("distributed", run_id) == "success"
    assert settled(site, jobs) == []


def test_results_of_two_triggerers_are_in_one_store(distributed_site: DistributedSite) -> None:
    """Each triggerer writes the rows that it reads; no row of the logs is missing or duplicated."""
    found = json.loads(
        distributed_site.stored(
            "results.iterations.filter(~results.iterations['superseded'])"
            ".group_by('point').len().sort('point').rows()"
        )
    )
    jobs = [job for job in planned_jobs(distributed_site, "distributed") if job.kind == "train"]
    assert found == sorted([job.point, job.params["train_iters"]] for job in jobs)


def test_run_keeps_the_version_of_its_bundle(distributed_site: DistributedSite) -> None:
    """A commit that renames a stage during the run affects only the next run."""
    site, airflow = distributed_site, distributed_site.airflow
    run_dir = site.runs / "bundled" / "only"
    airflow.wait_for_dag("bundled")
    first = airflow.trigger("bundled")
    wait_until(lambda: site.is_running("bundled.only.hold.a1"), 120, "the first job")
    commit = site.repository.commit("second", "second")
    for dag_id in ("bundled", "bundled.point"):
        wait_until(lambda dag_id=dag_id: airflow.bundle_version(dag_id) == commit, 120, "the commit", 3)
    (run_dir / "hold" / "go").touch()
    assert airflow.ended("bundled", first) == "success"
    assert (run_dir / "first" / "texts").read_text() == "first\n"
    assert not (run_dir / "second").exists()
    assert airflow.ended("bundled", airflow.trigger("bundled")) == "success"
    assert (run_dir / "second" / "texts").read_text() == "second\n"
    site.expect_states("bundled.only.hold.", {"bundled.only.hold.a1": ["COMPLETED"]})


def test_points_under_random_faults(distributed_site: DistributedSite) -> None:
    faults = int(os.environ.get("FAULTS", 300))
    distributed_site.airflow.wait_until_serving()  # an earlier fault may have ended a service later
    wrong, report = work_through(
        distributed_site, SEED, faults, 0.7, DistributedStorm, "storm_on_distributed"
    )
    print(report)
    assert not wrong, "\n".join([f"repeat with FAULTS_SEED={SEED}", *wrong, report])
