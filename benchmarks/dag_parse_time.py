"""Time to parse the DAG files with all shipped specs, beyond importing Airflow: python benchmarks/dag_parse_time.py."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 7

# Airflow and its DAG class first: every DAG file pays for these.
TIMED = """
import runpy, sys, time
from airflow.sdk import DAG
DAG("warm", schedule=None)
began, cpu_began = time.perf_counter(), time.process_time()
dags = {value.dag_id for value in runpy.run_path(sys.argv[1]).values() if isinstance(value, DAG)}
print(time.perf_counter() - began, time.process_time() - cpu_began, len(dags))
"""


def parse_seconds(dag_file: Path) -> tuple[float, float, int]:
    """Return the seconds and CPU seconds that a fresh process takes for a DAG file, and the number of DAGs."""
    answer = subprocess.run(
        [sys.executable, "-c", TIMED, str(dag_file)],
        env={**os.environ, "PYTHONWARNINGS": "ignore", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, cpu_seconds, dags = answer.stdout.split()[-3:]
    return float(seconds), float(cpu_seconds), int(dags)


def main() -> None:
    print("| file | DAGs | median s | slowest s | median CPU s |\n| --- | --- | --- | --- | --- |")
    for dag_file in sorted((ROOT / "dags").glob("*.py")):
        seconds, cpu_seconds, dags = zip(*(parse_seconds(dag_file) for _ in range(RUNS)), strict=True)
        print(
            f"| {dag_file.name} | {dags[0]} | {statistics.median(seconds):.2f} | {max(seconds):.2f} "
            f"| {statistics.median(cpu_seconds):.2f} |"
        )


if __name__ == "__main__":
    main()
