"""A storm over points of a sweep that Airflow works: its daemons are among the victims."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from aftermath import settled
from faults import WEIGHTS, Storm
from patience import deadline_in
from proxied_site import planned_jobs
from sweep_site import ENDED

from airflow_megatron.cli.local.local_airflow import LocalAirflowError

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

SWEEP = "storm_in_airflow"
DAG = f"{SWEEP}.point"
AIRFLOW_WEIGHTS = {**WEIGHTS, "kill_triggerer": 3, "kill_scheduler": 2}
DAEMONS = ("scheduler", "triggerer")
DAEMON_AWAY_S = (1.0, 5.0)
CALM_S = 300
"""How long the runs may go on after the last fault; Airflow waits 20 s before it tries a task again."""


@dataclass
class AirflowStorm(Storm):
    """Strikes Airflow's daemons, too, and starts those that have ended, as a site's supervisor does."""

    def __post_init__(self) -> None:
        self._surroundings = {name: self.site.airflow.daemon(name).environ() for name in DAEMONS}

    def repair(self, *, wait: bool = False) -> None:
        super().repair(wait=wait)
        for name in set(DAEMONS) - self._away:
            if not self.site.airflow.runs(name):
                self.site.airflow.start_daemon(name, self._surroundings[name])

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
            return None  # it ends just now
        self._later(
            name, lambda: self.site.airflow.start_daemon(name, self._surroundings[name]), DAEMON_AWAY_S
        )
        return f"{name}, {'with' if with_children else 'without'} its children"


def work_through(site: ProxiedSite, seed: int, faults: int, per_second: float) -> tuple[list[str], str]:
    """Work the sweep through random faults; return what is wrong afterwards, and what happened.

    :param site: its Airflow runs.
    """
    storm = AirflowStorm(site, random.Random(seed), site.airflow.task_processes, AIRFLOW_WEIGHTS)
    jobs = planned_jobs(site, SWEEP)
    points = list(dict.fromkeys(job.point for job in jobs))
    site.airflow.wait_for_dag(DAG)
    cleared: Counter[str] = Counter()
    for point in points:
        start_run(site, point)
    for _ in range(faults):
        time.sleep(storm.chance.expovariate(per_second))
        storm.strike()
    storm.end()
    deadline = deadline_in(CALM_S)
    while (states := {point: site.airflow.run_state(DAG, point) for point in points}) and set(
        states.values()
    ) != {"success"}:
        for point, state in states.items():
            if state in ENDED and state != "success":
                failed = [
                    task for task, its in site.airflow.task_states(DAG, point).items() if its == "failed"
                ]
                site.airflow.clear(DAG, point, failed, include_downstream=True)
                cleared.update(failed)
        if time.monotonic() > deadline:
            tasks = {
                point: site.airflow.task_states(DAG, point) for point in points if states[point] != "success"
            }
            return [f"{CALM_S} s after the last fault: {tasks}"], told(storm, seed, cleared)
        time.sleep(2)
    return settled(site, jobs), told(storm, seed, cleared)


def start_run(site: ProxiedSite, point: str) -> None:
    """Start a point's run, also while others write to Airflow's database (SQLite), which then refuses for a moment."""
    for attempt in range(10):
        try:
            site.airflow.trigger(DAG, {"point": point}, run_id=point)
            return
        except LocalAirflowError:
            if attempt == 9:
                raise
            time.sleep(1 + attempt)


def told(storm: Storm, seed: int, cleared: Counter[str]) -> str:
    lines = [
        f"seed {seed}, {len(storm.journal)} faults, {cleared.total()} tasks cleared by hand: {dict(cleared)}"
    ]
    return "\n".join([*lines, *map(str, storm.journal)])
