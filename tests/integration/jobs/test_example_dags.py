"""The example DAGs on the tests' cluster, with ``airflow dags test``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_megatron.example_dags

if TYPE_CHECKING:
    from sweep_site import SweepSite

pytestmark = pytest.mark.integration
FOLDER = Path(airflow_megatron.example_dags.__file__).parent


def run_example(site: SweepSite, name: str) -> str:
    ssh = site.cluster.description["ssh"]
    extra = {"key_file": ssh["key_file"], "host_key": ssh["host_key"], "work_dir": str(site.runs / "jobs")}
    connection = {
        "conn_type": "slurm",
        "host": ssh["host"],
        "port": ssh["port"],
        "login": ssh["user"],
        "extra": extra,
    }
    status, output = site.run_dags_test(
        name, AIRFLOW__CORE__DAGS_FOLDER=str(FOLDER), AIRFLOW_CONN_SLURM_LOCAL=json.dumps(connection)
    )
    assert status == 0, output[-6000:]
    return output


def job_dirs(site: SweepSite, name: str) -> Path:
    (run,) = (site.runs / "jobs" / name).iterdir()
    return run


def test_a_job(site: SweepSite) -> None:
    output = run_example(site, "example_slurm_job")
    site.expect_states("example_slurm_job.", {"example_slurm_job.simulate.a1": ["COMPLETED"]})
    assert (job_dirs(site, "example_slurm_job") / "simulate" / "count.txt").read_text() == "2\n"
    assert "is COMPLETED: see " in output


def test_submitting_and_waiting(site: SweepSite) -> None:
    output = run_example(site, "example_slurm_submit")
    site.expect_states("example_slurm_submit.", {"example_slurm_submit.submit.a1": ["COMPLETED"]})
    assert "found: listening on " in output


def test_functions(site: SweepSite) -> None:
    run_example(site, "example_slurm_decorator")
    names = [
        *(f"example_slurm_decorator.square.{number}.a1" for number in range(3)),
        "example_slurm_decorator.add.a1",
    ]
    site.expect_states("example_slurm_decorator.", {name: ["COMPLETED"] for name in names})
    assert (job_dirs(site, "example_slurm_decorator") / "add" / "sum.txt").read_text() == "14\n"


def test_a_checkpoint(site: SweepSite) -> None:
    output = run_example(site, "example_checkpoint")
    attempts = {f"example_checkpoint.{task}.a1": ["COMPLETED"] for task in ("train", "evaluate")}
    site.expect_states("example_checkpoint.", attempts)
    assert "model_optim_rng.pt" in output
