"""Charts of fits: losses by learning rate with their optimum, its laws, runs of equal compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.fits.allocations import isoflops
from airflow_megatron.results.fits.optima import Optimum
from airflow_megatron.results.fits.published import PUBLISHED
from airflow_megatron.results.plots.charts import Chart, Panel, Series
from airflow_megatron.results.plots.figures import MOST_PANELS
from airflow_megatron.results.tables.trainings import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_megatron.results.fits.sweep_fits import FamilyFits, FittedCell, SweepFits

_LOSS: Final = "loss (nats per token)"
_SETTINGS: Final = {"lr": "best learning rate", "batch": "best batch (tokens)"}
_VARIABLES: Final = {"N": "N (parameters)", "D": "D (tokens)", "C": "C = 6 N D (operations)"}


def fit_charts(fits: SweepFits) -> list[Chart]:
    """Return the charts of a sweep's fits that have data."""
    charts: list[Chart] = []
    for number, family in enumerate(fits.families, 1):
        suffix = "" if len(fits.families) == 1 else f"_{number}"
        of = f": {family.family}" if family.family else ""
        charts += _optima(family, suffix, of)
        charts += _laws(family, suffix, of)
        charts += _equal_compute(family, suffix, of)
    return charts


def _optima(family: FamilyFits, suffix: str, of: str) -> list[Chart]:
    cells = [cell for cell in family.cells if len({run.lr for run in cell.runs} - {None}) > 1]
    if not cells:
        return []
    batches = sorted({run.batch or 0.0 for cell in cells for run in cell.runs})
    panels = [_valley(cell, batches) for cell in cells[:MOST_PANELS]]
    note = (
        "One panel for each size and token budget. Grey: the optimum of the fit, with its 95 % interval; where there is"
        " none, the title says why."
    )
    return [Chart(f"optima{suffix}", f"Loss by learning rate, with the optimum{of}", note, tuple(panels))]


def _valley(cell: FittedCell, batches: Sequence[float]) -> Panel:
    series = []
    for index, batch in enumerate(batches):
        points = sorted((run.lr, run.loss) for run in cell.runs if run.lr and (run.batch or 0.0) == batch)
        if points:
            name = f"batch {format_count(batch)} tokens" if batch else "runs"
            lowest = dict(sorted(points, reverse=True))  # of several runs at a rate, keep the lowest loss
            series.append(Series(name, tuple(points), index))
            series.append(Series(name, tuple(sorted(lowest.items())), index, line=True, marks=False))
    found = cell.optimum
    title = cell.name
    if isinstance(found, Optimum) and "lr" in found.settings:
        rate = found.settings["lr"]
        series.append(
            Series(
                "fitted optimum",
                ((rate.value, found.loss.value),),
                x_ranges=((rate.low, rate.high),),
                y_ranges=((found.loss.low, found.loss.high),),
            )
        )
        if found.near_edge:
            title += "\nnear the edge"
    elif not isinstance(found, Optimum):
        title += "\n" + ("at the edge" if "edge" in str(found) else "no optimum")
    return Panel(title, "peak learning rate", _LOSS, tuple(series))


def _laws(family: FamilyFits, suffix: str, of: str) -> list[Chart]:
    panels = [
        _law_panel(family, setting, variable)
        for setting in family.laws
        for variable in _VARIABLES
        if len({_value(cell, variable) for cell in _with(family.cells, setting)}) > 1
    ]
    if not panels:
        return []
    note = (
        "Points: optima with 95 % intervals. Lines: our law, and published laws at the same N and D, which count"
        " parameters in different ways."
    )
    return [Chart(f"optimum_laws{suffix}", f"How the optimum depends on N, D and C{of}", note, tuple(panels))]


def _with(cells: Iterable[FittedCell], setting: str) -> list[FittedCell]:
    return [cell for cell in cells if isinstance(cell.optimum, Optimum) and setting in cell.optimum.settings]


def _value(cell: FittedCell, variable: str) -> float:
    return {"N": cell.parameters, "D": cell.tokens, "C": 6 * cell.parameters * cell.tokens}[variable]


def _law_panel(family: FamilyFits, setting: str, variable: str) -> Panel:
    cells = sorted(_with(family.cells, setting), key=lambda cell: _value(cell, variable))
    optima: list[Any] = [cell.optimum for cell in cells]
    estimates = [found.settings[setting] for found in optima]
    series = [
        Series(
            "optimum",
            tuple((_value(cell, variable), each.value) for cell, each in zip(cells, estimates, strict=True)),
            0,
            y_ranges=tuple((each.low, each.high) for each in estimates),
        )
    ]
    law = family.laws[setting]

    def ours(cell: FittedCell) -> float:
        return law.at(**{name: _value(cell, name) for name in law.variables}).value

    series += _lines("our law", ours, cells, variable, 0, 0)
    for index, published in enumerate(PUBLISHED):
        formula = getattr(published, setting)
        if formula is not None:
            series += _lines(
                published.name,
                lambda cell, formula=formula: formula(cell.parameters, cell.tokens),
                cells,
                variable,
                None,
                index,
            )
    return Panel("", _VARIABLES[variable], _SETTINGS[setting], tuple(series), log_y=True)


def _lines(
    name: str, predicted: Any, cells: Sequence[FittedCell], variable: str, colour: int | None, dash: int
) -> list[Series]:
    """Return the predictions of a law for some cells: a line for each value of the variable that is not on the
    axis.
    """
    other = "D" if variable == "N" else "N"
    groups: dict[float, list[tuple[float, float]]] = {}
    for cell in cells:
        groups.setdefault(_value(cell, other), []).append((_value(cell, variable), predicted(cell)))
    if max(map(len, groups.values())) < 2:  # N and D grow together: one line
        groups = {0.0: [pair for pairs in groups.values() for pair in pairs]}
    return [
        Series(name, tuple(pairs), colour, line=True, dash=dash, marks=False)
        for pairs in groups.values()
        if len(pairs) > 1
    ]


def _equal_compute(family: FamilyFits, suffix: str, of: str) -> list[Chart]:
    cells = family.cells
    found = isoflops(
        [cell.parameters for cell in cells], [cell.tokens for cell in cells], [cell.loss for cell in cells]
    )
    if not found:
        return []
    valleys: list[Series] = []
    best: list[tuple[float, float, float, float]] = []
    for index, (budget, (cell, optimum)) in enumerate(sorted(found.items())):
        points = sorted(zip(cell.settings["N"], cell.losses, strict=True))
        valleys.append(Series(f"C = {budget:.2g}", tuple(points), index, line=True))
        if isinstance(optimum, Optimum):
            n = optimum.settings["N"]
            best.append((budget, n.value, n.low, n.high))
            valleys.append(Series("best N", ((n.value, optimum.loss.value),), x_ranges=((n.low, n.high),)))
    panels = [Panel("Runs of equal compute", _VARIABLES["N"], _LOSS, tuple(valleys))]
    surface = family.surface
    budgets = sorted(found)
    forms: tuple[tuple[str, str, Callable[[float, float], float]], ...] = (
        ("Best size", "best N (parameters)", lambda c, n: n),
        ("Best tokens", "best D (tokens)", lambda c, n: c / 6 / n),
        ("Tokens per parameter", "best D/N", lambda c, n: c / 6 / n**2),
    )
    for title, label, of_size in forms:
        series = []
        if best:
            series.append(
                Series(
                    "approach 2",
                    tuple((c, of_size(c, n)) for c, n, _, _ in best),
                    0,
                    y_ranges=tuple(
                        (min(ends), max(ends))
                        for c, _, low, high in best
                        for ends in [(of_size(c, low), of_size(c, high))]
                    ),
                )
            )
        if surface is not None and surface.variables == ("N", "D"):
            sizes = [(c, surface.allocation("N", c)) for c in budgets]
            series.append(
                Series(
                    "law of the loss",
                    tuple((c, of_size(c, n.value)) for c, n in sizes),
                    1,
                    line=True,
                    marks=False,
                    y_ranges=tuple(
                        (min(ends), max(ends))
                        for c, n in sizes
                        for ends in [(of_size(c, n.low), of_size(c, n.high))]
                    ),
                    band=True,
                )
            )
        if series:
            panels.append(Panel(title, _VARIABLES["C"], label, tuple(series), log_y=True))
    note = "Losses of runs of the same C = 6 N D, their lowest, and how the best size grows; 95 % intervals."
    return [Chart(f"equal_compute{suffix}", f"Runs of equal compute{of}", note, tuple(panels))]
