"""Alternatives to this project's policy: a person alone, and a loop that resubmits jobs that left the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.simulation.supervisors.manual_checks import next_check
from airflow_megatron.simulation.supervisors.supervisor import Supervisor

if TYPE_CHECKING:
    from airflow_megatron.simulation.site.cluster import SimulatedAttempt
    from airflow_megatron.simulation.supervisors.supervisor import Steps

STUCK_ATTEMPTS: Final = 3
"""Attempts without progress after which a person investigates a job of a relaunch loop. Our choice."""


class ManualSupervisor(Supervisor):
    """A person checks the job every hour of the working day, repairs it if it has stopped, and submits it again."""

    def supervise(self) -> Steps[None]:
        """Follow the job until it has finished."""
        person = self.cluster.site.person
        while not self.training.finished:
            attempt = self.cluster.submit(self.training)
            yield attempt.stopped
            if self.training.finished:
                return
            yield self.wait_until(next_check(person, self.environment.now) + person.reaction_s)
            if attempt.running:
                self.cluster.cancel(attempt)
            assert attempt.ended is not None
            self.record_wait("person", attempt.ended)
            self.repair(attempt)


class RelaunchLoopSupervisor(Supervisor):
    """The loop of SLAMPAI/autoexperiment, as implemented in revision 3093b6b.

    The loop queries squeue for the job at each interval. A job that is not listed has ended, also if squeue fails. The
    loop submits it again at once, without a pause, a budget or excluded nodes. A log that has not grown between two
    queries means that the job hangs. A person intervenes only after several attempts without progress.
    """

    def supervise(self) -> Steps[None]:
        """Follow the job until it has finished."""
        stuck, reached = 0, 0
        while not self.training.finished:
            attempt = yield from self._submit()
            yield from self._until_ended(attempt)
            if attempt.ended is not None:
                self.record_wait("noticing", attempt.ended)
            stuck = stuck + 1 if self.training.tracked <= reached else 0
            reached = max(reached, self.training.tracked)
            if stuck == STUCK_ATTEMPTS:
                self.environment.process(self._person_intervenes(attempt))
            elif stuck > STUCK_ATTEMPTS and not self._called:
                stuck = 0

    _called = False

    def _submit(self) -> Steps[SimulatedAttempt]:
        while self.cluster.services.outage("controller", self.environment.now) is not None:
            yield self.environment.timeout(self.policy.poll_s)
        return self.cluster.submit(self.training)

    def _until_ended(self, attempt: SimulatedAttempt) -> Steps[None]:
        """Wait until the loop regards the attempt as ended."""
        stalled_before = False
        while True:
            yield self.environment.timeout(self.policy.poll_s)
            if self.cluster.services.outage("controller", self.environment.now) is not None:
                return
            if attempt.over.triggered:
                return
            if attempt.stalled and stalled_before:
                self.cluster.cancel(attempt)
                return
            stalled_before = attempt.stalled

    def _person_intervenes(self, attempt: SimulatedAttempt) -> Steps[None]:
        self._called = True
        person = self.cluster.site.person
        yield self.wait_until(next_check(person, self.environment.now) + person.reaction_s)
        self.repair(attempt)
        self._called = False
