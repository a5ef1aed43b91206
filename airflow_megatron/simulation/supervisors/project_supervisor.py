"""Supervisor that runs the code of this project's operators and triggers on simulated observations."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.checkpoints.completeness import checkpoint_verdict
from airflow_megatron.simulation.site.incidents import stream
from airflow_megatron.simulation.site.observations import observe
from airflow_megatron.simulation.site.training import directory
from airflow_megatron.simulation.supervisors.manual_checks import next_check, reaction_to_alarm
from airflow_megatron.simulation.supervisors.supervisor import Supervisor
from airflow_megatron.slurm.repair.quarantine import NoQuarantine, decide
from airflow_megatron.slurm.repair.rollback import RollbackError, choose_rollback
from airflow_megatron.slurm.submission.allocation import choose_allocation
from airflow_megatron.slurm.verdicts.missing_job import MissingJob
from airflow_megatron.slurm.verdicts.restarts import (
    Done,
    Restart,
    excluded_nodes,
)
from airflow_megatron.slurm.verdicts.verdict import Expectation
from airflow_megatron.spec.model.conditions import Event
from airflow_megatron.supervision.attempt_follower import AttemptFollower
from airflow_megatron.supervision.attempt_preparation import LONGEST_ANSWER
from airflow_megatron.supervision.event_watch import EventWatch
from airflow_megatron.supervision.next_steps import concluded, while_running

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import simpy

    from airflow_megatron.simulation.site.cluster import SimulatedAttempt, SimulatedCluster
    from airflow_megatron.simulation.site.training import Training
    from airflow_megatron.simulation.supervisors.policies import Policy
    from airflow_megatron.simulation.supervisors.supervisor import Steps
    from airflow_megatron.slurm.verdicts.verdict import Verdict

_SINFO_LINE: Final = len("batch* n00001 allocated\n")
"""Bytes that sinfo prints for a node; a list that is longer than the limit of the poll is unknown."""


class ProjectSupervisor(Supervisor):
    """Does the work of ``SlurmWatchOperator`` and its trigger; all decisions are made by the product's code.

    - Verdict: :class:`~airflow_megatron.supervision.attempt_follower.AttemptFollower`
    - Next step: :func:`~airflow_megatron.supervision.next_steps.concluded`
    - Detection of hangs: :class:`~airflow_megatron.supervision.event_watch.EventWatch`
    - Quarantine of checkpoints: :func:`~airflow_megatron.slurm.repair.quarantine.decide`
    - Rollback: :func:`~airflow_megatron.slurm.repair.rollback.choose_rollback`
    - Excluded nodes: :func:`~airflow_megatron.slurm.submission.allocation.choose_allocation`

    Polls that cannot observe a change are skipped. The submission protocol is a script for a login node; its handling
    of lost answers is modelled here.
    """

    def __init__(self, cluster: SimulatedCluster, training: Training, policy: Policy, seed: int) -> None:
        super().__init__(cluster, training, policy, seed)
        self._expectation = Expectation("train", training.plan.train_iters, complete=self._is_complete)
        self._first_poll = stream(seed, "job", "poller").uniform(0, policy.poll_s)
        self._verdicts: list[Verdict] = []
        self._events = (
            [Event("hang", "idle", "restart", after=policy.idle_s)] if policy.idle_s is not None else []
        )

    def supervise(self) -> Steps[None]:
        """Follow the job until it has finished."""
        series: list[Verdict] = []
        excluded: tuple[str, ...] = ()
        while True:
            attempt = yield from self._submit(excluded)
            yield from self._wait_for_nodes(attempt)
            began_at = self.training.tracked
            verdict = yield from self._watch(attempt)
            since = self.environment.now
            if attempt.ended is not None:
                self.record_wait("noticing", attempt.ended)
            if verdict is not None:
                verdict, step = concluded(
                    verdict,
                    series,
                    self.policy.restart,
                    now=since,
                    tracker=str(self.training.tracked or ""),
                    trains=True,
                )
                if isinstance(step, Done):
                    return
                series.append(verdict)
                self._verdicts.append(verdict)
                if isinstance(step, Restart) and self._prepare_checkpoint(series, began_at):
                    yield self.environment.timeout(step.delay_s)
                    self.record_wait("pause", since)
                    excluded = self._excluded()
                    continue
                yield self.wait_until(reaction_to_alarm(self.cluster.site.person, since))
                self.record_wait("person", since)
            # without a verdict, a person has taken over
            self.repair(attempt)
            series = []
            excluded = self._excluded()

    def _submit(self, excluded: tuple[str, ...]) -> Steps[SimulatedAttempt]:
        """Submit exactly once; wait until outages end."""
        since, site, services = self.environment.now, self.cluster.site, self.cluster.services
        yield self.environment.timeout(site.airflow_s)
        while True:
            now = self.environment.now
            outage = services.outage("login", now) or services.outage("controller", now)
            if outage is None:
                break
            yield self.wait_until(outage.end + self.policy.poll_s)
        if self._luck.random() < site.ambiguous_sbatch and self._luck.random() < 0.5:
            # not accepted: this is certain if the job does not become visible within the window
            yield self.environment.timeout(site.visibility_window_s)
        self.record_wait("submission", since)
        return self.cluster.submit(self.training, excluded)

    def _wait_for_nodes(self, attempt: SimulatedAttempt) -> Steps[None]:
        """Wait until the job starts; if only its excluded nodes prevent that, a person removes the exclusion."""
        person = self.cluster.site.person
        while not attempt.began.triggered:
            check = self.wait_until(next_check(person, self.environment.now) + person.reaction_s)
            yield attempt.began | check
            if not attempt.began.triggered and self.cluster.waits_for_excluded_nodes(attempt):
                self.cluster.ledger.interventions += 1
                self.cluster.lift_exclusion(attempt)

    def _watch(self, attempt: SimulatedAttempt) -> Steps[Verdict | None]:
        """Return the verdict on an attempt; None if a person has taken over."""
        events = EventWatch(self._events)
        clock = partial(getattr, self.environment, "now")
        window = self.cluster.site.visibility_window_s
        follower = AttemptFollower(self._expectation, MissingJob(attempt.job_id, window, clock), clock=clock)
        while True:
            progressed = not self._lacks_progress(attempt)
            if progressed:
                yield attempt.stopped
                if self.policy.idle_s is None and attempt.running:
                    yield from self._person_finds_hang(attempt)
                    if attempt.cancelled_by_person:
                        return None
            yield self._next_poll()
            observation = observe(self.cluster, attempt)
            look = follower.look(observation, attempt.log)
            if (ended := follower.end(look, last=look.is_last(log_read=True))) is not None:
                return ended[0]
            seen = events.read(observation, progressed=progressed)
            stopped = while_running([item.occurrence for item in seen], attempt.job_id)
            if stopped is not None:
                for item in seen:
                    events.count(item.event)
                self.cluster.ledger.false_alarms += not attempt.stalled
                self.cluster.cancel(attempt)
                return stopped.verdict

    def _lacks_progress(self, attempt: SimulatedAttempt) -> bool:
        """Whether the attempt computes no iterations: it has ended, hangs, or needs too long to start."""
        idle = self.policy.idle_s
        starting = attempt.starting and idle is not None and attempt.startup_s > idle
        return attempt.stopped.triggered or starting

    def _next_poll(self) -> simpy.Event:
        passed = (self.environment.now - self._first_poll) / self.policy.poll_s
        return self.wait_until(self._first_poll + (math.floor(passed + 1e-9) + 1) * self.policy.poll_s)

    def _person_finds_hang(self, attempt: SimulatedAttempt) -> Steps[None]:
        person = self.cluster.site.person
        check = self.wait_until(next_check(person, self.environment.now) + person.reaction_s)
        yield attempt.over | check
        if attempt.running:
            attempt.cancelled_by_person = True
            self.cluster.cancel(attempt)

    def _prepare_checkpoint(self, series: Sequence[Verdict], began_at: int) -> bool:
        """Select the checkpoint that the next attempt has to load; return whether there is one."""
        training, limit = self.training, self.policy.quarantine
        if not training.tracked:
            return True
        verdicts = training.verdicts()
        if series[-1].rollback and self.policy.restart.rollbacks:
            complete = [
                iteration
                for iteration in training.checkpoints
                if verdicts[directory(iteration)] == "complete"
            ]
            try:
                chosen = choose_rollback(complete, series, tracked=training.tracked, began_at=began_at)
            except RollbackError:
                return False
            training.roll_back(chosen.iteration)
            return True
        step = decide(
            verdicts,
            tracked=training.tracked,
            damaged=series[-1].damaged_iteration,
            quarantined=training.quarantined,
            limit=limit,
        )
        if isinstance(step, NoQuarantine):
            return not (step.hopeless and limit)
        training.roll_back(step.back_to)
        training.quarantined += 1
        self.cluster.ledger.quarantines += 1
        return True

    def _excluded(self) -> tuple[str, ...]:
        """Return the nodes that the next attempt must not use."""
        nodes = self.cluster.nodes
        fits = len(nodes) * _SINFO_LINE < LONGEST_ANSWER
        return choose_allocation(
            self.training.plan.nodes,
            (),
            excluded_nodes(self._verdicts, self.policy.restart, self.environment.now),
            lost=0,
            shrink_after=1,
            partition={node.name: not node.away for node in nodes} if fits else None,
        ).exclude

    def _is_complete(self, files: Mapping[str, int]) -> bool:
        iteration = self.training.plan.train_iters
        return checkpoint_verdict(files, iteration=iteration, tracked=iteration).is_complete
