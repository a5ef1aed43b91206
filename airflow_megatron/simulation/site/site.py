"""Description of a simulated site: its machines, their faults, and the person who looks after them.

Each number names its published source, or is marked as "our choice". Failure rates count incidents that stop a job,
per node and day, on nodes with 8 GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

IncidentKind = Literal[
    "gpu", "node_down", "network", "software", "bug", "hang", "slow", "file_system", "nan", "preemption"
]
"""A ``software`` failure does not recur after a restart; a ``bug`` recurs until a person fixes it."""

PUBLISHED_RATES: Final[Mapping[str, float]] = {
    "meta-rsc2": 2.34,  # arXiv 2410.21680: 8k A100
    "lablup-b200": 2.9,  # arXiv 2605.09370: 63 nodes, 10 XIDs in 55 days
    "llama3": 3.79,  # arXiv 2407.21783: 419 unexpected interruptions of 16,384 H100 in 54 days
    "meta-rsc1": 6.50,  # arXiv 2410.21680: 16k A100, 11 months
    "opt-175b": 15.6,  # logbook of OPT-175B (metaseq): 128 nodes, 2 machines a day
}
"""Incidents per 1000 node-days."""

META_JOB_FACTOR: Final = 3.7
"""Meta measured a mean time to failure of 7.9 h at 1,024 GPUs; its rate per node implies a 3.7 times longer one."""

MIX: Final[Mapping[IncidentKind, float]] = {
    "gpu": 0.52,
    "node_down": 0.10,
    "network": 0.10,
    "software": 0.10,
    "bug": 0.016,
    "hang": 0.10,
    "slow": 0.01,
    "file_system": 0.04,
    "nan": 0.014,
}
"""Shares of the kinds, from Llama 3's table of interruptions and ByteRobust (arXiv 2509.16293), rounded: hardware
0.62 (a tenth of which takes the whole host down: 32 of 419 were host maintenance), network 0.10, software 0.13 (of
which ``nan`` represents the 6 of 419 silent corruptions; that one in eight of the rest is a ``bug`` is our choice),
hangs 0.10 (ByteRobust: 9.9 %), slow nodes 0.01 (0.8 %)."""

OutageKind = Literal["controller", "accounting", "login"]


@dataclass(frozen=True)
class Outages:
    """Frequency and lengths of a service's outages. Our choice: issues of other tools report outages and their
    lengths, but no rates.

    :param per_week: number of outages per week.
    :param durations: possible lengths in seconds; all are equally likely.
    """

    per_week: float
    durations: tuple[float, ...]


@dataclass(frozen=True)
class Person:
    """A person who looks after the jobs where the policy does not. Our choice; with these hours, hangs without a
    detector cost about as much as those of BLOOM: 6, 11 and 18 h (bigscience chronicles).

    :param first_hour: start of the working hours.
    :param last_hour: end of the working hours.
    :param days: number of working days in a week.
    :param look_s: seconds between two checks of the jobs during working hours.
    :param reaction_s: seconds from noticing a problem to having fixed it.
    :param on_call: whether the person answers alarms at any hour.
    """

    first_hour: float = 9.0
    last_hour: float = 18.0
    days: int = 5
    look_s: float = 1 * HOUR
    reaction_s: float = 30 * MINUTE
    on_call: bool = False


@dataclass(frozen=True)
class Site:
    """A cluster, its faults and its delays.

    :param nodes: number of nodes, spares included.
    :param gpus_per_node: number of GPUs of a node.
    :param incidents_per_1000_node_days: rate of all incidents except preemptions; see :data:`PUBLISHED_RATES`.
    :param preemptions_per_1000_node_days: rate of preemptions; depends on the site, 0 on dedicated nodes.
    :param mix: shares of the kinds; they add up to 1.
    :param lemon_share: share of nodes that fail much more often; Lablup: 3 of 63.
    :param lemon_failures: share of the hardware incidents that occur on these nodes; Lablup: over half.
    :param gpu_named: share of GPU errors whose log line names the node; otherwise the log contains only the NCCL
        errors of other ranks. Our choice.
    :param gpu_lasting: share of GPU errors that recur on the same node; Lablup: 33.3 % of automatic retries succeed.
    :param recurrence_s: mean time after which a job on such a node fails again. Our choice.
    :param health_check_s: mean time until the site detects and drains such a node, or a slow one. Our choice.
    :param reboot_share: share of drained nodes that a reboot repairs. Our choice.
    :param reboot_s: seconds of a reboot.
    :param repair_s: mean time of the other repairs. Our choice.
    :param nccl_watchdog_share: share of hangs that NCCL's watchdog ends; it did not end BLOOM's hangs. Our choice.
    :param nccl_watchdog_s: timeout of the watchdog; PyTorch's default.
    :param slurm_detection_s: seconds until Slurm marks a failed node as down (the default of ``SlurmdTimeout``).
    :param slow_speed: relative speed of a training with a slow node. Our choice.
    :param startup_s: median time from a job's start to its first iteration. Our choice.
    :param startup_sigma: sigma of the log-normal distribution of this time.
    :param damaged_checkpoints: probability that a checkpoint looks complete but cannot be loaded. Our choice.
    :param scheduling_s: time until Slurm starts a job for which nodes are free.
    :param accounting_lag_s: seconds until sacct reports the end of a job.
    :param min_job_age_s: how long squeue shows an ended job; Slurm's default.
    :param ambiguous_sbatch: probability that sbatch's answer is lost; half of these jobs were accepted. Our choice.
    :param visibility_window_s: how long the submission protocol then waits until the job becomes visible.
    :param airflow_s: seconds from a verdict to the next sbatch; see benchmarks/README.md, stage latency.
    :param outages: outages of the services.
    :param person: the person who looks after the jobs.
    """

    nodes: int
    gpus_per_node: int = 8
    incidents_per_1000_node_days: float = PUBLISHED_RATES["meta-rsc1"]
    preemptions_per_1000_node_days: float = 0.0
    mix: Mapping[IncidentKind, float] = field(default_factory=lambda: dict(MIX))
    lemon_share: float = 0.05
    lemon_failures: float = 0.5
    gpu_named: float = 0.8
    gpu_lasting: float = 0.67
    recurrence_s: float = 10 * MINUTE
    health_check_s: float = 6 * HOUR
    reboot_share: float = 0.5
    reboot_s: float = 1 * HOUR
    repair_s: float = 2 * DAY
    nccl_watchdog_share: float = 0.5
    nccl_watchdog_s: float = 10 * MINUTE
    slurm_detection_s: float = 5 * MINUTE
    slow_speed: float = 0.7
    startup_s: float = 5 * MINUTE
    startup_sigma: float = 0.3
    damaged_checkpoints: float = 0.005
    scheduling_s: float = 15.0
    accounting_lag_s: float = 5.0
    min_job_age_s: float = 5 * MINUTE
    ambiguous_sbatch: float = 0.005
    visibility_window_s: float = 5 * MINUTE
    airflow_s: float = 12.0
    outages: Mapping[OutageKind, Outages] = field(
        default_factory=lambda: {
            "controller": Outages(1.0, (1 * MINUTE, 5 * MINUTE, 30 * MINUTE)),
            "accounting": Outages(0.25, (1 * HOUR, 6 * HOUR)),
            "login": Outages(0.5, (5 * MINUTE, 1 * HOUR)),
        }
    )
    person: Person = Person()

    def __post_init__(self) -> None:
        """Check the number of nodes and the sum of the shares."""
        if self.nodes < 1:
            raise ValueError(f"a site has at least one node, got {self.nodes}")
        if abs(sum(self.mix.values()) - 1.0) > 1e-6:
            raise ValueError(f"the shares of the incidents add up to {sum(self.mix.values()):g}, not to 1")

    @property
    def incidents_per_node_second(self) -> float:
        """Rate of all incidents except preemptions."""
        return self.incidents_per_1000_node_days / 1000 / DAY

    @property
    def preemptions_per_node_second(self) -> float:
        """Rate of preemptions."""
        return self.preemptions_per_1000_node_days / 1000 / DAY
