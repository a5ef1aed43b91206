"""Ledger of a run's GPU-hours."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

Waste = Literal["startup", "saving", "lost work", "stalled", "slow node", "duplicate"]
"""``startup``: from a job's start to its first iteration; ``saving``: training waits for a checkpoint; ``lost work``:
iterations that had to be repeated; ``stalled``: the job has nodes but does not compute (a hang, a failed node that
Slurm has not detected, the time until a walltime kill); ``slow node``: time lost because of a slow node;
``duplicate``: a second copy of a running job."""

Wait = Literal["queue", "noticing", "pause", "submission", "person"]
"""Why a job has no nodes. ``queue``: it waits for Slurm; ``noticing``: for the verdict on its last attempt; ``pause``:
for the restart policy's back-off; ``submission``: for Airflow's tasks, and after a lost answer of sbatch; ``person``:
for a person."""


@dataclass
class Ledger:
    """Times and counts of one run.

    :param used: node-seconds allocated to jobs.
    :param useful: node-seconds of iterations that were not repeated.
    :param wasted: node-seconds by cause; with *useful* they add up to *used*.
    :param waited: node-seconds in which jobs had no nodes, by cause.
    :param lemon: node-seconds on lemon nodes.
    :param incidents: number of incidents that affected a job, by kind.
    :param failures: number of attempts that an incident ended.
    :param attempts: number of attempts that Slurm started.
    :param submissions: number of submissions that Slurm accepted.
    :param interventions: number of interventions by a person.
    :param false_alarms: number of jobs that were treated as hung although they were not.
    :param quarantines: number of quarantined checkpoints.
    :param recoveries: seconds from each incident that stopped a job to the job's next iteration.
    :param overlaps: number of attempts that started while another attempt of the same job ran.
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
