"""Watch the tests' jobs: evaluate one poll of the cluster, and wait for an expected result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from patience import deadline_in

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.states.observation import Observation, Watch
from airflow_megatron.slurm.verdicts.verdict import Expectation, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from slurm_cluster import SlurmCluster

    from airflow_megatron.slurm.submission.single_job import SubmissionRequest

COMMAND = Expectation("command")


def watch_for(request: SubmissionRequest, job_id: str | None) -> Watch:
    attempt = request.attempt
    return Watch(key="x", job_id=job_id, job_name=attempt.job_name, attempt_dir=attempt.directory)


def observe(cluster: SlurmCluster, watch: Watch) -> Observation:
    return parse_poll([watch], cluster.run(poll_script([watch])))["x"]


def wait_for(
    cluster: SlurmCluster, watch: Watch, condition: Callable[[Verdict], bool], timeout: float = 60
) -> Verdict:
    deadline = deadline_in(timeout)
    while True:
        verdict = judge(observe(cluster, watch), COMMAND)
        if condition(verdict):
            return verdict
        assert time.monotonic() < deadline, verdict
        time.sleep(0.3)


def until(file: Path) -> str:
    """Return a command that ends when a file exists; the path must not contain special characters of the shell."""
    return f"bash -c 'until [ -e {file} ]; do sleep 0.1; done'"


def verdict_of(cluster: SlurmCluster, watch: Watch, timeout: float = 60) -> Verdict:
    return wait_for(cluster, watch, lambda verdict: verdict.outcome.is_verdict, timeout)


async def verdict_among(observations: AsyncIterator[Observation], seen: list[Observation]) -> Verdict:
    """Return the first verdict of a subscription.

    :param seen: every observation on the way is added.
    """
    async for observation in observations:
        seen.append(observation)
        verdict = judge(observation, COMMAND)
        if verdict.outcome.is_verdict:
            return verdict
    raise AssertionError("the subscription ended")
