"""A storm of faults while Airflow runs the points of a sweep; its daemons are killed, too."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
from aftermath import settled
from faults import WEIGHTS, Storm
from patience import deadline_in
from proxied_site import planned_jobs
from sweep_site import ENDED

from airflow_megatron.cli.local.local_airflow import LocalAirflowError
from airflow_megatron.spec.model.dag_names import point_dag_id

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

SWEEP = "storm_in_airflow"
AIRFLOW_WEIGHTS = {**WEIGHTS, "kill_triggerer": 3, "kill_scheduler": 2}
DAEMON_AWAY_S = (1.0, 5.0)
CALM_S = 300
"""How long the runs may go on after the last fault; Airflow waits 20 s before it tries a task again."""


@dataclass
class AirflowStorm(Storm):
    """Also kills Airflow's daemons, and restarts ended ones as a supervisor does."""

    weights: dict[str, int] = field(default_factory=lambda: dict(AIRFLOW_WEIGHTS))

    def __post_init__(self) -> None:
        airflow = self.site.airflow
        self._environments = {name: airflow.daemon(name).environ() for name in airflow.daemons}

    def repair(self, *, wait: bool = False) -> None:
        super().repair(wait=wait)
        for name in set(self.site.airflow.daemons) - self._away:
            if not self.site.airflow.runs(name):
                self.site.airflow.start_daemon(name, self._environments[name])

    def kill_triggerer(self) -> str | None:
        return self._airflow("triggerer")

    def kill_scheduler(self) -> str | None:
        return self._airflow("scheduler")

    def _airflow(self, name: str) -> str | None:
        if name in self._away:
            return None
        with_children = self.chance.random() < 0.5
        try:
            self.site.airflow.kill_daemon(name, with_children=with_children)
        except psutil.NoSuchProcess:
            return None  # it is ending
        self._later(
            name, lambda: self.site.airflow.start_daemon(name, self._environments[name]), DAEMON_AWAY_S
        )
        return f"{name}, {'with' if with_children else 'without'} its children"


def work_through(
    site: ProxiedSite,
    seed: int,
    faults: int,
    per_second: float,
    kind: type[AirflowStorm] = AirflowStorm,
    sweep: str = SWEEP,
) -> tuple[list[str], str]:
    """Run the sweep under random faults; return the violations and a summary.

    :param site: a site with a running Airflow
    :param kind: class of the storm
    :param sweep: name of the sweep
    """
    dag_id = point_dag_id(sweep)
    storm = kind(site, random.Random(seed), site.airflow.task_processes)
    jobs = planned_jobs(site, sweep)
    points = list(dict.fromkeys(job.point for job in jobs))
    site.airflow.wait_for_dag(dag_id)
    cleared: Counter[str] = Counter()
    for point in points:
        start_run(site, dag_id, point)
    for _ in range(faults):
        time.sleep(storm.chance.expovariate(per_second))
        storm.strike()
    storm.end()
    deadline = deadline_in(CALM_S)
    while (states := {point: site.airflow.run_state(dag_id, point) for point in points}) and set(
        states.values()
    ) != {"success"}:
        for point, state in states.items():
            if state in ENDED and state != "success":
                failed = [
                    task for task, its in site.airflow.task_states(dag_id, point).items() if its == "failed"
                ]
                site.airflow.clear(dag_id, point, failed, include_downstream=True)
                cleared.update(failed)
        if time.monotonic() > deadline:
            tasks = {
                point: site.airflow.task_states(dag_id, point)
                for point in points
                if states[point] != "success"
            }
            return [f"{CALM_S} s after the last fault: {tasks}"], summary(storm, seed, cleared)
        time.sleep(2)
    return settled(site, jobs), summary(storm, seed, cleared)


def start_run(site: ProxiedSite, dag_id: str, point: str) -> None:
    """Start the run of a point; retry while Airflow's database (SQLite) is locked by other writers."""
    for attempt in range(10):
        try:
            site.airflow.trigger(dag_id, {"point": point}, run_id=point)
            return
        except LocalAirflowError:
            if attempt == 9:
                raise
            time.sleep(1 + attempt)


def summary(storm: Storm, seed: int, cleared: Counter[str]) -> str:
    lines = [
        f"seed {seed}, {len(storm.journal)} faults, {cleared.total()} tasks cleared by hand: {dict(cleared)}"
    ]
    return "\n".join([*lines, *map(str, storm.journal)])
