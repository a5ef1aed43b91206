"""A local cluster for the tests, and functions that run scripts on its login node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from patience import deadline_in, patient

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.job_guard import job_epilogue, job_prologue
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    parse_submission,
    submission_script,
)

PROGRAM = Path(__file__).resolve().parents[2] / "docker" / "local_cluster"
QUERIES = frozenset({"squeue", "sacct", "sinfo"})
"""Commands of Slurm that change nothing, so that they can be repeated."""
REPEATS = 5


class SlurmCluster:
    """The cluster in *place*, accessed over SSH with the system's client."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def control(self, *words: str) -> None:
        """Run a command of the local cluster program (``kill slurmctld``, ``start slurmd:n2`` …)."""
        argv = [sys.executable, str(PROGRAM), *words, "--dir", str(self.place)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(180))
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def description(self) -> dict[str, Any]:
        return json.loads((self.place / "cluster.json").read_text())

    def daemon(self, name: str) -> psutil.Process:
        """Return the process of a daemon (``slurmctld``, ``slurmd:n1``, ``sshd`` …)."""
        record = json.loads((self.place / "daemons" / f"{name.replace(':', '-')}.json").read_text())
        return psutil.Process(record["pid"])

    def slurm(self, *argv: str) -> str:
        """Run a Slurm command locally, without SSH.

        A query is repeated if a broken pipe ends it: Slurm 22.05 does not ignore the signal, and a busy slurmctld
        sometimes closes the connection.
        """
        environment = {**os.environ, "SLURM_CONF": self.description["slurm_conf"], "SLURM_TIME_FORMAT": "%s"}
        for _ in range(REPEATS):
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != -signal.SIGPIPE or argv[0] not in QUERIES:
                break
        done.check_returncode()
        return done.stdout.strip()

    def start_again(self, job_id: str) -> None:
        """Start a requeued job that is pending, without Slurm's delay of two minutes.

        slurmd refuses to launch a job in the second in which it has killed it (``Job credential revoked``).
        """
        time.sleep(1.1)
        self.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    @property
    def ssh_argv(self) -> list[str]:
        server = self.description["ssh"]
        options = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": server["known_hosts"],
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        target = f"{server['user']}@{server['host']}"
        return [
            "ssh",
            "-F",
            "none",
            "-T",
            "-i",
            server["key_file"],
            "-p",
            str(server["port"]),
            *words,
            target,
        ]

    def start(self, script: str) -> subprocess.Popen[str]:
        """Start *script* on the login node; the caller reads its output."""
        process = subprocess.Popen(
            [*self.ssh_argv, SlurmCommands().remote_shell()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # refused, with this exit status
            process.stdin.write(script)
            process.stdin.close()
        process.stdin = None
        return process

    def run(self, script: str, timeout: float = 120) -> CommandResult:
        process = self.start(script)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TransportError("time-out") from None
        if process.returncode == 255:
            raise TransportError(err.strip())
        return CommandResult(process.returncode, out, err)

    def submit(self, request: SubmissionRequest) -> SubmissionOutcome:
        return parse_submission(self.run(submission_script(request)))

    def submit_patiently(self, request: SubmissionRequest, timeout: float = 60) -> SubmissionOutcome:
        """Submit until there is a job, as callers do."""
        deadline = deadline_in(timeout)
        while True:
            try:
                outcome = self.submit(request)
                if outcome.job_id is not None:
                    return outcome
                reason = outcome.message
            except TransportError as error:
                reason = str(error)
            assert time.monotonic() < deadline, reason
            time.sleep(0.3)

    def jobs_named(self, name: str) -> set[str]:
        """Return the ids of all jobs that were submitted with *name*, from queue and accounting."""
        queue = self.slurm("squeue", "-h", "-t", "all", "-n", name, "-o", "%A")
        accounting = self.slurm(
            "sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "--name", name, "-o", "JobIDRaw"
        )
        return {*queue.split(), *accounting.split()}

    def request(
        self, run_dir: Path, name: str, body: str = "true", number: int = 1, **changes: Any
    ) -> SubmissionRequest:
        """Return a request for a guarded job that runs *body*; other tests may use the same name."""
        own = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]
        attempt = Attempt(f"{name}-{own}.a{number}", str(run_dir / ".jobs" / name), number)
        logs = run_dir / "logs"
        script = (
            f"#!/bin/bash\n#SBATCH --output={logs}/{name}-{number}.out\n#SBATCH --open-mode=append\n"
            f"#SBATCH --time=5\n#SBATCH --mem=100\n{job_prologue(attempt.directory)}{body}\n{job_epilogue()}"
        )
        values: dict[str, Any] = {
            "attempt": attempt,
            "script": script,
            "job_json": {"job": name},
            "claim_token": f"test-{os.urandom(6).hex()}",
            "log_dir": str(logs),
        }
        return SubmissionRequest(**{**values, **changes})


class SshTransport:
    """A transport over one ssh process per command."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        return await asyncio.to_thread(self.cluster.run, script, timeout)

    async def close(self) -> None:
        return None
