"""The program of the local Slurm cluster, ``docker/local_cluster``."""

from __future__ import annotations

import subprocess
import sys

from airflow_megatron.spec.documents.project import local_dir, project_folder


def run_local_cluster(command: str, *options: str, quiet: bool = False) -> int:
    """Run a command of that program for the cluster of this machine; return the exit status."""
    words = [sys.executable, str(project_folder("docker") / "local_cluster"), command, *options]
    if command != "install":
        words += ["--dir", str(local_dir() / "cluster")]
    sys.stdout.flush()  # what was printed before, also into a pipe
    sink = subprocess.DEVNULL if quiet else None
    return subprocess.run(words, stdout=sink, stderr=sink, check=False).returncode
