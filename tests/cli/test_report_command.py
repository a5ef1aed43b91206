"""``airflow-megatron report`` on a login node."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from login_site import LoginSite

pytestmark = pytest.mark.slow


def test_fewer_results_are_written_beside_the_report_that_holds_more(site: LoginSite) -> None:
    jobs = site.run_sweep("first")
    for number, job in enumerate(jobs):
        site.finished(job, str(100 + number))
    answer = site.call("report", "study")
    assert answer.status == 0, answer.stderr
    results = site.place / "local" / "results" / "study"
    folder = results / "runs" / "first"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert f"wrote {folder / 'report.html'}" in answer.stdout
    shutil.rmtree(site.place / jobs[0].run_dir)
    answer = site.call("report", "study")
    assert answer.status == 0, answer.stderr
    assert f"An earlier report of this run holds more results: {folder}; it is kept" in answer.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (results / "report.html").read_bytes() == before["report.html"]
    assert "holds more results" in (results / "runs" / "first~fewer" / "report.html").read_text()
