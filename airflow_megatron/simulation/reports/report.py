"""The comparison as Markdown tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from airflow_megatron.simulation.site.site import DAY, MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.simulation.reports.comparison import Result
    from airflow_megatron.simulation.run import SimulationOutcome
    from airflow_megatron.simulation.site.statistics import Mean

REFERENCE: Final = "no budgets"
"""The other policies are variations of this one."""


def tables(results: Sequence[Result]) -> str:
    """Return the tables of the scenarios in *results*, in order."""
    parts = []
    for kind, gpus in dict.fromkeys((result.scenario.name, result.scenario.gpus) for result in results):
        own = [result for result in results if (result.scenario.name, result.scenario.gpus) == (kind, gpus)]
        parts += [_title(own[0]), _outcome_table(own), _share_table(own)]
    return "\n\n".join(parts) + "\n"


def _title(result: Result) -> str:
    scenario, site = result.scenario, result.scenario.site
    work = "one training" if scenario.name == "training" else "a sweep of small trainings"
    return (
        f"### {scenario.gpus:,} GPUs, {work}\n\n"
        f"{scenario.gpus // site.gpus_per_node} nodes and {site.nodes - scenario.gpus // site.gpus_per_node} spares, "
        f"{site.incidents_per_1000_node_days:g} incidents per 1000 node-days, {len(result.outcomes)} seeds, "
        f"at most {scenario.seconds / DAY:g} days."
    )


def _outcome_table(results: Sequence[Result]) -> str:
    sweep = results[0].scenario.name == "sweep"
    reference = next((result for result in results if result.policy.name == REFERENCE), results[0])
    rows = []
    for result in results:
        rows.append(
            [
                result.policy.name,
                _percent(result.mean(lambda outcome: outcome.ettr)),
                "–"
                if result is reference
                else _percent(result.gain(reference, lambda o: o.ettr), signed=True),
                _percent(result.mean(lambda outcome: outcome.goodput)),
                f"{result.recovery(0.5) / MINUTE:.0f}",
                f"{result.recovery(0.95) / MINUTE:.0f}",
                _number(result.mean(lambda outcome: outcome.attempts)),
                _number(result.mean(lambda outcome: outcome.interventions)),
                _percent(result.mean(lambda o: o.lemon / o.used if o.used else 0.0)),
                *(
                    [
                        f"{result.mean(lambda outcome: outcome.elapsed / DAY).value:.1f}",
                        _number(result.mean(lambda outcome: outcome.finished)),
                        _number(result.mean(lambda outcome: outcome.overlaps)),
                    ]
                    if sweep
                    else []
                ),
            ]
        )
    heading = ["policy", "ETTR %", f"against “{reference.policy.name}”", "goodput %"]
    heading += ["recovery p50 min", "p95 min", "attempts", "interventions", "on lemons %"]
    heading += ["days", "finished", "overlapping attempts"] if sweep else []
    return _table(heading, rows)


def _share_table(results: Sequence[Result]) -> str:
    """Return the table of wasted and waiting GPU-hours by cause."""
    wasted = _causes(results, lambda outcome: outcome.wasted)
    waited = _causes(results, lambda outcome: outcome.waited)
    rows = []
    for result in results:
        cells = [_thousands(result, lambda o, cause=cause: o.wasted.get(cause, 0.0)) for cause in wasted]  # type: ignore[misc]
        cells += [_thousands(result, lambda o, cause=cause: o.waited.get(cause, 0.0)) for cause in waited]  # type: ignore[misc]
        rows.append([result.policy.name, _thousands(result, lambda outcome: outcome.useful), *cells])
    heading = ["1000 GPU-hours", "useful", *wasted, *(f"waiting: {cause}" for cause in waited)]
    return _table(heading, rows)


def _causes(results: Sequence[Result], of: Callable[[SimulationOutcome], Mapping[str, float]]) -> list[str]:
    return sorted({cause for result in results for outcome in result.outcomes for cause in of(outcome)})


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _percent(value: Mean, *, signed: bool = False) -> str:
    text = f"{100 * value.value:+.1f}" if signed else f"{100 * value.value:.1f}"
    return text if math.isnan(value.margin) else f"{text} ± {100 * value.margin:.1f}"


def _number(value: Mean) -> str:
    return f"{value.value:.0f}" if value.value >= 10 else f"{value.value:.1f}"


def _thousands(result: Result, of: Callable[[SimulationOutcome], float]) -> str:
    value = result.mean(of).value / 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
