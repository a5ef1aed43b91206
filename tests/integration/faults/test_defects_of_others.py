"""Jobs that other tools lose, repeat without end, or crash on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from patience import deadline_in
from proxied_site import planned_jobs
from worked_sweep import WorkedSweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration

ENDED = {"success", "failed"}


@pytest.fixture(scope="module")
def worked(proxied_module: ProxiedSite) -> Iterator[WorkedSweep]:
    """All points, run at the same time until each has ended."""
    jobs = planned_jobs(proxied_module, "defects")
    with WorkedSweep(proxied_module, jobs, points=len(jobs)) as sweep:
        deadline = deadline_in(180)
        while not all(
            phase in ENDED or (phase == "waiting" and task.endswith(".watch"))
            for task, phase in sweep.phases().items()
        ):
            assert time.monotonic() < deadline, sweep.phases()
            time.sleep(0.5)
        yield sweep


@pytest.mark.parametrize(
    ("point", "states"),
    [
        ("crash", ["FAILED", "FAILED", "FAILED"]),  # AutoExperiment submits it again without end
        ("flaky", ["FAILED", "FAILED", "COMPLETED"]),  # oellm-autoexp does not detect its second failure
        ("binary", ["COMPLETED"]),  # AutoExperiment: a byte that is not UTF-8 ends the manager
        ("silent", ["COMPLETED"]),  # AutoExperiment cancels it as frozen after its last line
        ("split", ["COMPLETED"]),
        ("twice", ["CANCELLED", "COMPLETED"]),
    ],
)
def test_attempts(proxied_module: ProxiedSite, worked: WorkedSweep, point: str, states: list[str]) -> None:
    expected = {f"defects.{point}.work.a{number}": [state] for number, state in enumerate(states, 1)}
    proxied_module.expect_states(f"defects.{point}.", expected)
    phase = worked.phases()[f"defects.{point}.work.watch"]
    assert phase == ("failed" if point == "crash" else "success")


def test_line_that_is_written_in_two_pieces_is_seen(proxied_module: ProxiedSite, worked: WorkedSweep) -> None:
    """oellm-autoexp misses it, because its cursor has moved past the first half."""
    for point in ("split", "silent"):
        assert (proxied_module.runs / "defects" / point / "work" / "seen").exists()


def test_log_that_is_not_utf8_is_shown(worked: WorkedSweep) -> None:
    assert worked.phases()["defects.binary.work.watch"] == "success"
    assert "UnicodeDecodeError" not in worked.log("triggerer")
