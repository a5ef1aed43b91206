"""A simulated training job: it starts, iterates, saves checkpoints, and loses unsaved iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.checkpoints.completeness import checkpoint_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from airflow_megatron.simulation.site.ledger import Ledger
    from airflow_megatron.spec.model.trainers import Completeness

_ROUNDING: Final = 1e-6
"""Smaller differences, in seconds or iterations, are rounding errors of the clock."""

RETAINED: Final = 5
"""Number of checkpoints that are kept on disk. Our choice."""

_FILES: Final[Mapping[str, int]] = {
    "__0_0.distcp": 1 << 20,
    ".metadata": 1 << 12,
    "common.pt": 1 << 12,
    "metadata.json": 64,
}
"""Files of a complete ``torch_dist`` checkpoint; a damaged one has the same, because only the content is wrong."""


def directory(iteration: int) -> str:
    """Return the name of a checkpoint's directory."""
    return f"iter_{iteration:07d}"


@dataclass(frozen=True)
class TrainingPlan:
    """Description of a training job.

    :param name: unique in a run.
    :param nodes: number of nodes.
    :param train_iters: the last iteration.
    :param iteration_s: seconds of one iteration with healthy nodes.
    :param save_interval: iterations between two checkpoints.
    :param save_s: seconds that the training waits for a checkpoint.
    :param walltime_s: time limit of an attempt in seconds.
    """

    name: str
    nodes: int
    train_iters: int
    iteration_s: float
    save_interval: int
    save_s: float
    walltime_s: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.nodes, self.train_iters, self.save_interval) < 1 or self.iteration_s <= 0:
            raise ValueError(f"{self.name}: nodes, iterations and their length must be positive")
        if self.walltime_s <= self.stop_margin_s:
            raise ValueError(f"{self.name}: a walltime of {self.walltime_s:g} s leaves no time to stop in")

    @property
    def stop_margin_s(self) -> float:
        """Seconds before the time limit at which Megatron receives the signal to save and stop."""
        return 2 * self.save_s + 60.0


@dataclass
class Training:
    """The state of a job across its attempts, mainly its checkpoints.

    :param tracked: the tracker's iteration, 0 before the first checkpoint.
    :param checkpoints: iteration → whether it cannot be loaded.
    :param quarantined: number of quarantined checkpoints.
    :param bug_at: the iteration at which each attempt fails, until a person fixes the bug.
    :param finished: whether its last checkpoint exists.
    :param stopped_since: time of the incident that stopped it; None while it iterates.
    :param begun: time of its first submission.
    :param held_until: end of its last attempt with nodes.
    :param done: time at which its supervisor noticed that it had finished.
    """

    plan: TrainingPlan
    ledger: Ledger
    damage: float
    luck: Random
    tracked: int = 0
    checkpoints: dict[int, bool] = field(default_factory=dict)
    quarantined: int = 0
    bug_at: float | None = None
    finished: bool = False
    stopped_since: float | None = None
    begun: float | None = None
    held_until: float = 0.0
    done: float | None = None

    def saved(self, iteration: int) -> None:
        """Record a new checkpoint and delete old ones."""
        self.checkpoints[iteration] = self.luck.random() < self.damage
        self.tracked = iteration
        while len(self.checkpoints) > RETAINED:
            del self.checkpoints[min(self.checkpoints)]
        self.finished = iteration >= self.plan.train_iters

    def listing(self) -> dict[str, dict[str, int]]:
        """Return the files of each checkpoint directory."""
        return {directory(iteration): dict(_FILES) for iteration in self.checkpoints}

    def verdicts(self) -> dict[str, Completeness]:
        """Return whether each checkpoint is complete."""
        return {
            name: checkpoint_verdict(files, tracked=self.tracked).verdict
            for name, files in self.listing().items()
        }

    def roll_back(self, iteration: int | None) -> None:
        """Move the tracker back; the later iterations are lost.

        :param iteration: iteration of an existing checkpoint; None: start from scratch.
        """
        back_to = iteration or 0
        lost = (self.tracked - back_to) * self.plan.iteration_s * self.plan.nodes
        self.ledger.wasted["lost work"] += lost
        for later in [number for number in self.checkpoints if number > back_to]:
            del self.checkpoints[later]
        self.tracked = back_to

    @property
    def damaged(self) -> bool:
        """Whether the checkpoint that the next attempt would load is damaged."""
        return self.checkpoints.get(self.tracked, False)


class Progress:
    """Progress of one attempt. :meth:`advance` updates it to a time and records the use of the nodes.

    :param training: the job's state across attempts.
    :param started: time at which the attempt started.
    :param startup_s: seconds until its first iteration.
    :param speed: speed relative to healthy nodes.
    """

    def __init__(self, training: Training, started: float, startup_s: float, speed: float = 1.0) -> None:
        self.training = training
        self.position = float(training.tracked)
        self.clock = started
        self.iterating_from = started + startup_s
        self.speed = speed
        self.stalled_since: float | None = None
        self._saving = 0.0

    def advance(self, now: float) -> None:
        """Simulate iterations and checkpoints until *now*, and record the use of the nodes."""
        plan, ledger = self.training.plan, self.training.ledger
        if self.stalled_since is not None:
            ledger.wasted["stalled"] += (now - self.clock) * plan.nodes
            self.clock = now
            return
        if self.clock < self.iterating_from:
            until = min(now, self.iterating_from)
            ledger.wasted["startup"] += (until - self.clock) * plan.nodes
            self.clock = until
        while self.clock < now:
            left = now - self.clock
            if self._saving > 0:
                step = min(left, self._saving)
                ledger.wasted["saving"] += step * plan.nodes
                self._saving -= step
                if self._saving <= _ROUNDING:
                    self._saving = 0.0
                    self.training.saved(round(self.position))
            else:
                target = self._next_save(self.position)
                needed = (target - self.position) * plan.iteration_s / self.speed
                step = min(left, needed)
                ledger.wasted["slow node"] += step * (1 - self.speed) * plan.nodes
                if step >= needed - _ROUNDING:
                    self.position, self._saving = float(target), plan.save_s
                    if not plan.save_s:
                        self.training.saved(target)
                else:
                    self.position += step * self.speed / plan.iteration_s
            self.clock += step
            if self.training.finished:
                # the time between the last checkpoint and the job's end
                ledger.wasted["stalled"] += max(0.0, now - self.clock) * plan.nodes
                self.clock = now

    def stall(self, now: float) -> None:
        """Stop computing at *now*; the job keeps its nodes."""
        self.advance(now)
        if self.stalled_since is None:
            self.stalled_since = now

    def time_to_finish(self) -> float:
        """Return the seconds from the current position to the end of the last checkpoint."""
        plan = self.training.plan
        return self._time_to(float(plan.train_iters)) + (
            plan.save_s if self.position < plan.train_iters else 0.0
        )

    def time_to_bug(self) -> float:
        """Return the seconds to the iteration at which the bug ends the attempt; infinite without a bug."""
        at = self.training.bug_at
        if at is None:
            return math.inf
        return max(0.0, self._time_to(max(at, self.position)))

    @property
    def saving_s(self) -> float:
        """Remaining seconds of the checkpoint that is being written."""
        return self._saving

    def begin_last_save(self, now: float) -> None:
        """Start a checkpoint of the finished iterations, as Megatron does before an orderly stop.

        The unfinished part of an iteration is lost.
        """
        self.advance(now)
        if self._saving > 0:
            return
        iteration = math.floor(self.position + _ROUNDING)
        self.training.ledger.wasted["lost work"] += max(self.position - iteration, 0.0) * self._node_seconds
        self.position = float(iteration)
        if iteration > self.training.tracked:
            self._saving = self.training.plan.save_s
            if not self._saving:
                self.training.saved(iteration)

    def record_loss(self) -> None:
        """Record the iterations after the last checkpoint as lost: the next attempt has to repeat them."""
        lost = max(0.0, self.position - self.training.tracked)
        self.training.ledger.wasted["lost work"] += lost * self._node_seconds
        self.position = float(self.training.tracked)

    @property
    def _node_seconds(self) -> float:
        return self.training.plan.iteration_s * self.training.plan.nodes

    def _next_save(self, position: float) -> int:
        interval = self.training.plan.save_interval
        return min(
            (math.floor(position / interval + _ROUNDING) + 1) * interval, self.training.plan.train_iters
        )

    def _time_to(self, iteration: float) -> float:
        """Return the seconds from the current position to *iteration*, including the checkpoints in between."""
        plan = self.training.plan
        saves = max(0, math.ceil(iteration / plan.save_interval - _ROUNDING) - 1) - math.floor(
            self.position / plan.save_interval + _ROUNDING
        )
        computing = (iteration - self.position) * plan.iteration_s / self.speed
        starting = max(0.0, self.iterating_from - self.clock)
        return starting + self._saving + computing + max(0, saves) * plan.save_s
