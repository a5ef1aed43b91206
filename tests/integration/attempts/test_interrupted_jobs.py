"""Jobs that Slurm ends early continue in another attempt."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from patience import patient, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

ITERATION = re.compile(r"^ \[.*\] iteration +(\d+)/ +\d+ \|", re.MULTILINE)
LAST_ITERATION = 500
PATIENCE_S = 400
SWEEPS = ("stopped", "lost", "killed")


@pytest.fixture(scope="module")
def runs(site: SweepSite, airflow: SiteAirflow) -> dict[str, str]:
    """Runs of all sweeps, started together, because they mostly wait for Slurm's timers."""
    hold = site.runs / "stopped" / "only" / "hold"
    hold.parent.mkdir(parents=True)
    hold.touch()
    for sweep in SWEEPS:
        airflow.wait_for_dag(f"{sweep}.point")
    return {sweep: airflow.trigger(f"{sweep}.point", {"point": "only"}) for sweep in SWEEPS}


def iterations(log_file: Path) -> list[int]:
    text = log_file.read_text() if log_file.exists() else ""
    return [int(number) for number in ITERATION.findall(text)]


@pytest.fixture(scope="module")
def shortened(site: SweepSite, runs: dict[str, str]) -> Path:
    """The logs of a training job after a reduction of its walltime."""
    logs = site.runs / "stopped" / "only" / "logs"
    wait_until(lambda: bool(iterations(logs / "pretrain-1.out")), PATIENCE_S, "the first iteration")
    job_id = site.submission("stopped.only.pretrain.a1").job_id
    # Slurm checks walltimes every 30 s and sends the signal a minute (signal_before) before the end
    site.cluster.slurm("scontrol", "update", f"JobId={job_id}", "EndTime=now+80")
    return logs


def test_a_lost_node_is_replaced(
    site: SweepSite, airflow: SiteAirflow, runs: dict[str, str], shortened: Path
) -> None:
    first, second = (f"lost.only.work.a{number}" for number in (1, 2))
    wait_until(lambda: site.is_running(first), PATIENCE_S, first)
    log = site.runs / "lost" / "only" / "work" / "logs" / "work-1.out"
    wait_until(lambda: log.exists() and log.read_text(), 60, "the job's first line")
    # Slurm may not have confirmed the launch yet
    time.sleep(patient(3))
    node = site.submission(first).node
    site.cluster.control("kill", f"node:{node}")
    try:
        wait_until(lambda: site.is_running(second), PATIENCE_S, second)
        (site.runs / "lost" / "go").touch()
        assert airflow.ended("lost.point", runs["lost"]) == "success"
    finally:
        site.cluster.control("start", f"slurmd:{node}")
    site.expect_states("lost.only.", {first: ["NODE_FAIL"], second: ["COMPLETED"]})
    assert site.submission(second).node != node
    verdict = site.verdict(site.runs / "lost" / "only" / "work", "work")
    assert (verdict["outcome"], verdict["attempt"]) == ("finished", 2)


def test_a_job_without_a_record_of_its_end_runs_again_on_another_node(
    site: SweepSite, airflow: SiteAirflow, runs: dict[str, str]
) -> None:
    assert airflow.ended("killed.point", runs["killed"]) == "success"
    first, second = (f"killed.only.work.a{number}" for number in (1, 2))
    site.expect_states("killed.only.", {first: ["FAILED"], second: ["COMPLETED"]})
    assert site.submission(second).node != site.submission(first).node


def test_a_training_continues_after_its_walltime(
    site: SweepSite, airflow: SiteAirflow, runs: dict[str, str], shortened: Path
) -> None:
    assert airflow.ended("stopped.point", runs["stopped"], PATIENCE_S) == "success"
    attempts = {f"stopped.only.pretrain.a{number}" for number in (1, 2)}
    wait_until(lambda: set(site.states("stopped.only.")) == attempts, 60, "accounting to know both attempts")
    before, after = (iterations(shortened / f"pretrain-{number}.out") for number in (1, 2))
    assert 0 < len(before) < LAST_ITERATION
    assert before + after == list(range(1, LAST_ITERATION + 1))
    assert "exiting program after receiving SIGTERM" in (shortened / "pretrain-1.out").read_text()
    verdict = site.verdict(shortened.parent, "pretrain")
    assert (verdict["outcome"], verdict["attempt"], verdict["iteration"]) == ("finished", 2, LAST_ITERATION)
