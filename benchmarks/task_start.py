"""Processor time until a task of a sweep has its DAG, beyond importing Airflow: python benchmarks/task_start.py.

A process that has imported Airflow forks once for each measurement, as an executor's worker does for each task; the
child reads ``dags/sweeps.py`` as Airflow's task runner does. 25 specs lie in the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPECS = 25
TASKS = {"sweep7": "plan", "sweep7.point": "pretrain.watch"}
RUNS = 7

FORKS = """
import gc, json, os, runpy, sys, time
import airflow.dag_processing.dagbag, airflow.sdk.execution_time.supervisor, airflow.sdk.execution_time.task_runner
from airflow.sdk import DAG, BaseOperator, Param, TaskGroup
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

DAG("warm", schedule=None)
if sys.argv[5] == "preloaded":
    from airflow_megatron.ui.preloading import preload

    preload("scheduler")
known = set(sys.modules)
for run in range(int(sys.argv[4])):
    read, write = os.pipe()
    gc.freeze()
    if os.fork() == 0:
        before = time.process_time()
        with _airflow_parsing_context_manager(dag_id=sys.argv[2], task_id=sys.argv[3]):
            values = runpy.run_path(sys.argv[1]).values()
        seconds = time.process_time() - before
        modules = [name for name in sys.modules if name.startswith("airflow_megatron") and name not in known]
        dags = sorted({value.dag_id for value in values if isinstance(value, DAG)})
        with open(write, "w") as answer:
            json.dump({"seconds": seconds, "dags": dags, "modules": modules}, answer)
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        print(answer.read())
    os.wait()
"""


def write_specs(folder: Path) -> None:
    """Write the quick start's sweep under 25 names."""
    text = (ROOT / "sweep_specs" / "quickstart.yaml").read_text(encoding="utf-8")
    for number in range(SPECS):
        named = text.replace("name: quickstart", f"name: sweep{number}", 1)
        (folder / f"sweep{number}.yaml").write_text(named, encoding="utf-8")


def starts(
    specs: Path, state: Path, dag_id: str, task_id: str, runs: int = RUNS, *, preloaded: bool = False
) -> list[dict[str, Any]]:
    """Return what each start of a task took: ``seconds`` of processor time, ``dags``, imported ``modules``.

    :param specs: folder of specs; a first start, which is left out, fills the cache
    :param state: folder for the cache
    :param preloaded: the process that forks is a LocalExecutor's worker, which has imported what tasks need
    """
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(state / "airflow"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_MEGATRON_LOCAL": str(state / "local"),
        "AIRFLOW_MEGATRON_SWEEP_SPECS": str(specs),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, "-c", FORKS, str(ROOT / "dags" / "sweeps.py"), dag_id, task_id, str(runs + 1)]
    words.append("preloaded" if preloaded else "plain")
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')][1:]


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        specs, state = Path(temporary, "specs"), Path(temporary, "state")
        specs.mkdir()
        write_specs(specs)
        print(
            "| task | best CPU s | modules | LocalExecutor, CPU s | modules |\n| --- | --- | --- | --- | --- |"
        )
        for dag_id, task_id in TASKS.items():
            cells = []
            for preloaded in (False, True):
                of_task = starts(specs, state, dag_id, task_id, preloaded=preloaded)
                best = min(of_task, key=lambda start: start["seconds"])
                cells += [f"{best['seconds']:.2f}", str(len(best["modules"]))]
            print(f"| {task_id} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
