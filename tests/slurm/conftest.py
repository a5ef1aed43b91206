"""Submissions with a file-backed Slurm command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from fake_slurm import FakeSlurm, fake_slurm

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.single_job import SubmissionRequest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm")


@pytest.fixture(scope="module")
def slurm_of_module(tmp_path_factory: pytest.TempPathFactory) -> FakeSlurm:
    """A shared one for tests that do not change its state."""
    return fake_slurm(tmp_path_factory.mktemp("module") / "slurm")


@pytest.fixture
def request_for(tmp_path: Path):
    """Return a function that creates requests for attempts under ``tmp_path/run``."""
    counter = iter(range(1, 10**6))

    def make(number: int = 1, **changes: object) -> SubmissionRequest:
        values: dict[str, object] = {
            "attempt": Attempt(
                f"sweep.point.train.a{number}", str(tmp_path / "run" / ".jobs" / "train"), number
            ),
            "script": "#!/bin/bash\n#SBATCH --time=5\necho hello\n",
            "job_json": {"job": "sweep.point.train", "attempt": number},
            "claim_token": f"caller-{next(counter)}",
            "busy_wait_s": 0,
        }
        return SubmissionRequest(**{**values, **changes})  # type: ignore[arg-type]

    return make


class LocalTransport:
    """Runs scripts on this machine, as the login node."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm
        self.fail_with: str | None = None
        self.closed = False
        self.running = 0
        self.most_running = 0

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        if self.fail_with is not None:
            raise TransportError(self.fail_with)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await asyncio.to_thread(self.slurm.run, script)
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def transport(slurm: FakeSlurm) -> LocalTransport:
    return LocalTransport(slurm)
