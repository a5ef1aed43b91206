"""Comparison of policies over the same seeds."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_megatron.simulation.run import SimulationOutcome, simulate
from airflow_megatron.simulation.site.statistics import Mean, mean, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_megatron.simulation.scenarios import Scenario
    from airflow_megatron.simulation.supervisors.policies import Policy


@dataclass(frozen=True)
class Result:
    """A policy's outcomes in a scenario, one per seed."""

    scenario: Scenario
    policy: Policy
    outcomes: tuple[SimulationOutcome, ...]

    def mean(self, value: Callable[[SimulationOutcome], float]) -> Mean:
        """Return the mean over the seeds."""
        return mean([value(outcome) for outcome in self.outcomes])

    def gain(self, other: Result, value: Callable[[SimulationOutcome], float]) -> Mean:
        """Return the mean difference of *value* to *other*, seed by seed: both had the same incidents."""
        pairs = zip(self.outcomes, other.outcomes, strict=True)
        return mean([value(own) - value(its) for own, its in pairs])

    def recovery(self, share: float) -> float:
        """Return the quantile *share* of the recovery times of all seeds, in seconds."""
        return quantile([seconds for outcome in self.outcomes for seconds in outcome.recoveries], share)

    def to_json(self) -> dict[str, Any]:
        """Return all values of each seed; recovery times as quantiles."""
        return {
            "scenario": self.scenario.name,
            "gpus": self.scenario.gpus,
            "policy": self.policy.name,
            "recovery_s": {"p50": self.recovery(0.5), "p95": self.recovery(0.95)},
            "seeds": [
                {
                    **{key: value for key, value in vars(outcome).items() if key != "recoveries"},
                    "goodput": outcome.goodput,
                }
                for outcome in self.outcomes
            ],
        }


def run_policy(scenario: Scenario, policy: Policy, seeds: int) -> Result:
    """Return the results of a policy in a scenario.

    :param seeds: number of seeds, starting with 0.
    """
    person = replace(scenario.site.person, on_call=policy.on_call)
    site = replace(scenario.site, person=person)
    plans = scenario.plans(policy)
    outcomes = tuple(
        simulate(site, plans, policy, seed, scenario.seconds, at_once=scenario.at_once)
        for seed in range(seeds)
    )
    return Result(scenario, policy, outcomes)


def compare(
    scenarios: Sequence[Scenario], policies: Sequence[Policy], seeds: int, *, processes: int = 1
) -> Iterator[Result]:
    """Yield the result of each policy in each scenario; the number of processes does not change the results."""
    pairs = [(scenario, policy) for scenario in scenarios for policy in policies]
    if processes == 1:
        yield from (run_policy(scenario, policy, seeds) for scenario, policy in pairs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_policy, *zip(*pairs, strict=True), itertools.repeat(seeds))
