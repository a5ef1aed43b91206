"""A simulated training job: it starts, iterates, saves, and loses what was not saved."""

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
"""Seconds and iterations below which a difference is the clock's rounding."""

RETAINED: Final = 5
"""Checkpoints that stay on disk. Our choice."""

_FILES: Final[Mapping[str, int]] = {
    "__0_0.distcp": 1 << 20,
    ".metadata": 1 << 12,
    "common.pt": 1 << 12,
    "metadata.json": 64,
}
"""A whole ``torch_dist`` checkpoint; a damaged one lists the same, as only its content is wrong."""


def directory(iteration: int) -> str:
    """Return the name of a checkpoint's directory."""
    return f"iter_{iteration:07d}"


@dataclass(frozen=True)
class TrainingPlan:
    """What a job is to do.

    :param name: unique in a run.
    :param nodes: that it needs.
    :param train_iters: at which it is done.
    :param iteration_s: seconds of one iteration with healthy nodes.
    :param save_interval: iterations between two checkpoints.
    :param save_s: seconds that training waits for one.
    :param walltime_s: of an attempt.
    """

    name: str
    nodes: int
    train_iters: int
    iteration_s: float
    save_interval: int
    save_s: float
    walltime_s: float

    def __post_init__(self) -> None:
        """Refuse what could not run."""
        if min(self.nodes, self.train_iters, self.save_interval) < 1 or self.iteration_s <= 0:
            raise ValueError(f"{self.name}: nodes, iterations and their length must be positive")
        if self.walltime_s <= self.stop_margin_s:
            raise ValueError(f"{self.name}: a walltime of {self.walltime_s:g} s leaves no time to stop in")

    @property
    def stop_margin_s(self) -> float:
        """How long before the walltime Megatron gets the signal to save and stop."""
        return 2 * self.save_s + 60.0


@dataclass
class Training:
    """The state of a job that outlives its attempts: what is in its checkpoints folder.

    :param tracked: the tracker's iteration, 0 before the first checkpoint.
    :param checkpoints: iteration → whether it cannot be loaded.
    :param quarantined: checkpoints that were set aside.
    :param bug_at: the iteration at which it fails again and again, until a person fixes that.
    :param finished: its last checkpoint is there.
    :param stopped_since: when an incident stopped it, until it iterates again.
    :param begun: time from which it was to run.
    :param held_until: time at which it last lost its nodes.
    :param done: time at which its supervisor knew that it had finished.
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
        """Note a checkpoint; old ones are deleted."""
        self.checkpoints[iteration] = self.luck.random() < self.damage
        self.tracked = iteration
        while len(self.checkpoints) > RETAINED:
            del self.checkpoints[min(self.checkpoints)]
        self.finished = iteration >= self.plan.train_iters

    def listing(self) -> dict[str, dict[str, int]]:
        """Return the files of each checkpoint directory."""
        return {directory(iteration): dict(_FILES) for iteration in self.checkpoints}

    def verdicts(self) -> dict[str, Completeness]:
        """Return the listing of each checkpoint."""
        return {
            name: checkpoint_verdict(files, tracked=self.tracked).verdict
            for name, files in self.listing().items()
        }

    def roll_back(self, iteration: int | None) -> None:
        """Move the tracker back; the iterations since are lost.

        :param iteration: of a checkpoint that is there; None starts training anew.
        """
        back_to = iteration or 0
        lost = (self.tracked - back_to) * self.plan.iteration_s * self.plan.nodes
        self.ledger.wasted["lost work"] += lost
        for gone in [number for number in self.checkpoints if number > back_to]:
            del self.checkpoints[gone]
        self.tracked = back_to

    @property
    def damaged(self) -> bool:
        """Whether the next attempt would load a checkpoint that cannot be loaded."""
        return self.checkpoints.get(self.tracked, False)


class Progress:
    """How far one attempt has come. :meth:`advance` brings it up to a time and books what the nodes did.

    :param training: the job's lasting state.
    :param started: time at which it got its nodes.
    :param startup_s: until its first iteration.
    :param speed: relative to healthy nodes.
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
        """Compute, save and book until *now*."""
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
                # what the nodes do between the last checkpoint and the job's end
                ledger.wasted["stalled"] += max(0.0, now - self.clock) * plan.nodes
                self.clock = now

    def stall(self, now: float) -> None:
        """Compute no more from *now* on, while the job goes on to hold its nodes."""
        self.advance(now)
        if self.stalled_since is None:
            self.stalled_since = now

    def time_to_finish(self) -> float:
        """Return the seconds to the end of the last checkpoint, from the time advanced to."""
        plan = self.training.plan
        return self._time_to(float(plan.train_iters)) + (
            plan.save_s if self.position < plan.train_iters else 0.0
        )

    def time_to_bug(self) -> float:
        """Return the seconds to the iteration at which the job fails again; infinite without a bug."""
        at = self.training.bug_at
        if at is None:
            return math.inf
        return max(0.0, self._time_to(max(at, self.position)))

    @property
    def saving_s(self) -> float:
        """Seconds that the checkpoint being written still takes."""
        return self._saving

    def begin_last_save(self, now: float) -> None:
        """Write a checkpoint of the iterations that are done, as Megatron does before it stops in good order; the
        part of an iteration that was begun is lost.
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

    def book_loss(self) -> None:
        """Book what this attempt did after the last checkpoint: the next one has to do it again."""
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
        """Return the seconds from the time advanced to until *iteration* is reached, saves in between included."""
        plan = self.training.plan
        saves = max(0, math.ceil(iteration / plan.save_interval - _ROUNDING) - 1) - math.floor(
            self.position / plan.save_interval + _ROUNDING
        )
        computing = (iteration - self.position) * plan.iteration_s / self.speed
        starting = max(0.0, self.iterating_from - self.clock)
        return starting + self._saving + computing + max(0, saves) * plan.save_s
