"""Validation of the simulation: simple cases, with one kind of fault, whose results are published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.simulation.run import simulate
from airflow_megatron.simulation.scenarios import SAVE_S
from airflow_megatron.simulation.site.site import DAY, META_JOB_FACTOR, PUBLISHED_RATES, Site
from airflow_megatron.simulation.site.statistics import Mean, mean
from airflow_megatron.simulation.site.theory import best_save_interval, expected_ettr, failures_per_second
from airflow_megatron.simulation.site.training import TrainingPlan
from airflow_megatron.simulation.supervisors.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLICY: Final = next(policy for policy in POLICIES if policy.name == "no pause")

MTTF_HOURS: Final[Sequence[tuple[int, float, float]]] = (
    (1024, PUBLISHED_RATES["meta-rsc1"] * META_JOB_FACTOR, 7.9),
    (16384, PUBLISHED_RATES["meta-rsc1"], 1.8),
    (16384, PUBLISHED_RATES["llama3"], 54 * 24 / 419),
)
"""GPUs, incidents per 1000 node-days, and the published mean time to failure in hours: measured by Meta,
projected by Meta (arXiv 2410.21680), and 419 interruptions in the 54 days of Llama 3 (arXiv 2407.21783)."""


def plain_site(nodes: int, rate: float) -> Site:
    """Return a site with one kind of fault: crashes from which the next attempt recovers."""
    return Site(
        nodes=nodes,
        incidents_per_1000_node_days=rate,
        mix={"network": 1.0},
        lemon_share=0.0,
        startup_sigma=0.0,
        damaged_checkpoints=0.0,
        ambiguous_sbatch=0.0,
        outages={},
    )


@dataclass(frozen=True)
class Check:
    """Result of one check.

    :param ettr: simulated effective training time ratio.
    :param expected_ettr: the ratio by Meta's formula.
    :param mttf_hours: simulated mean time to failure of running jobs.
    """

    ettr: Mean
    expected_ettr: float
    mttf_hours: Mean


def check(nodes: int, rate: float, *, seeds: int, days: float, interval_s: float | None = None) -> Check:
    """Simulate one training on a plain site.

    :param nodes: number of nodes; the training uses all of them.
    :param rate: incidents per 1000 node-days.
    :param interval_s: seconds between two checkpoints; default: Young's interval.
    """
    site, per_second = plain_site(nodes, rate), failures_per_second(nodes, rate)
    interval = round(interval_s or best_save_interval(SAVE_S, per_second))
    plan = TrainingPlan("check", nodes, 10**8, 1.0, interval, SAVE_S, walltime_s=1e9)
    outcomes = [simulate(site, [plan], _POLICY, seed, days * DAY) for seed in range(seeds)]
    # the next poll reports the failure; then Airflow's tasks run, Slurm starts the job, and the job starts up
    restart_s = _POLICY.poll_s + site.airflow_s + site.scheduling_s + site.startup_s
    running = [outcome.used / site.gpus_per_node / nodes / max(outcome.failures, 1) for outcome in outcomes]
    return Check(
        ettr=mean([outcome.ettr for outcome in outcomes]),
        expected_ettr=expected_ettr(per_second, restart_s, interval, SAVE_S),
        mttf_hours=mean(running),
    )


def validation_table(*, seeds: int, days: float) -> str:
    """Return the results of all checks as a Markdown table.

    :param seeds: runs of each.
    :param days: length of a run.
    """
    lines = [
        "| GPUs | incidents per 1000 node-days | MTTF h, published | simulated | ETTR %, formula | simulated |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpus, rate, published in MTTF_HOURS:
        found = check(gpus // 8, rate, seeds=seeds, days=days)
        hours, ettr = found.mttf_hours, found.ettr
        lines.append(
            f"| {gpus:,} | {rate:.2f} | {published:.1f} | {hours.value:.2f} ± {hours.margin:.2f} "
            f"| {100 * found.expected_ettr:.1f} | {100 * ettr.value:.1f} ± {100 * ettr.margin:.1f} |"
        )
    return "\n".join(lines) + "\n"
