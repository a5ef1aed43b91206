"""Figures of the comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.results.plots.figures import PANELS_PER_ROW, Plot, figures, palette, rendered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.simulation.reports.comparison import Result
    from airflow_megatron.simulation.run import SimulationOutcome

_USEFUL: Final = "#c9c9c9"
_PARTS: Final = (
    "lost work",
    "startup",
    "saving",
    "stalled",
    "slow node",
    "duplicate",
    "noticing",
    "pause",
    "submission",
    "person",
    "queue",
)


def draw(results: Sequence[Result]) -> list[Plot]:
    """Draw the use of the GPU-hours by policy and size, one figure for each kind of scenario."""
    plots = []
    for name in dict.fromkeys(result.scenario.name for result in results):
        own = [result for result in results if result.scenario.name == name]
        plots.append(_hours_plot(name, own))
    return plots


def _hours_plot(name: str, results: Sequence[Result]) -> Plot:
    sizes = sorted({result.scenario.gpus for result in results})
    policies = list(dict.fromkeys(result.policy.name for result in results))
    colours = palette(len(_PARTS))
    with figures() as make:
        figure, axes = make(len(sizes))
        for index, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            shares = {
                result.policy.name: _shares(result) for result in results if result.scenario.gpus == size
            }
            names = [policy for policy in reversed(policies) if policy in shares]
            left = [0.0] * len(names)
            for part, colour in [("useful", _USEFUL), *zip(_PARTS, colours, strict=True)]:
                widths = [shares[policy][part] for policy in names]
                axis.barh(names, widths, left=left, color=colour, label=part, height=0.8)
                left = [start + width for start, width in zip(left, widths, strict=True)]
            axis.set_xlim(0, 1)
            axis.set_title(f"{size:,} GPUs")
            axis.set_xlabel("share of the GPU-hours")
            axis.grid(axis="y", visible=False)
            if index % PANELS_PER_ROW:
                axis.tick_params(labelleft=False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        figure.set_size_inches(figure.get_figwidth() + 1.5, 0.8 + 0.28 * len(policies) + 1.2)
        return Plot(
            f"hours_{name}",
            f"Where the GPU-hours went: {name}",
            "From useful work at the left to waits without nodes at the right.",
            *rendered(figure),
        )


def _shares(result: Result) -> dict[str, float]:
    hours = [_hours(outcome) for outcome in result.outcomes]
    total = sum(sum(own.values()) for own in hours) or 1.0
    return {part: sum(own[part] for own in hours) / total for part in ("useful", *_PARTS)}


def _hours(outcome: SimulationOutcome) -> Mapping[str, float]:
    found = {**outcome.wasted, **outcome.waited}
    return {"useful": outcome.useful, **{part: found.get(part, 0.0) for part in _PARTS}}
