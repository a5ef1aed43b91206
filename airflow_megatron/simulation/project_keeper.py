"""The project's way to follow a job: the code that its operators and triggers run, on simulated observations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_megatron.megatron.checkpoints import checkpoint_verdict
from airflow_megatron.planning.event_watch import EventWatch
from airflow_megatron.simulation.incidents import stream
from airflow_megatron.simulation.keeper import Keeper
from airflow_megatron.simulation.observations import observe
from airflow_megatron.simulation.person import answer_to_alarm, next_look
from airflow_megatron.slurm.quarantine import NoQuarantine, decide
from airflow_megatron.slurm.restarts import Done, Restart, next_step
from airflow_megatron.slurm.verdict import Expectation, Outcome, Verdict, judge
from airflow_megatron.spec.conditions import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

    import simpy

    from airflow_megatron.simulation.cluster import Attempt, Cluster
    from airflow_megatron.simulation.keeper import Steps
    from airflow_megatron.simulation.policies import Policy
    from airflow_megatron.simulation.training import Training


class ProjectKeeper(Keeper):
    """Does what ``SlurmWatchOperator`` and its trigger do, and decides nothing itself.

    The verdict is :func:`~airflow_megatron.slurm.verdict.judge`'s, the next step
    :func:`~airflow_megatron.slurm.restarts.next_step`'s, a hang is what
    :class:`~airflow_megatron.planning.event_watch.EventWatch` calls one, and
    :func:`~airflow_megatron.slurm.quarantine.decide` says which checkpoint is set aside. Polls in which nothing
    can have changed are left out. The submission protocol is a script for a login node; what it does about a lost
    answer is modelled here.
    """

    def __init__(self, cluster: Cluster, training: Training, policy: Policy, seed: int) -> None:
        super().__init__(cluster, training, policy, seed)
        self._expectation = Expectation("train", training.plan.train_iters, complete=self._is_complete)
        self._first_poll = stream(seed, "job", "poller").uniform(0, policy.poll_s)
        self._events = (
            [Event("hang", "idle", "restart", after=policy.idle_s)] if policy.idle_s is not None else []
        )

    def keep(self) -> Steps[None]:
        """Follow the job until it is done."""
        history: list[Verdict] = []
        excluded: tuple[str, ...] = ()
        while True:
            attempt = yield from self._submit(excluded)
            yield from self._wait_for_nodes(attempt)
            verdict = yield from self._watch(attempt)
            since = self.environment.now
            if attempt.ended is not None:
                self.book_wait("noticing", attempt.ended)
            step = next_step(history, verdict, self.policy.restart) if verdict else None
            if verdict is not None and isinstance(step, Done):
                return
            if verdict is not None and isinstance(step, Restart) and self._can_resume(verdict):
                history.append(verdict)
                excluded = step.exclude_nodes
                yield self.environment.timeout(step.delay_s)
                self.book_wait("pause", since)
                continue
            if verdict is not None:  # else a person is at it already
                yield self.wait_until(answer_to_alarm(self.cluster.site.person, since))
                self.book_wait("person", since)
            self.mend(attempt)
            history, excluded = [], ()

    def _submit(self, excluded: tuple[str, ...]) -> Steps[Attempt]:
        """Submit exactly once, however long that takes."""
        since, site, services = self.environment.now, self.cluster.site, self.cluster.services
        yield self.environment.timeout(site.airflow_s)
        while True:
            now = self.environment.now
            outage = services.outage("login", now) or services.outage("controller", now)
            if outage is None:
                break
            yield self.wait_until(outage.end + self.policy.poll_s)
        if self._luck.random() < site.ambiguous_sbatch and self._luck.random() < 0.5:
            # not accepted: that is certain when the job has not shown for the whole window
            yield self.environment.timeout(site.visibility_window_s)
        self.book_wait("submission", since)
        return self.cluster.submit(self.training, excluded)

    def _wait_for_nodes(self, attempt: Attempt) -> Steps[None]:
        """Wait for the start; a person who sees that excluded nodes alone prevent it lets the job have them."""
        person = self.cluster.site.person
        while not attempt.began.triggered:
            look = self.wait_until(next_look(person, self.environment.now) + person.reaction_s)
            yield attempt.began | look
            if not attempt.began.triggered and self.cluster.kept_out(attempt):
                self.cluster.ledger.interventions += 1
                self.cluster.lift_exclusion(attempt)

    def _watch(self, attempt: Attempt) -> Steps[Verdict | None]:
        """Return the verdict on an attempt, None when a person has taken over."""
        events = EventWatch(self._events)
        while True:
            progressed = not self._is_quiet(attempt)
            if progressed:
                yield attempt.stopped
                if self.policy.idle_s is None and attempt.running:
                    yield from self._person_finds_hang(attempt)
                    if attempt.cancelled_by_person:
                        return None
            yield self._next_poll()
            observation = observe(self.cluster, attempt)
            verdict = judge(observation, self._expectation, log_tail=attempt.log)
            if verdict.outcome.is_verdict:
                return verdict
            for seen in events.read(observation, progressed=progressed):
                events.count(seen.event)
                self.cluster.ledger.false_alarms += not attempt.stalled
                self.cluster.cancel(attempt)
                return Verdict(Outcome.RETRYABLE, seen.reason, job_id=attempt.job_id)

    def _is_quiet(self, attempt: Attempt) -> bool:
        """Whether the next polls could find something: the attempt has ended, hangs, or takes long to start."""
        idle = self.policy.idle_s
        starting = attempt.starting and idle is not None and attempt.startup_s > idle
        return attempt.stopped.triggered or starting

    def _next_poll(self) -> simpy.Event:
        passed = (self.environment.now - self._first_poll) / self.policy.poll_s
        return self.wait_until(self._first_poll + (math.floor(passed + 1e-9) + 1) * self.policy.poll_s)

    def _person_finds_hang(self, attempt: Attempt) -> Steps[None]:
        person = self.cluster.site.person
        look = self.wait_until(next_look(person, self.environment.now) + person.reaction_s)
        yield attempt.over | look
        if attempt.running:
            attempt.cancelled_by_person = True
            self.cluster.cancel(attempt)

    def _can_resume(self, verdict: Verdict) -> bool:
        """Set a damaged checkpoint aside; return False when that cannot be done and is needed."""
        if not self.policy.quarantine:
            return True
        training = self.training
        step = decide(
            training.verdicts(),
            tracked=training.tracked or None,
            damaged=verdict.damaged_iteration,
            quarantined=training.quarantined,
        )
        if isinstance(step, NoQuarantine):
            return not step.hopeless
        training.roll_back(step.back_to)
        training.quarantined += 1
        self.cluster.ledger.quarantines += 1
        return True

    def _is_complete(self, files: Mapping[str, int]) -> bool:
        iteration = self.training.plan.train_iters
        return checkpoint_verdict(files, iteration=iteration, tracked=iteration).is_complete
