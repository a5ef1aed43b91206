"""Measure one loop of Airflow's scheduler while many jobs are watched: python benchmarks/scheduler_loop.py [POINTS …].

The point DAG of a small sweep in a SQLite database of its own; each run is in progress, and one of its tasks is
deferred to the triggerer. Processor time and database queries of ``_do_scheduling``, median of LOOPS loops, of this
process alone. There is no executor: no task is started.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from launching import NAME, sweep_of

from airflow_megatron.spec.documents.project import project_folder

POINTS = (1000, 5000)
LOOPS = 9
FINISHED = ("resolve", "pretrain.submit")
DEFERRED = "pretrain.watch"
DAG = f"{NAME}.point"


def add_runs(number: int) -> None:
    """Make runs in progress up to a number: the first one by Airflow, the others as copies of its rows."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import func, insert, select, update

    with create_session() as session:
        if not session.scalar(select(func.count(DagRun.id)).where(DagRun.dag_id == DAG)):
            trigger_dag(DAG, run_id="p0", triggered_by=DagRunTriggeredByType.TEST, session=session)
    with create_session() as session:
        session.execute(update(DagRun).values(state="running", start_date=func.now()))
        states = {**dict.fromkeys(FINISHED, "success"), DEFERRED: "deferred"}
        for task, state in states.items():
            session.execute(update(TaskInstance).where(TaskInstance.task_id == task).values(state=state))
        run = session.execute(select(DagRun.__table__).where(DagRun.run_id == "p0")).mappings().one()
        tasks = (
            session.execute(select(TaskInstance.__table__).where(TaskInstance.run_id == "p0"))
            .mappings()
            .all()
        )
        begun = session.scalar(select(func.count(DagRun.id)).where(DagRun.dag_id == DAG)) or 0
        names = [f"p{one}" for one in range(begun, number)]
        if names:
            own = {key: value for key, value in run.items() if key != "id"}
            session.execute(insert(DagRun.__table__), [{**own, "run_id": name} for name in names])
            rows = [{**task, "run_id": name, "id": uuid.uuid4()} for name in names for task in tasks]
            session.execute(insert(TaskInstance.__table__), rows)


def loops() -> tuple[float, float]:
    """Return median processor milliseconds and database queries of a loop."""
    from airflow import settings
    from airflow.executors.base_executor import BaseExecutor
    from airflow.executors.executor_loader import ExecutorLoader
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.utils.session import create_session
    from sqlalchemy import event

    executor = BaseExecutor()
    executor.name = ExecutorLoader.get_default_executor_name()
    job = Job()
    runner = SchedulerJobRunner(job=job)
    runner.executors = job.executors = [executor]
    with create_session() as session:
        session.add(job)
    queries: list[float] = []
    event.listen(settings.engine, "before_cursor_execute", lambda *_: queries.append(time.process_time()))
    spent, asked = [], []
    for _ in range(LOOPS):
        queries.clear()
        began = time.process_time()
        with create_session() as session:
            runner._do_scheduling(session)
        spent.append(1000 * (time.process_time() - began))
        asked.append(len(queries))
    return statistics.median(spent), statistics.median(asked)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder, "sweep_specs")
        specs.mkdir()
        (specs / f"{NAME}.yaml").write_text(sweep_of(10))
        os.environ |= {
            "AIRFLOW_HOME": folder,
            "AIRFLOW_MEGATRON_LOCAL": folder,
            "AIRFLOW_MEGATRON_SWEEP_SPECS": str(specs),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(project_folder("dags")),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        for words in (("db", "migrate"), ("dags", "reserialize")):
            command = [sys.executable, "-m", "airflow", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("| deferred tasks | processor ms per loop | queries per loop |\n| --- | --- | --- |")
        for points in [int(word) for word in sys.argv[1:]] or POINTS:
            add_runs(points)
            spent, asked = loops()
            print(f"| {points} | {spent:.0f} | {asked:.0f} |", flush=True)


if __name__ == "__main__":
    main()
