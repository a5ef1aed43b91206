"""Alternatives to this project's policy: a person alone, and a loop that submits what has left the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.simulation.supervisors.manual_checks import next_look
from airflow_megatron.simulation.supervisors.supervisor import Supervisor

if TYPE_CHECKING:
    from airflow_megatron.simulation.site.cluster import SimulatedAttempt
    from airflow_megatron.simulation.supervisors.supervisor import Steps

STUCK_ATTEMPTS: Final = 3
"""After so many attempts without progress a person looks into a job that a loop goes on to submit. Our choice."""


class ManualSupervisor(Supervisor):
    """A person looks every hour of the working day, cleans up what stands still, and submits it again."""

    def supervise(self) -> Steps[None]:
        """Follow the job until it is done."""
        person = self.cluster.site.person
        while not self.training.finished:
            attempt = self.cluster.submit(self.training)
            yield attempt.stopped
            if self.training.finished:
                return
            yield self.wait_until(next_look(person, self.environment.now) + person.reaction_s)
            if attempt.running:
                self.cluster.cancel(attempt)
            assert attempt.ended is not None
            self.book_wait("person", attempt.ended)
            self.repair(attempt)


class RelaunchLoopSupervisor(Supervisor):
    """SLAMPAI/autoexperiment's loop, as its code is (revision 3093b6b).

    Each interval it asks squeue for the job. What is not there, or an squeue that fails, means "ended": it submits
    again at once, without pause, budget or excluded nodes. A log that has not grown between two looks means "hangs".
    A person comes only when a job has come no further in several attempts.
    """

    def supervise(self) -> Steps[None]:
        """Follow the job until it is done."""
        stuck, reached = 0, 0
        while not self.training.finished:
            attempt = yield from self._submit()
            yield from self._until_gone(attempt)
            if attempt.ended is not None:
                self.book_wait("noticing", attempt.ended)
            stuck = stuck + 1 if self.training.tracked <= reached else 0
            reached = max(reached, self.training.tracked)
            if stuck == STUCK_ATTEMPTS:
                self.environment.process(self._person_comes(attempt))
            elif stuck > STUCK_ATTEMPTS and not self._called:
                stuck = 0

    _called = False

    def _submit(self) -> Steps[SimulatedAttempt]:
        while self.cluster.services.outage("controller", self.environment.now) is not None:
            yield self.environment.timeout(self.policy.poll_s)
        return self.cluster.submit(self.training)

    def _until_gone(self, attempt: SimulatedAttempt) -> Steps[None]:
        """Return when the loop takes the attempt for ended."""
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

    def _person_comes(self, attempt: SimulatedAttempt) -> Steps[None]:
        self._called = True
        person = self.cluster.site.person
        yield self.wait_until(next_look(person, self.environment.now) + person.reaction_s)
        self.repair(attempt)
        self._called = False
