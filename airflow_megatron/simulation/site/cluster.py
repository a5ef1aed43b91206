"""A simulated cluster: it accepts and reports jobs as Slurm does, and its nodes fail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import simpy

from airflow_megatron.simulation.site.incidents import Services, incidents, lemon_nodes, stream
from airflow_megatron.simulation.site.log_texts import (
    WALLTIME_KILL,
    WALLTIME_STOP,
    last_lines,
    unreadable_checkpoint,
)
from airflow_megatron.simulation.site.site import HOUR
from airflow_megatron.simulation.site.training import Progress
from airflow_megatron.slurm.states.job_states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from airflow_megatron.simulation.site.incidents import Incident
    from airflow_megatron.simulation.site.ledger import Ledger
    from airflow_megatron.simulation.site.site import IncidentKind, Site
    from airflow_megatron.simulation.site.training import Training

    Process = Generator[simpy.Event, None, None]

_PREEMPTOR_S: Final = 2 * HOUR
"""How long a preempting job keeps a node. Our choice."""


@dataclass(slots=True)
class Node:
    """A node.

    :param away: not available for jobs: down, drained, or used by others.
    :param draining: goes to repair as soon as no job uses it.
    :param sick: one of its GPUs fails repeatedly.
    :param slow: slows down the training.
    """

    index: int
    name: str
    away: bool = False
    draining: bool = False
    sick: bool = False
    slow: bool = False


@dataclass(eq=False)
class SimulatedAttempt:
    """A Slurm job.

    :param over: triggered when the job ends in Slurm
    :param stopped: triggered when the job ends or hangs
    :param began: triggered when the job starts
    :param hosts: names of its first and its last node
    :param indexes: indexes of its nodes
    :param log: the end of its log
    :param recorded: whether its script wrote ``exit.json``
    """

    job_id: str
    training: Training
    excluded: frozenset[int]
    submitted: float
    over: simpy.Event
    stopped: simpy.Event
    began: simpy.Event
    state: JobState = JobState.PENDING
    started: float | None = None
    ended: float | None = None
    exit_code: int = 0
    recorded: bool = False
    log: bytes = b""
    hosts: tuple[str, ...] = ()
    indexes: frozenset[int] = frozenset()
    progress: Progress | None = None
    life: simpy.Process | None = None
    startup_s: float = 0.0
    iterating: bool = False
    stopping: bool = False
    cancelled_by_person: bool = False

    @property
    def running(self) -> bool:
        """Whether it has nodes."""
        return self.state is JobState.RUNNING

    @property
    def starting(self) -> bool:
        """Whether it has nodes and has not reached its first iteration."""
        return self.running and self.progress is not None and not self.iterating

    @property
    def stalled(self) -> bool:
        """Whether it has nodes but does not compute any more."""
        return self.running and self.progress is not None and self.progress.stalled_since is not None


class SimulatedCluster:
    """Queue, nodes and services of a site.

    :param environment: the simulated clock.
    :param site: its description.
    :param seed: seed of all random numbers.
    :param until: length of the run in seconds; incidents are drawn for this time.
    :param ledger: records the use of the nodes.
    """

    def __init__(
        self, environment: simpy.Environment, site: Site, seed: int, until: float, ledger: Ledger
    ) -> None:
        self.environment, self.site, self.ledger = environment, site, ledger
        self.services = Services(site, seed, until)
        self.nodes = [Node(index, f"n{index:05d}") for index in range(site.nodes)]
        self.lemons = lemon_nodes(site, seed)
        self.attempts: list[SimulatedAttempt] = []
        self._queue: list[SimulatedAttempt] = []
        self._running: dict[str, list[SimulatedAttempt]] = {}
        self._free = set(range(site.nodes))
        self._away: set[int] = set()
        self._faulty: set[int] = set()
        """Nodes that are sick, slow or draining."""
        self._holders: list[SimulatedAttempt] = []
        self._luck = stream(seed, "repair")
        self._pass_due = False
        environment.process(self._apply_incidents(seed, until))

    # --- commands: sbatch, scancel, scontrol

    def submit(self, training: Training, excluded: Iterable[str] = ()) -> SimulatedAttempt:
        """Queue a job.

        :param excluded: names of nodes that it must not use.
        """
        event = self.environment.event
        attempt = SimulatedAttempt(
            str(1001 + len(self.attempts)),
            training,
            frozenset(int(name[1:]) for name in excluded),
            self.environment.now,
            event(),
            event(),
            event(),
        )
        self.attempts.append(attempt)
        self._queue.append(attempt)
        self.ledger.submissions += 1
        self._schedule()
        return attempt

    def cancel(self, attempt: SimulatedAttempt) -> None:
        """Cancel a job, like ``scancel``."""
        if attempt in self._queue:
            self._queue.remove(attempt)
            attempt.state, attempt.ended = JobState.CANCELLED, self.environment.now
            attempt.over.succeed()
            attempt.stopped.succeed()
        elif attempt.running:
            self._end(attempt, JobState.CANCELLED)

    def lift_exclusion(self, attempt: SimulatedAttempt) -> None:
        """Remove a job's excluded nodes, like ``scontrol update ExcNodeList=``."""
        attempt.excluded = frozenset()
        self._schedule()

    def waits_for_excluded_nodes(self, attempt: SimulatedAttempt) -> bool:
        """Whether a job waits only because of its excluded nodes."""
        need = attempt.training.plan.nodes
        return len(self._free) >= need > len(self._free - attempt.excluded)

    def faulty_nodes(self, attempt: SimulatedAttempt) -> list[Node]:
        """Return the nodes of an attempt that are sick, slow or draining."""
        return [self.nodes[index] for index in sorted(self._faulty & attempt.indexes)]

    def drain(self, node: Node) -> None:
        """Send a node to repair as soon as no job uses it."""
        node.draining = True
        self._faulty.add(node.index)
        if self._holder(node) is None and not node.away:
            self._remove_for_repair(node, None)

    def settle(self) -> None:
        """Record the work of running jobs at the end of a run."""
        for attempt in self.attempts:
            if attempt.running:
                if attempt.progress is not None:
                    attempt.progress.advance(self.environment.now)
                    part = max(0.0, attempt.progress.position - attempt.training.tracked)
                    plan = attempt.training.plan
                    self.ledger.useful += part * plan.iteration_s * plan.nodes
                self._record_nodes(attempt)

    def _holder(self, node: Node) -> SimulatedAttempt | None:
        return next((attempt for attempt in self._holders if node.index in attempt.indexes), None)

    # --- the queue

    def _schedule(self) -> None:
        if not self._pass_due:
            self._pass_due = True
            self.environment.process(self._scheduling_pass())

    def _scheduling_pass(self) -> Process:
        yield self.environment.timeout(self.site.scheduling_s)
        self._pass_due = False
        for attempt in list(self._queue):
            need = attempt.training.plan.nodes
            if len(self._free) < need:
                break
            usable = sorted(self._free - attempt.excluded)
            if len(usable) >= need:
                self._queue.remove(attempt)
                self._start(attempt, usable[:need])

    def _start(self, attempt: SimulatedAttempt, indexes: list[int]) -> None:
        now, training = self.environment.now, attempt.training
        attempt.state, attempt.started = JobState.RUNNING, now
        attempt.hosts = (self.nodes[indexes[0]].name, self.nodes[indexes[-1]].name)
        attempt.indexes = frozenset(indexes)
        self._free -= attempt.indexes
        self._holders.append(attempt)
        ill = self.faulty_nodes(attempt)
        self.ledger.attempts += 1
        attempt.startup_s = self._luck.lognormvariate(math.log(self.site.startup_s), self.site.startup_sigma)
        speed = self.site.slow_speed if any(node.slow for node in ill) else 1.0
        if self._running.setdefault(training.plan.name, []):
            self.ledger.overlaps += 1
        else:
            attempt.progress = Progress(training, now, attempt.startup_s, speed)
            waited = now - max(attempt.submitted, training.held_until)
            self.ledger.waited["queue"] += waited * training.plan.nodes
        self._running[training.plan.name].append(attempt)
        attempt.life = self.environment.process(self._run_steps(attempt))
        for node in ill:
            if node.sick:
                self.environment.process(self._fail_again(attempt, node))
        attempt.began.succeed()

    # --- the course of an attempt

    def _run_steps(self, attempt: SimulatedAttempt) -> Process:
        """Run the steps of an attempt when they are due; incidents interrupt the process."""
        while attempt.running:
            wait, act = self._next_step(attempt)
            try:
                yield self.environment.timeout(max(0.0, wait))
            except simpy.Interrupt:
                continue
            act(attempt)

    def _next_step(self, attempt: SimulatedAttempt) -> tuple[float, Callable[[SimulatedAttempt], None]]:
        """Return the seconds until the next step, and the step."""
        now, plan, progress = self.environment.now, attempt.training.plan, attempt.progress
        assert attempt.started is not None
        walltime = attempt.started + plan.walltime_s - now
        if progress is None:
            return walltime, self._time_out
        progress.advance(now)
        if progress.stalled_since is not None:
            return walltime, self._time_out
        if attempt.stopping:
            return progress.saving_s, self._stop
        if not attempt.iterating:
            return progress.iterating_from - now, self._iterate
        return min(
            (progress.time_to_finish(), self._finish),
            (progress.time_to_bug(), self._hit_bug),
            (max(0.0, walltime - plan.stop_margin_s), self._begin_stop),
            key=lambda due: due[0],
        )

    def _iterate(self, attempt: SimulatedAttempt) -> None:
        """Load the checkpoint and start to iterate."""
        training = attempt.training
        attempt.iterating = True
        if training.finished:
            self._end(attempt, JobState.COMPLETED)
        elif training.damaged:
            self._crash(attempt, unreadable_checkpoint(training.tracked))
        elif training.stopped_since is not None:
            self.ledger.recoveries.append(self.environment.now - training.stopped_since)
            training.stopped_since = None

    def _finish(self, attempt: SimulatedAttempt) -> None:
        assert attempt.progress is not None
        attempt.progress.advance(self.environment.now)
        if attempt.training.finished:
            self._end(attempt, JobState.COMPLETED)

    def _hit_bug(self, attempt: SimulatedAttempt) -> None:
        self._crash(attempt, last_lines("bug", *attempt.hosts))

    def _begin_stop(self, attempt: SimulatedAttempt) -> None:
        assert attempt.progress is not None
        attempt.progress.begin_last_save(self.environment.now)
        attempt.stopping = True

    def _stop(self, attempt: SimulatedAttempt) -> None:
        self._end(attempt, JobState.COMPLETED, log=WALLTIME_STOP)

    def _time_out(self, attempt: SimulatedAttempt) -> None:
        self._end(attempt, JobState.TIMEOUT, log=WALLTIME_KILL, recorded=False)

    def _crash(self, attempt: SimulatedAttempt, log: bytes) -> None:
        self.ledger.failures += 1
        if attempt.training.stopped_since is None and attempt.progress is not None:
            attempt.training.stopped_since = self.environment.now
        self._end(attempt, JobState.FAILED, exit_code=1, log=log)

    def _end(
        self,
        attempt: SimulatedAttempt,
        state: JobState,
        *,
        exit_code: int = 0,
        log: bytes = b"",
        recorded: bool = True,
    ) -> None:
        now, training = self.environment.now, attempt.training
        if attempt.progress is not None:
            attempt.progress.advance(now)
            attempt.progress.record_loss()
            training.held_until = now
        attempt.state, attempt.ended, attempt.exit_code = state, now, exit_code
        attempt.log, attempt.recorded = log, recorded
        self._record_nodes(attempt)
        self._free |= attempt.indexes
        self._free -= self._away
        self._holders.remove(attempt)
        for node in self.faulty_nodes(attempt):
            if node.draining and not node.away:
                self._remove_for_repair(node, None)
        others = self._running[training.plan.name]
        others.remove(attempt)
        attempt.over.succeed()
        if not attempt.stopped.triggered:
            attempt.stopped.succeed()
        self._wake(attempt)
        if attempt.progress is not None and others:
            # the second copy continues from the last checkpoint of the first one
            if training.finished:
                self._end(others[0], JobState.COMPLETED)
            else:
                self._promote(others[0])
        self._schedule()

    def _promote(self, duplicate: SimulatedAttempt) -> None:
        self._record_duplicate(duplicate)
        duplicate.progress = Progress(duplicate.training, self.environment.now, 0.0)
        duplicate.iterating = True
        self._wake(duplicate)

    def _wake(self, attempt: SimulatedAttempt) -> None:
        life = attempt.life
        if life is not None and life.is_alive and life is not self.environment.active_process:
            life.interrupt()

    def _record_nodes(self, attempt: SimulatedAttempt) -> None:
        assert attempt.started is not None
        seconds = self.environment.now - attempt.started
        self.ledger.used += seconds * len(attempt.indexes)
        self.ledger.lemon += seconds * len(self.lemons & attempt.indexes)
        if attempt.progress is None:
            self._record_duplicate(attempt)

    def _record_duplicate(self, attempt: SimulatedAttempt) -> None:
        assert attempt.started is not None
        self.ledger.wasted["duplicate"] += (self.environment.now - attempt.started) * len(attempt.indexes)

    # --- incidents

    def _apply_incidents(self, seed: int, until: float) -> Process:
        for incident in incidents(self.site, seed, until):
            yield self.environment.timeout(incident.time - self.environment.now)
            node = self.nodes[incident.node]
            if not node.away:
                self._apply_incident(incident, node)

    def _apply_incident(self, incident: Incident, node: Node) -> None:
        attempt, kind = self._holder(node), incident.kind
        if attempt is not None:
            self.ledger.incidents[kind] += 1
        match kind:
            case "node_down":
                self.environment.process(self._node_fails(node))
            case "preemption":
                if attempt is not None:
                    self._remove_for_repair(node, _PREEMPTOR_S)
                    self._end_without_nodes(attempt, JobState.PREEMPTED, self._lines(kind, node, attempt))
            case "gpu":
                if incident.luck < self.site.gpu_lasting:
                    node.sick = True
                    self._faulty.add(node.index)
                    self.environment.process(self._health_check(node))
                if attempt is not None:
                    named = incident.luck * 101 % 1 < self.site.gpu_named
                    self._crash(attempt, self._lines(kind, node, attempt, named=named))
            case "slow":
                node.slow = True
                self._faulty.add(node.index)
                self.environment.process(self._health_check(node))
                if attempt is not None and attempt.progress is not None:
                    attempt.progress.advance(self.environment.now)
                    attempt.progress.speed = self.site.slow_speed
                    self._wake(attempt)
            case "hang":
                if attempt is not None:
                    self.environment.process(self._hang(attempt, node, incident))
            case _:
                if attempt is not None:
                    if kind == "bug" and attempt.progress is not None:
                        attempt.progress.advance(self.environment.now)
                        attempt.training.bug_at = attempt.progress.position
                    self._crash(attempt, self._lines(kind, node, attempt))

    def _node_fails(self, node: Node) -> Process:
        """Let a node fail: its job stops computing; Slurm detects the failure later."""
        attempt = self._holder(node)
        self._make_unavailable(node)
        if attempt is not None:
            self._stall(attempt)
        yield self.environment.timeout(self.site.slurm_detection_s)
        if attempt is not None and attempt.running:
            self._end_without_nodes(attempt, JobState.NODE_FAIL, self._lines("node_down", node, attempt))
        self.environment.process(self._repair(node, None))

    def _hang(self, attempt: SimulatedAttempt, node: Node, incident: Incident) -> Process:
        self._stall(attempt)
        if incident.luck < self.site.nccl_watchdog_share:
            yield self.environment.timeout(self.site.nccl_watchdog_s)
            if attempt.running:
                self._crash(attempt, self._lines("hang", node, attempt))

    def _stall(self, attempt: SimulatedAttempt) -> None:
        if attempt.progress is None:
            return
        attempt.progress.stall(self.environment.now)
        if attempt.training.stopped_since is None:
            attempt.training.stopped_since = self.environment.now
        if not attempt.stopped.triggered:
            attempt.stopped.succeed()
        self._wake(attempt)

    def _end_without_nodes(self, attempt: SimulatedAttempt, state: JobState, log: bytes) -> None:
        """End a job that has lost its nodes."""
        self.ledger.failures += 1
        if attempt.training.stopped_since is None and attempt.progress is not None:
            attempt.training.stopped_since = self.environment.now
        self._end(attempt, state, log=log, recorded=False)

    def _fail_again(self, attempt: SimulatedAttempt, node: Node) -> Process:
        """Crash a job on a sick node after a random time."""
        yield self.environment.timeout(attempt.startup_s + self._luck.expovariate(1 / self.site.recurrence_s))
        if node.sick and attempt.running:
            self.ledger.incidents["gpu"] += 1
            self._crash(attempt, self._lines("gpu", node, attempt))

    def _health_check(self, node: Node) -> Process:
        yield self.environment.timeout(self._luck.expovariate(1 / self.site.health_check_s))
        if node.sick or node.slow:
            self.drain(node)

    def _remove_for_repair(self, node: Node, seconds: float | None) -> None:
        self._make_unavailable(node)
        self.environment.process(self._repair(node, seconds))

    def _make_unavailable(self, node: Node) -> None:
        node.away = True
        self._away.add(node.index)
        self._free.discard(node.index)

    def _repair(self, node: Node, seconds: float | None) -> Process:
        """Make a node available again after *seconds*; None: after a reboot or a repair."""
        if seconds is None:
            reboot = self._luck.random() < self.site.reboot_share
            seconds = self.site.reboot_s if reboot else self._luck.expovariate(1 / self.site.repair_s)
        yield self.environment.timeout(seconds)
        node.away = node.draining = node.sick = node.slow = False
        self._away.discard(node.index)
        self._faulty.discard(node.index)
        if self._holder(node) is None:
            self._free.add(node.index)
            self._schedule()

    def _lines(
        self, kind: IncidentKind, node: Node, attempt: SimulatedAttempt, *, named: bool = True
    ) -> bytes:
        other = next((name for name in attempt.hosts if name != node.name), node.name)
        return last_lines(kind, node.name, other, named=named)
