"""Figures of fits: optima and losses over compute, with intervals, fitted laws and published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.fits.optima import Optimum
from airflow_megatron.results.fits.published import PUBLISHED
from airflow_megatron.results.plots.figures import (
    GREY,
    Plot,
    attempted,
    figures,
    legend,
    line_entry,
    palette,
    rendered,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from airflow_megatron.results.fits.sweep_fits import FamilyFits, SweepFits
    from airflow_megatron.results.plots.figures import FigureMaker

_LABELS: Final = {"lr": "best learning rate", "batch": "best batch, tokens", "loss": "loss, nats per token"}
_STYLES: Final = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


def draw_fits(fits: SweepFits) -> list[Plot]:
    """Draw the results of a sweep's fits over compute, C = 6 N D; nothing for fewer than two sizes or budgets."""
    plots = []
    for number, family in enumerate(fits.families, 1):
        name = "fits" if len(fits.families) == 1 else f"fits_{number}"
        with attempted(name), figures() as make:
            figure = _figure(family, make)
            if figure is not None:
                title = "Fits over compute" + (f": {family.family}" if family.family else "")
                note = "Points with 95 % intervals; solid: our law; grey: published laws at the same N and D."
                plots.append(Plot(name, title, note, *rendered(figure)))
    return plots


def _figure(family: FamilyFits, make: FigureMaker) -> Figure | None:
    if len(family.cells) < 2:
        return None
    panels = [each for each in ("lr", "batch") if any(_settings(cell).get(each) for cell in family.cells)]
    panels += ["loss"] if family.surface is not None else []
    if not panels:
        return None
    figure, axes = make(len(panels))
    for axis, quantity in zip(axes, panels, strict=True):
        _panel(axis, quantity, family)
    laws = [law for law in PUBLISHED if any(getattr(law, quantity) for quantity in panels)]
    entries = [
        line_entry(_STYLES[PUBLISHED.index(law) % len(_STYLES)], law.name, colour=GREY) for law in laws
    ]
    return legend(figure, [line_entry("-", "our law", colour=palette(2)[0]), *entries])


def _panel(axis: Axes, quantity: str, family: FamilyFits) -> None:
    cells = sorted(family.cells, key=lambda cell: cell.parameters * cell.tokens)
    compute = [6 * cell.parameters * cell.tokens for cell in cells]
    colour = palette(2)[0]
    for cell, at in zip(cells, compute, strict=True):
        found: Any = _settings(cell).get(quantity)
        if found is not None:
            bars = [[found.value - found.low], [found.high - found.value]]
            axis.errorbar([at], [found.value], yerr=bars, marker="o", ms=4, capsize=2, color=colour)
        elif quantity == "loss":
            axis.plot([at], [cell.loss], marker="o", ms=4, color=colour)
    law = family.surface if quantity == "loss" else family.laws.get(quantity)
    if law is not None:
        values = []
        for cell, at in zip(cells, compute, strict=True):
            known = {"N": cell.parameters, "D": cell.tokens, "C": at}
            chosen = {name: known[name] for name in law.variables}
            predicted = (
                family.surface.loss(**chosen)
                if quantity == "loss" and family.surface
                else family.laws[quantity].at(**chosen)
            )
            values.append(predicted.value)
        axis.plot(compute, values, color=colour, lw=1.2)
    for index, published in enumerate(PUBLISHED):
        formula = getattr(published, quantity)
        if formula is not None:
            line = [formula(cell.parameters, cell.tokens) for cell in cells]
            axis.plot(compute, line, color=GREY, lw=0.8, ls=_STYLES[index % len(_STYLES)])
    axis.set_xscale("log")
    if quantity != "loss":
        axis.set_yscale("log")
    axis.set_title(_LABELS[quantity])
    axis.set_xlabel("compute 6 N D, operations")


def _settings(cell: Any) -> dict[str, Any]:
    found = cell.optimum
    return {**found.settings, "loss": found.loss} if isinstance(found, Optimum) else {}
