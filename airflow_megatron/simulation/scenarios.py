"""Scenarios: one training that takes the whole cluster, and a sweep of small ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from airflow_megatron.simulation.site.site import DAY, HOUR, Site
from airflow_megatron.simulation.site.theory import best_save_interval, failures_per_second
from airflow_megatron.simulation.site.training import TrainingPlan
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from airflow_megatron.simulation.supervisors.policies import Policy

ScenarioName = Literal["training", "sweep"]

ITERATION_S: Final = 10.0
"""Seconds of one iteration. Our choice; only the ratio to the other times matters."""

SAVE_S: Final = 40.0
"""Seconds that a checkpoint takes, as measured for BLOOM-176B (bigscience chronicles)."""

WALLTIME_S: Final = 24 * HOUR
SPARE_SHARE: Final = 0.05
"""Spare nodes for each node of the job; 5 to 10 % is usual (ml-engineering)."""

SWEEP_NODES: Final = 4
SWEEP_HOURS: Final = 12.0
SWEEP_JOBS_PER_NODE: Final = 4
SWEEP_PREEMPTIONS: Final = 10.0
"""Preemptions per 1000 node-days, on shared nodes. Our choice: sites differ widely."""


@dataclass(frozen=True)
class Scenario:
    """A site and its workload.

    :param name: kind of workload.
    :param gpus: number of GPUs that the workload uses, without spares.
    :param site: the cluster.
    :param seconds: length of a run.
    """

    name: ScenarioName
    gpus: int
    site: Site
    seconds: float

    def plans(self, policy: Policy) -> list[TrainingPlan]:
        """Return the jobs; the policy determines the interval between checkpoints."""
        if self.name == "training":
            return [self._plan("training", self.gpus // self.site.gpus_per_node, float("inf"), policy)]
        count = SWEEP_JOBS_PER_NODE * self.gpus // self.site.gpus_per_node
        plan = self._plan("point", SWEEP_NODES, SWEEP_HOURS * HOUR, policy)
        return [replace(plan, name=f"point{number:05d}") for number in range(count)]

    @property
    def at_once(self) -> int:
        """Maximum number of concurrent jobs: as many as fit on the nodes without the spares."""
        nodes = self.gpus // self.site.gpus_per_node
        return nodes // SWEEP_NODES if self.name == "sweep" else 1

    def _plan(self, name: str, nodes: int, seconds: float, policy: Policy) -> TrainingPlan:
        rate = failures_per_second(
            nodes, self.site.incidents_per_1000_node_days + self.site.preemptions_per_1000_node_days
        )
        interval = best_save_interval(SAVE_S, rate) * policy.save_interval_factor if rate else HOUR
        # an unlimited training must only be longer than the run
        seconds = min(seconds, 2 * self.seconds)
        return TrainingPlan(
            name,
            nodes,
            train_iters=round(seconds / ITERATION_S),
            iteration_s=ITERATION_S,
            save_interval=max(1, round(interval / ITERATION_S)),
            save_s=SAVE_S,
            walltime_s=WALLTIME_S,
        )


def scenario(
    name: ScenarioName, gpus: int, *, days: float, rate: float, spares: float = SPARE_SHARE
) -> Scenario:
    """Return a scenario.

    :param name: ``training``: one job on all GPUs; ``sweep``: four jobs per node, of 4 nodes and 12 h each.
    :param gpus: a multiple of 8; for a sweep, a multiple of 32.
    :param days: length of a run.
    :param rate: incidents per 1000 node-days.
    :param spares: spare nodes as a share of the used ones.
    :raises ValueError: if *gpus* is not such a multiple.
    """
    per_node = 8
    least = per_node * (SWEEP_NODES if name == "sweep" else 1)
    if gpus < least or gpus % least:
        raise ValueError(
            f"{counted(gpus, 'GPU does', 'GPUs do')} not fill whole jobs: choose a multiple of {least}"
        )
    nodes = gpus // per_node
    site = Site(
        nodes=nodes + round(nodes * spares),
        gpus_per_node=per_node,
        incidents_per_1000_node_days=rate,
        preemptions_per_1000_node_days=SWEEP_PREEMPTIONS if name == "sweep" else 0.0,
    )
    return Scenario(name, gpus, site, days * DAY)
