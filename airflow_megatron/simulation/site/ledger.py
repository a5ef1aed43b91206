"""Ledger of a run's GPU-hours."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

Waste = Literal["startup", "saving", "lost work", "stalled", "slow node", "duplicate"]
"""``startup``: from a job's start to its first iteration; ``saving``: training waits for a checkpoint; ``lost work``:
iterations that had to be done again; ``stalled``: nodes held by a job that computes no more (a hang, a dead node that
Slurm has not noticed, an end by time-out); ``slow node``: what a slow node keeps the others from; ``duplicate``: a
second copy of a job that runs."""

Wait = Literal["queue", "noticing", "pause", "submission", "person"]
"""What a job without nodes waits for: Slurm; the verdict on its last attempt; the restart policy's pause; an sbatch
whose answer was lost, and the tasks around it; a person."""


@dataclass
class Ledger:
    """Seconds and counts of one run; times of nodes are node-seconds.

    :param used: node-seconds that jobs held nodes, booked by the cluster.
    :param useful: node-seconds of iterations that were not done again.
    :param wasted: node-seconds by cause; with *useful* they add up to *used*.
    :param waited: node-seconds of jobs without nodes, by what they waited for.
    :param lemon: node-seconds on lemon nodes.
    :param incidents: that struck a job, by kind.
    :param failures: attempts that an incident ended.
    :param attempts: that Slurm started.
    :param submissions: that Slurm took.
    :param interventions: of people.
    :param false_alarms: hangs found in jobs that did not hang.
    :param quarantines: checkpoints set aside.
    :param recoveries: seconds from each incident that stopped a job to its next iteration.
    :param overlaps: attempts that began while another of the same job ran.
    """

    used: float = 0.0
    useful: float = 0.0
    wasted: defaultdict[Waste, float] = field(default_factory=lambda: defaultdict(float))
    waited: defaultdict[Wait, float] = field(default_factory=lambda: defaultdict(float))
    lemon: float = 0.0
    incidents: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    attempts: int = 0
    submissions: int = 0
    interventions: int = 0
    false_alarms: int = 0
    quarantines: int = 0
    recoveries: list[float] = field(default_factory=list)
    overlaps: int = 0
