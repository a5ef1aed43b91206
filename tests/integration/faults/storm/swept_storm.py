"""A storm of faults on a sweep that :mod:`task_processes` runs."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from aftermath import settled
from faults import Storm
from patience import deadline_in
from proxied_site import planned_jobs
from worked_sweep import WorkedSweep

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

STANDSTILL_S = 120
"""How long all tasks may stand where they are, after the last fault, before the sweep counts as stuck."""


class SweptStorm:
    """A sweep under random faults; the same seed draws the same faults at the same intervals.

    :param site: its folders, connection and cluster.
    :param seed: of everything random.
    :param faults: how many strike.
    :param points: how many points the sweep has.
    :param per_second: faults, on average.
    :param name: of the sweep; it distinguishes its Slurm jobs from those of other sweeps.
    :param ahead: stages that are queued behind one that runs.
    """

    def __init__(
        self,
        site: ProxiedSite,
        seed: int,
        faults: int,
        points: int,
        per_second: float,
        name: str = "storm",
        ahead: int = 1,
    ) -> None:
        self.site, self.seed = site, seed
        self.faults, self.points, self.per_second = faults, points, per_second
        numbers = list(range(points))
        settings = (f"name={name}", f"sweep.params.number={numbers}", f"ahead={ahead}")
        self.jobs = planned_jobs(site, "storm", *settings)
        self.sweep = WorkedSweep(site, self.jobs)
        self.storm = Storm(site, random.Random(seed), self.sweep.living)

    def run(self) -> list[str]:
        """Run the sweep during the storm and return the violations."""
        with self.sweep:
            try:
                self._strike()
            finally:
                self.storm.end()
            self.sweep.admit(self.points)
            if not self._come_to_an_end():
                waiting = {task: phase for task, phase in self.sweep.phases().items() if phase != "success"}
                return [f"nothing has happened for {STANDSTILL_S} s: {json.dumps(waiting)[:2000]}"]
        by_hand = [
            f"{task}: cleared {times} times; it had said\n{self.sweep.last_words[task]}"
            for task, times in sorted(self.sweep.cleared.items())
        ]
        return by_hand + settled(self.site, self.jobs)

    def _strike(self) -> None:
        for number in range(self.faults):
            # points are admitted during the whole storm, so that faults always have a target
            self.sweep.admit(min(self.points, 4 + number * self.points // round(self.faults * 0.9)))
            time.sleep(self.storm.chance.expovariate(self.per_second))
            self.storm.strike()
            self.sweep.clear_failed()

    def _come_to_an_end(self) -> bool:
        """Wait until all tasks have succeeded; return whether they have."""
        before, deadline = self.sweep.states(), deadline_in(STANDSTILL_S)
        while not self.sweep.has_succeeded and time.monotonic() < deadline:
            self.sweep.clear_failed()
            time.sleep(0.5)
            if (now := self.sweep.states()) != before:
                before, deadline = now, deadline_in(STANDSTILL_S)
        return self.sweep.has_succeeded

    def summary(self) -> str:
        """Return a summary in a few lines."""
        kinds = Counter(fault.kind for fault in self.storm.journal).most_common()
        attempts = sum(len(rows) for rows in self.site.submissions(f"{self.jobs[0].sweep}.").values())
        tries = sum(state["try"] - 1 for state in self.sweep.states().values())
        return (
            f"seed {self.seed}, ahead {self.jobs[0].ahead}: {len(self.storm.journal)} faults over "
            f"{len(self.jobs)} jobs: {attempts} Slurm jobs, "
            f"{tries} tasks tried again, {self.sweep.cleared.total()} cleared by hand; "
            + ", ".join(f"{count} {kind}" for kind, count in kinds)
        )

    def failure_report(self, wrong: list[str]) -> str:
        """Return the violations, and how to reproduce them."""
        return "\n".join([self.summary(), *wrong, "the faults:", *map(str, self.storm.journal)])
