"""A local cluster of a benchmark's own, whose Slurm commands are counted."""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).resolve().parents[1] / "docker" / "local_cluster"
CONNECTION = "slurm_benchmark"
SIZE = ("--nodes", "4", "--cpus-per-node", "128", "--memory-mb", "262144", "--gpus-per-node", "0")
COUNTED = ("sbatch", "squeue", "sacct", "scontrol", "scancel")


class CountedCluster:
    """The cluster in *place*.

    :param place: its folder
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bin = place / "counted"
        self._calls = place / "calls"
        self.description: dict[str, Any] = json.loads((place / "cluster.json").read_text())
        self.bin.mkdir(exist_ok=True)
        for name in COUNTED:
            real = shutil.which(name)
            (self.bin / name).write_text(f'#!/bin/sh\necho {name} >>{self._calls}\nexec {real} "$@"\n')
            (self.bin / name).chmod(0o755)

    @property
    def calls(self) -> collections.Counter[str]:
        """Slurm commands so far, by name."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return collections.Counter(text.split())

    @property
    def logins(self) -> int:
        """SSH connections so far."""
        logs = self.place.rglob("sshd.log")
        return sum(log.read_text(errors="replace").count("Accepted publickey") for log in logs)

    @property
    def environment(self) -> dict[str, str]:
        """For processes that talk to it as on its login node, with the counted commands first."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "SLURM_CONF": self.description["slurm_conf"], "PATH": path}

    def airflow_connection(self) -> dict[str, str]:
        """Return the environment variable that makes it known to Airflow's hooks."""
        ssh = self.description["ssh"]
        connection = {
            "conn_type": "ssh",
            "host": ssh["host"],
            "port": ssh["port"],
            "login": ssh["user"],
            "extra": {"key_file": ssh["key_file"], "host_key": ssh["host_key"]},
        }
        return {f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection)}

    def run(self, *argv: str, stdin: str | None = None) -> str:
        """Run a command here, uncounted; return its output."""
        environment = {**os.environ, "SLURM_CONF": self.description["slurm_conf"], "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)[:200]} failed: {done.stderr}")
        return done.stdout

    def submit(self, name: str, count: int, body: str, *options: str) -> list[str]:
        """Submit *count* jobs ``NAME.<number>``; return their ids.

        :param body: shell text, in which ``$number`` is the job's
        """
        words = " ".join(options)
        script = (
            f"cd {self.place} && for number in $(seq {count}); do sbatch --parsable --mem=1 {words} "
            f'--job-name={name}.$number --output=/dev/null --wrap "{body}" || exit; done'
        )
        return self.run("/bin/sh", stdin=script).split()

    def cancel_all(self) -> None:
        """Leave nothing in the queue."""
        self.run("scancel", "--user", self.description["ssh"]["user"])


@contextmanager
def counted_cluster() -> Iterator[CountedCluster]:
    """Start a cluster in a temporary folder; it is deleted afterwards."""
    place = Path(tempfile.mkdtemp(prefix="benchmark-"))

    def control(*words: str) -> None:
        subprocess.run(
            [sys.executable, str(PROGRAM), *words, "--dir", str(place)],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    try:
        control("up", *SIZE)
        cluster = CountedCluster(place)
        yield cluster
        cluster.cancel_all()
    finally:
        control("down", "--purge")
        shutil.rmtree(place, ignore_errors=True)
