"""One run: a site, jobs, a policy and a seed give an outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import simpy

from airflow_megatron.simulation.site.cluster import SimulatedCluster
from airflow_megatron.simulation.site.incidents import stream
from airflow_megatron.simulation.site.ledger import Ledger
from airflow_megatron.simulation.site.site import HOUR
from airflow_megatron.simulation.site.training import Training
from airflow_megatron.simulation.supervisors.baseline_supervisors import (
    ManualSupervisor,
    RelaunchLoopSupervisor,
)
from airflow_megatron.simulation.supervisors.project_supervisor import ProjectSupervisor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.simulation.site.site import Site
    from airflow_megatron.simulation.site.training import TrainingPlan
    from airflow_megatron.simulation.supervisors.policies import Policy, SupervisorName
    from airflow_megatron.simulation.supervisors.supervisor import Supervisor

_SUPERVISORS: Final[Mapping[SupervisorName, type[Supervisor]]] = {
    "project": ProjectSupervisor,
    "by hand": ManualSupervisor,
    "relaunch loop": RelaunchLoopSupervisor,
}


@dataclass(frozen=True)
class SimulationOutcome:
    """What came of a run; hours are GPU-hours.

    :param elapsed: seconds of the run: until the last job was done, at most the time given.
    :param used: held by jobs.
    :param useful: of iterations that were not done again.
    :param wasted: the rest of *used*, by cause.
    :param waited: GPU-hours of jobs that stood without nodes, by what they waited for.
    :param lemon: held on lemon nodes.
    :param ettr: effective training time ratio: useful time over the time that the jobs were to run, waits included.
    :param recoveries: seconds from each incident that stopped a job to its next iteration.
    :param failures: attempts that incidents ended.
    :param attempts: that Slurm started.
    :param interventions: of people.
    :param false_alarms: jobs cancelled as hung that were not.
    :param overlaps: attempts that began while another of the same job ran.
    :param incidents: that struck a job, by kind.
    :param finished: jobs that reached their last iteration.
    """

    elapsed: float
    used: float
    useful: float
    wasted: Mapping[str, float]
    waited: Mapping[str, float]
    lemon: float
    ettr: float
    recoveries: Sequence[float]
    failures: int
    attempts: int
    interventions: int
    quarantines: int
    false_alarms: int
    overlaps: int
    incidents: Mapping[str, int]
    finished: int

    @property
    def goodput(self) -> float:
        """Useful share of the GPU-hours held."""
        return self.useful / self.used if self.used else 0.0

    @property
    def mttf_hours(self) -> float:
        """Mean time that one job runs until an incident stops it, in hours; infinite when none did.

        Only meaningful for a single job: attempts of several jobs run side by side.
        """
        return (self.elapsed / HOUR) / self.failures if self.failures else float("inf")


def simulate(
    site: Site,
    plans: Sequence[TrainingPlan],
    policy: Policy,
    seed: int,
    seconds: float,
    *,
    at_once: int | None = None,
) -> SimulationOutcome:
    """Run jobs on a site under a policy.

    :param site: the cluster.
    :param plans: the jobs, with names that differ.
    :param policy: how they are looked after.
    :param seed: of all that happens by chance.
    :param seconds: after which the run ends, jobs done or not.
    :param at_once: jobs that are followed at the same time (a spec's ``max_active_points``); None: all.
    """
    if len({plan.name for plan in plans}) != len(plans):
        raise ValueError("two jobs of a run have the same name")
    environment, ledger = simpy.Environment(), Ledger()
    cluster = SimulatedCluster(environment, site, seed, seconds, ledger)
    trainings = [
        Training(plan, ledger, site.damaged_checkpoints, stream(seed, "job", f"{plan.name}/checkpoints"))
        for plan in plans
    ]
    supervisors = [_SUPERVISORS[policy.supervisor](cluster, training, policy, seed) for training in trainings]
    slots = simpy.Resource(environment, at_once or len(plans))
    all_done = environment.all_of(
        [environment.process(supervisor.supervise_in_turn(slots)) for supervisor in supervisors]
    )
    environment.run(until=environment.any_of([all_done, environment.timeout(seconds)]))
    cluster.settle()
    for training in trainings:
        ledger.useful += training.tracked * training.plan.iteration_s * training.plan.nodes
    hours = site.gpus_per_node / HOUR
    wanted = sum(_wanted_seconds(training, environment.now) for training in trainings)
    return SimulationOutcome(
        elapsed=environment.now,
        used=ledger.used * hours,
        useful=ledger.useful * hours,
        wasted={cause: value * hours for cause, value in sorted(ledger.wasted.items())},
        waited={cause: value * hours for cause, value in sorted(ledger.waited.items())},
        lemon=ledger.lemon * hours,
        ettr=ledger.useful / wanted if wanted else 0.0,
        recoveries=ledger.recoveries,
        failures=ledger.failures,
        attempts=ledger.attempts,
        interventions=ledger.interventions,
        quarantines=ledger.quarantines,
        false_alarms=ledger.false_alarms,
        overlaps=ledger.overlaps,
        incidents=dict(sorted(ledger.incidents.items())),
        finished=sum(training.finished for training in trainings),
    )


def _wanted_seconds(training: Training, now: float) -> float:
    """Return the node-seconds in which a job was to run."""
    if training.begun is None:
        return 0.0
    return ((training.done or now) - training.begun) * training.plan.nodes
