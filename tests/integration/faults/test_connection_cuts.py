"""The connection to the login node fails: during a command, for some time, or slowly."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from patience import deadline_in, patient
from watched_jobs import until, verdict_among, watch_for

from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    parse_submission,
    submission_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

    from airflow_megatron.hooks.slurm import SlurmHook
    from airflow_megatron.slurm.submission.single_job import SubmissionRequest

pytestmark = pytest.mark.integration

WINDOW_S = 8


def submit_patiently(
    hook: SlurmHook, request: SubmissionRequest, timeout: float
) -> tuple[SubmissionOutcome, int]:
    """Submit until there is a job; return it, and the number of lost responses."""
    lost, deadline = 0, deadline_in(90)
    while time.monotonic() < deadline:
        try:
            outcome = parse_submission(hook.run(submission_script(request), timeout=timeout))
            if outcome.job_id is not None:
                return outcome, lost
        except TransportError:
            lost += 1
        time.sleep(0.3)
    raise AssertionError(f"no job after {lost} lost answers")


# the handshake takes about 1,500 bytes each way, a script 9,000 more; the hook repeats a failed handshake
COUNTS = {
    "up": (1, 1500, 2500, 3200, 3600, 4500, 6000, 8000, 10000, 12000),
    "down": (1, 1000, 1500, 1700, 1900, 2100, 2300, 2500, 2700, 2900),
}


@pytest.mark.parametrize("direction", COUNTS)
def test_cut_after_any_number_of_bytes(proxied: ProxiedSite, tmp_path: Path, direction: str) -> None:
    hook, lost = proxied.hook(), 0
    for count in COUNTS[direction]:
        request = proxied.cluster.request(tmp_path, f"cut-{direction}-{count}", visibility_window_s=WINDOW_S)
        proxied.proxy.cut_next_after(direction, count)
        outcome, answers_lost = submit_patiently(hook, request, timeout=30)
        lost += answers_lost
        assert proxied.cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}
    proxied.proxy.pass_on()
    assert lost >= 2


def test_answer_lost_in_a_black_hole(proxied: ProxiedSite, tmp_path: Path) -> None:
    """The script arrives and runs, but its output does not return in time."""
    request = proxied.cluster.request(tmp_path, "hole", visibility_window_s=WINDOW_S)
    hook = proxied.hook()

    async def query() -> None:
        transport = await hook.transport()
        began = time.monotonic()
        await transport.run("true", timeout=30)
        limit = round(4 + 20 * (time.monotonic() - began))  # a busy machine needs longer to begin the script
        answer = asyncio.create_task(transport.run(submission_script(request), timeout=limit))
        while not (tmp_path / ".jobs" / "hole" / "1" / "claim.1").exists():
            assert not answer.done(), answer.result()
            await asyncio.sleep(0.002)
        proxied.proxy.black_hole()
        with pytest.raises(TransportError, match=f"no answer within {limit} s"):
            await answer
        await transport.close()

    asyncio.run(query())
    proxied.proxy.pass_on()
    outcome, lost = submit_patiently(hook, replace(request, claim_token="second"), timeout=30)
    assert (outcome.status, lost) == ("recorded", 0)
    assert proxied.cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


@pytest.mark.parametrize("fault", ["refuse", "black_hole"])
async def test_job_ends_while_the_connection_is_broken(
    proxied: ProxiedSite, tmp_path: Path, fault: str
) -> None:
    """The poller keeps trying, reports the start of the outage, and detects the end of the job afterwards."""
    request = proxied.cluster.request(tmp_path, f"way-{fault}", f"am_run {until(tmp_path / 'go')}")
    outcome, _ = await asyncio.to_thread(submit_patiently, proxied.hook(), request, 30)
    assert outcome.job_id is not None
    hook = proxied.hook()
    poller = Poller(hook.transport, interval=0.5)
    seen = []
    async with poller.subscribe(watch_for(request, outcome.job_id)) as observations:
        verdicts = asyncio.create_task(verdict_among(observations, seen))
        while not any(observation.queue_ok for observation in seen):
            await asyncio.sleep(0.1)
        poller._command_timeout = 3  # only now, because a poll on a busy machine takes longer
        getattr(proxied.proxy, fault)()
        if fault == "refuse":
            proxied.proxy.cut()
        while not any(observation.unreachable for observation in seen):
            await asyncio.sleep(0.1)
        (tmp_path / "go").touch()
        while not (Path(request.attempt.directory) / "exit.json").exists():
            await asyncio.sleep(0.1)
        proxied.proxy.pass_on()
        verdict = await asyncio.wait_for(verdicts, patient(60))
    assert verdict.outcome is Outcome.FINISHED
    assert poller.stats.failures >= 1
    assert poller.stats.reconnects >= 1
    assert proxied.cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}
