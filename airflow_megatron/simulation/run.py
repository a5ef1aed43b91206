"""One run: simulate jobs on a site under a policy, with a seed."""

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
    """Outcome of a run.

    :param elapsed: seconds until the last job finished, at most the given length of the run.
    :param used: GPU-hours allocated to jobs.
    :param useful: GPU-hours of iterations that were not repeated.
    :param wasted: the other GPU-hours of *used*, by cause.
    :param waited: GPU-hours in which jobs had no nodes, by cause.
    :param lemon: GPU-hours on lemon nodes.
    :param ettr: effective training time ratio: useful time divided by the time from the start to the end of the jobs,
        waits included.
    :param recoveries: seconds from each incident that stopped a job to the job's next iteration.
    :param failures: number of attempts that incidents ended.
    :param attempts: number of attempts that Slurm started.
    :param interventions: number of interventions by a person.
    :param quarantines: number of checkpoints that were quarantined.
    :param false_alarms: number of jobs that were cancelled as hung although they were not.
    :param overlaps: number of attempts that started while another attempt of the same job ran.
    :param incidents: number of incidents that affected a job, by kind.
    :param finished: number of jobs that reached their last iteration.
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
        """Useful share of the allocated GPU-hours."""
        return self.useful / self.used if self.used else 0.0

    @property
    def mttf_hours(self) -> float:
        """Mean time until an incident stops the job, in hours; infinite if none did.

        Only meaningful for a run with one job, because several jobs run concurrently.
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
    :param plans: the jobs; their names must differ.
    :param policy: the policy that supervises the jobs.
    :param seed: seed of all random numbers.
    :param seconds: maximum length of the run.
    :param at_once: maximum number of concurrent jobs (a spec's ``max_active_points``); default: no limit.
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
    wanted = sum(_required_seconds(training, environment.now) for training in trainings)
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


def _required_seconds(training: Training, now: float) -> float:
    """Return the node-seconds from the start of a job to its end, or to *now* if it has not finished."""
    if training.begun is None:
        return 0.0
    return ((training.done or now) - training.begun) * training.plan.nodes
