"""Base class of supervisors, which follow a simulated job through its attempts until it has finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.simulation.site.incidents import stream

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TypeAlias, TypeVar

    import simpy

    from airflow_megatron.simulation.site.cluster import SimulatedAttempt, SimulatedCluster
    from airflow_megatron.simulation.site.ledger import Wait
    from airflow_megatron.simulation.site.training import Training
    from airflow_megatron.simulation.supervisors.policies import Policy

    ValueT = TypeVar("ValueT")
    Steps: TypeAlias = Generator[simpy.Event, Any, ValueT]


class Supervisor:
    """Base class of supervisors.

    :param cluster: the cluster on which the job runs.
    :param training: the job.
    :param policy: the policy.
    :param seed: seed of lost answers of submissions.
    """

    def __init__(self, cluster: SimulatedCluster, training: Training, policy: Policy, seed: int) -> None:
        self.cluster, self.training, self.policy = cluster, training, policy
        self.environment = cluster.environment
        self._luck = stream(seed, "job", f"{training.plan.name}/submissions")

    def supervise(self) -> Steps[None]:
        """Follow the job until it has finished."""
        raise NotImplementedError

    def supervise_in_turn(self, slots: simpy.Resource) -> Steps[None]:
        """Wait for one of *slots*, then follow the job until it has finished."""
        with slots.request() as slot:
            yield slot
            self.training.begun = self.training.held_until = self.environment.now
            yield from self.supervise()
            self.training.done = self.environment.now

    def record_wait(self, cause: Wait, since: float) -> None:
        """Record the time from *since* until now as a wait without nodes."""
        self.cluster.ledger.waited[cause] += (self.environment.now - since) * self.training.plan.nodes

    def wait_until(self, time: float) -> simpy.Event:
        """Return an event at *time*."""
        return self.environment.timeout(max(0.0, time - self.environment.now))

    def repair(self, attempt: SimulatedAttempt) -> None:
        """Intervene as a person: fix the bug, move the tracker back to an intact checkpoint, and send faulty nodes of
        the last attempt to repair.
        """
        self.cluster.ledger.interventions += 1
        training = self.training
        training.bug_at = None
        training.quarantined = 0
        if training.damaged:
            whole = [number for number, damaged in training.checkpoints.items() if not damaged]
            training.roll_back(max(whole, default=None))
        for node in self.cluster.faulty_nodes(attempt):
            self.cluster.drain(node)
