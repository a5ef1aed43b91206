"""Processor time until a job of the trainer can begin its work: python benchmarks/job_start.py.

Each row is the best of five processes that import what the row says, in the trainer's environment.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

from airflow_megatron.spec.documents.project import local_dir

TRIES = 5
ROOT = Path(__file__).resolve().parents[1]
ON_CPU = "from megatron_core_trainer import cpu_device; cpu_device.install(); "
ROWS = {
    "Python alone": "pass",
    "torch": "import torch",
    "torch, unmodified megatron-core": "import megatron.core",
    "torch, megatron-core in this trainer on a CPU": ON_CPU + "import megatron.core",
    "torch, megatron-core, transformers in this trainer on a CPU": ON_CPU
    + "import megatron.core, transformers",
}


def processor_seconds(code: str) -> float:
    """Return the processor time of a process that runs *code*."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "Megatron-LM")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    python = local_dir() / "venv-trainer" / "bin" / "python"
    subprocess.run([python, "-W", "ignore", "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    print("| imports | processor s |")
    print("| --- | --- |")
    for name, code in ROWS.items():
        print(f"| {name} | {min(processor_seconds(code) for _ in range(TRIES)):.1f} |")


if __name__ == "__main__":
    main()
