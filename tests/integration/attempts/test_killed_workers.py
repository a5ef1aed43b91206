"""A worker that dies between submission and record does not submit twice.

The cluster profile's ``sbatch`` submits, but returns much later; its caller is killed in between.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

LATE_SBATCH = """#!/bin/sh
# submits, and answers once the file "hold" beside it is gone
answer=$({sbatch} "$@")
status=$?
while [ -e {folder}/hold ]; do sleep 0.1; done
printf '%s\\n' "$answer"
exit "$status"
"""


@pytest.fixture
def hold(site: SweepSite) -> Iterator[Path]:
    """The file that delays the return of ``sbatch``."""
    folder = site.local / "slurm_bin"
    folder.mkdir(exist_ok=True)
    for name in ("squeue", "sacct", "scancel"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(str(shutil.which(name)))
    sbatch = folder / "sbatch"
    sbatch.write_text(LATE_SBATCH.format(sbatch=shutil.which("sbatch"), folder=folder))
    sbatch.chmod(0o755)
    (folder / "hold").touch()
    yield folder / "hold"
    (folder / "hold").unlink(missing_ok=True)


def attempt_dir(site: SweepSite, point: str) -> Path:
    return site.runs / "once" / point / "work" / ".jobs" / "work" / "1"


def assert_one_job(site: SweepSite, point: str) -> None:
    site.expect_states(f"once.{point}.", {f"once.{point}.work.a1": ["COMPLETED"]})
    work = site.runs / "once" / point / "work"
    assert (work / "times").read_text() == "done\n"
    recorded = (attempt_dir(site, point) / "jobid").read_text().strip()
    assert recorded == site.submission(f"once.{point}.work.a1").job_id
    assert site.verdict(work, "work")["outcome"] == "finished"


@pytest.mark.parametrize(
    "shell_dies",
    [pytest.param(False, marks=pytest.mark.long, id="worker"), pytest.param(True, id="worker_and_shell")],
)
def test_killed_dags_test(site: SweepSite, hold: Path, shell_dies: bool) -> None:
    point = "worker_and_shell" if shell_dies else "worker"
    with site.dags_test("once.point", {"point": point}) as process:
        wait_until(lambda: bool(site.submissions(f"once.{point}.")), 90, "the submission")
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    assert not (attempt_dir(site, point) / "jobid").exists()
    if shell_dies:
        shell = psutil.Process(int((attempt_dir(site, point) / "claim.1" / "owner").read_text().split()[1]))
        for each in (shell, *shell.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # its "sleep 0.1" ended meanwhile
                each.kill()
    hold.unlink()
    status, output = site.run_dags_test("once.point", {"point": point})
    assert status == 0, output[-4000:]
    assert_one_job(site, point)
    message = "was already submitted as" if shell_dies else "is recorded for"
    assert f"{message} once.{point}.work.a1" in output, output[-4000:]


def test_killed_task_is_tried_again(site: SweepSite, airflow: SiteAirflow, hold: Path) -> None:
    airflow.wait_for_dag("once.point")
    run_id = airflow.trigger("once.point", {"point": "task"})
    wait_until(lambda: bool(site.submissions("once.task.")), 60, "the submission")
    site.connected_task().kill()
    assert not (attempt_dir(site, "task") / "jobid").exists()
    hold.unlink()
    assert airflow.ended("once.point", run_id) == "success"
    assert airflow.try_number("once.point", run_id, "work.submit") >= 2
    assert_one_job(site, "task")
