"""All fits of a sweep, as rows of estimates or refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.fits.allocations import approach_1, approach_2
from airflow_megatron.results.fits.kinds import FitKind
from airflow_megatron.results.fits.loss_laws import CHINCHILLA_DELTA, LossLaw, fit_loss_law
from airflow_megatron.results.fits.optima import Cell, Optimum, find_optima
from airflow_megatron.results.fits.optimum_laws import OptimumLaw, fit_optimum_law
from airflow_megatron.results.fits.published import PUBLISHED
from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.results.fits.sweep_runs import groups_of
from airflow_megatron.results.tables.trainings import format_count
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.results.fits.intervals import Estimate
    from airflow_megatron.results.fits.sweep_runs import FinishedRun, SweepRuns

KINDS: Final = tuple(kind.value for kind in FitKind)
_TITLES: Final = {
    "optimum": "Optimum per size",
    "optimum-law": "Laws of the optimum",
    "loss-law": "Laws of the loss",
    "allocation": "Best size for a compute budget",
    "prediction": "Predictions",
}
_FORMULAS: Final = {
    "optimum": "Of each size and token budget: the settings of the lowest loss, and that loss.",
    "optimum-law": "optimum = c N^a D^b, or in C = 6 N D.",
    "loss-law": "L = E + A N^-α + B D^-β, nats per token.",
    "allocation": "best N ∝ C^a.",
    "prediction": "Of the next size; a run itself scatters around the loss that is predicted.",
}


@dataclass(frozen=True)
class FitRow:
    """One fit.

    :param name: what was fitted
    :param estimates: quantity → estimate
    :param remark: a remark for the reader
    :param refusal: why there is no fit, empty if there is one
    """

    name: str
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    remark: str = ""
    refusal: str = ""


@dataclass(frozen=True)
class FittedCell:
    """The runs of one size and token budget.

    :param parameters: N
    :param tokens: D
    :param runs: its runs
    :param optimum: of learning rate and batch, or why there is none
    """

    parameters: float
    tokens: float
    runs: tuple[FinishedRun, ...]
    optimum: Optimum | FitRefusedError

    @property
    def name(self) -> str:
        """The size and the budget, as readable text."""
        return f"N {format_count(self.parameters)}, D {format_count(self.tokens)}"

    @property
    def loss(self) -> float:
        """The loss at the optimum; without one, the lowest."""
        if isinstance(self.optimum, Optimum):
            return self.optimum.loss.value
        return min(run.loss for run in self.runs)


@dataclass(frozen=True)
class FamilyFits:
    """The fits of runs that differ only in size, tokens, learning rate and batch.

    :param family: values of the other swept parameters, empty if the sweep varies no others
    :param cells: sizes and budgets
    :param rows: kind of fit → its rows
    :param laws: laws of the optimum: setting → the law that predictions use
    :param surface: the law of the loss in N and D, or in one variable; None if all were refused
    """

    family: str
    cells: tuple[FittedCell, ...]
    rows: Mapping[str, Sequence[FitRow]]
    laws: Mapping[str, OptimumLaw]
    surface: LossLaw | None


@dataclass(frozen=True)
class SweepFits:
    """The fits of a sweep.

    :param counts: way of counting parameters
    :param loss: ``validation`` or ``training``
    :param families: the fits
    :param left_out: runs that no fit uses, with the reason
    """

    counts: str
    loss: str
    families: tuple[FamilyFits, ...]
    left_out: tuple[str, ...]


def fit_sweep(
    runs: SweepRuns, *, counts: str = "unpadded", kinds: Sequence[str] = KINDS, scale: float = 4.0
) -> SweepFits:
    """Make the fits of a sweep; a row has the refusal of a fit that the runs do not determine.

    :param runs: the runs
    :param counts: way of counting parameters (:data:`~airflow_megatron.results.fits.sweep_runs.COUNTS`)
    :param kinds: the wanted ones of :data:`KINDS`
    :param scale: factor of the prediction: times the largest size, and times its largest number of tokens
    :raises FitRefusedError: if there is no run to fit
    """
    known = [run for run in runs.runs if run.parameters.get(counts) and run.tokens > 0]
    left_out = list(runs.left_out)
    if unknown := len(runs.runs) - len(known):
        left_out.append(f"{counted(unknown, 'run')} whose {counts} parameters are not known")
    if not known:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        raise FitRefusedError(f"there is no finished run to fit{why}")
    families = {run.family: [other for other in known if other.family == run.family] for run in known}
    return SweepFits(
        counts,
        runs.loss,
        tuple(_family(name, members, counts, kinds, scale) for name, members in families.items()),
        tuple(left_out),
    )


def _family(
    name: str, runs: Sequence[FinishedRun], counts: str, kinds: Sequence[str], scale: float
) -> FamilyFits:
    cells = _cells(runs, counts)
    laws, law_rows = _optimum_laws(cells)
    surface, loss_rows = _loss_laws(cells)
    makers: dict[str, Callable[[], list[FitRow]]] = {
        "optimum": lambda: [_optimum_row(cell) for cell in cells] if _varied(cells) else [],
        "optimum-law": lambda: law_rows,
        "loss-law": lambda: loss_rows,
        "allocation": lambda: _allocations(cells, surface),
        "prediction": lambda: _predictions(cells, laws, surface, scale),
    }
    rows = {kind: made for kind in KINDS if kind in kinds and (made := makers[kind]())}
    return FamilyFits(name, cells, rows, laws, surface)


def _cells(runs: Sequence[FinishedRun], counts: str) -> tuple[FittedCell, ...]:
    sizes = groups_of(float(run.parameters[counts] or 0) for run in runs)
    budgets = groups_of(run.tokens for run in runs)
    members: dict[tuple[float, float], list[FinishedRun]] = {}
    for run in runs:
        members.setdefault((sizes[float(run.parameters[counts] or 0)], budgets[run.tokens]), []).append(run)
    found = find_optima({str(key): _cell(of_cell) for key, of_cell in members.items()})
    return tuple(FittedCell(*key, tuple(members[key]), found[str(key)]) for key in sorted(members))


def _cell(runs: Sequence[FinishedRun]) -> Cell:
    settings = {
        name: [float(getattr(run, name)) for run in runs]
        for name in ("lr", "batch")
        if all(getattr(run, name) for run in runs)
    }
    return Cell(settings, [run.loss for run in runs])


def _optimum_row(cell: FittedCell) -> FitRow:
    found = cell.optimum
    if isinstance(found, FitRefusedError):
        return FitRow(cell.name, refusal=str(found))
    remark = f"{found.runs} runs"
    if found.near_edge:
        remark += (
            f"; near the edge: the interval of {' and '.join(found.near_edge)} goes beyond what was tested"
        )
    return FitRow(cell.name, {**found.settings, "loss": found.loss}, remark)


def _attempt(name: str, make: Callable[[], tuple[Mapping[str, Estimate], str]]) -> FitRow:
    try:
        estimates, remark = make()
    except FitRefusedError as refused:
        return FitRow(name, refusal=str(refused))
    return FitRow(name, estimates, remark)


def _varies(values: Sequence[float]) -> bool:
    return max(values) > 1.5 * min(values)


def _optimum_laws(cells: Sequence[FittedCell]) -> tuple[dict[str, OptimumLaw], list[FitRow]]:
    laws: dict[str, OptimumLaw] = {}
    rows: list[FitRow] = []
    for setting in _varied(cells):
        made = [_optimum_law(cells, setting, names, laws) for names in _forms(setting, cells)]
        rows += [row for row in made if not row.refusal] or made[:1]  # one reason is sufficient
    return laws, rows


def _varied(cells: Sequence[FittedCell]) -> list[str]:
    return [
        name
        for name in ("lr", "batch")
        if any(len({getattr(run, name) for run in cell.runs} - {None}) > 1 for cell in cells)
    ]


def _optimum_law(
    cells: Sequence[FittedCell], setting: str, names: tuple[str, ...], laws: dict[str, OptimumLaw]
) -> FitRow:
    """Fit the laws of a setting; add the first one that is not refused to ``laws``."""
    have = [
        (cell, cell.optimum)
        for cell in cells
        if isinstance(cell.optimum, Optimum) and setting in cell.optimum.settings
    ]

    def make() -> tuple[Mapping[str, Estimate], str]:
        law = fit_optimum_law(
            {each: [_variable(cell, each) for cell, _ in have] for each in names},
            [found.settings[setting].value for _, found in have],
            [found.log_errors[setting] for _, found in have],
        )
        laws.setdefault(setting, law)
        exponents = {f"exponent of {each}": law.exponent(each) for each in names}
        return {"c": law.coefficient, **exponents}, f"{len(have)} optima"

    return _attempt(f"{setting}({', '.join(names)})", make)


def _forms(setting: str, cells: Sequence[FittedCell]) -> list[tuple[str, ...]]:
    """Return the variables of the laws of a setting, the one for predictions first."""
    sizes, budgets = [cell.parameters for cell in cells], [cell.tokens for cell in cells]
    if _varies(sizes) and _varies(budgets):
        forms: list[tuple[str, ...]] = [("N", "D"), ("C",)]
        return [("D",), *forms] if setting == "batch" else [*forms, ("N",)] if _together(cells) else forms
    return [("D",)] if _varies(budgets) else [("N",)]


def _together(cells: Sequence[FittedCell]) -> bool:
    """Return whether each size has only one token budget."""
    return len({cell.parameters for cell in cells}) == len(cells)


def _variable(cell: FittedCell, name: str) -> float:
    return {"N": cell.parameters, "D": cell.tokens, "C": 6 * cell.parameters * cell.tokens}[name]


def trunks_of(cells: Sequence[FittedCell]) -> list[int]:
    """Return the number of the trunk of each cell; cells with branches of the same points share one."""
    trunks: list[int] = []
    points: list[set[str]] = []
    for number, cell in enumerate(cells):
        mine = {run.point for run in cell.runs}
        shared = {trunk for trunk, theirs in zip(trunks, points, strict=True) if mine & theirs}
        trunks = [number if trunk in shared else trunk for trunk in trunks] + [number]
        points.append(mine)
    return trunks


def _loss_laws(cells: Sequence[FittedCell]) -> tuple[LossLaw | None, list[FitRow]]:
    losses = [cell.loss for cell in cells]
    sizes, budgets = [cell.parameters for cell in cells], [cell.tokens for cell in cells]
    fitted: list[LossLaw] = []
    trunks = trunks_of(cells)

    def row(label: str, names: tuple[str, ...], delta: float | None = None) -> FitRow:
        def make() -> tuple[Mapping[str, Estimate], str]:
            variables = {name: [_variable(cell, name) for cell in cells] for name in names}
            law = fit_loss_law(variables, losses, delta=delta, trunks=trunks)
            fitted.append(law)
            letters = {"N": ("A", "α"), "D": ("B", "β"), "C": ("A", "α")}
            estimates = {"E": law.floor}
            for name in names:
                size, exponent = letters[name]
                estimates |= {size: law.coefficient(name), exponent: law.exponent(name)}
            return estimates, f"{counted(len(losses), 'loss', 'losses')}, scatter {law.scatter:.2%}"

        return _attempt(label, make)

    if _varies(sizes) and _varies(budgets):
        rows = [
            row("variable projection, N and D", ("N", "D")),
            row("approach 3, N and D", ("N", "D"), CHINCHILLA_DELTA),
        ]
        if _together(cells):
            rows.append(row("C alone", ("C",)))
    else:
        rows = [row("D alone", ("D",)) if _varies(budgets) else row("N alone", ("N",))]
    return (fitted[0] if fitted else None), rows


def _allocations(cells: Sequence[FittedCell], surface: LossLaw | None) -> list[FitRow]:
    sizes, budgets = [cell.parameters for cell in cells], [cell.tokens for cell in cells]
    if not (_varies(sizes) and _varies(budgets)):
        return []
    losses, trunks = [cell.loss for cell in cells], trunks_of(cells)
    rows = [
        _attempt("approach 1", lambda: ({"a": approach_1(sizes, budgets, losses, trunks).exponent("C")}, "")),
        _attempt("approach 2", lambda: ({"a": approach_2(sizes, budgets, losses).exponent("C")}, "")),
    ]
    if surface is not None and surface.variables == ("N", "D"):
        rows.append(
            FitRow(
                "variable projection, β/(α+β)", {"a": surface.allocation_exponent("N")}, "the least biased"
            )
        )
    published = [f"{law.name} {law.model_exponent:.2f}" for law in PUBLISHED if law.model_exponent]
    return [*rows, FitRow("published", remark=", ".join(published))]


def _predictions(
    cells: Sequence[FittedCell], laws: Mapping[str, OptimumLaw], surface: LossLaw | None, scale: float
) -> list[FitRow]:
    if not laws and surface is None:
        return []
    at = next_size(cells, scale)
    estimates = {name: law.at(**{each: at[each] for each in law.variables}) for name, law in laws.items()}
    if surface is not None:
        estimates["loss"] = surface.loss(**{each: at[each] for each in surface.variables})
    name = f"N {format_count(at['N'])}, D {format_count(at['D'])}"
    rows = [FitRow(name, estimates, f"{scale:g} times the largest size")]
    for law in PUBLISHED:
        predictions: list[tuple[str, float, str]] = []
        for quantity, form in (("lr", ".3g"), ("batch", ".3g"), ("loss", ".4g")):
            formula = getattr(law, quantity)
            if formula is not None:
                predictions.append((quantity, formula(at["N"], at["D"]), form))
        if predictions:
            text = ", ".join(f"{quantity} {value:{form}}" for quantity, value, form in predictions)
            rows.append(FitRow(law.name, remark=f"{text} ({law.counts} parameters)"))
    return rows


def next_size(cells: Sequence[FittedCell], scale: float) -> dict[str, float]:
    """Return N, D and C of the next size: a multiple of the largest, with its largest number of tokens per
    parameter.
    """
    largest = max(cell.parameters for cell in cells)
    ratio = max(cell.tokens for cell in cells if cell.parameters == largest) / largest
    n = largest * scale
    return {"N": n, "D": n * ratio, "C": 6 * n * n * ratio}


def to_json(fits: SweepFits) -> dict[str, Any]:
    """Return the fits as a JSON object."""
    return {
        "parameters": fits.counts,
        "loss": fits.loss,
        "level": 0.95,
        "left_out": list(fits.left_out),
        "families": [
            {
                "family": family.family,
                "fits": {
                    kind: [
                        {
                            "name": row.name,
                            "estimates": {name: each.to_json() for name, each in row.estimates.items()},
                            "remark": row.remark,
                            "refusal": row.refusal,
                        }
                        for row in rows
                    ]
                    for kind, rows in family.rows.items()
                },
            }
            for family in fits.families
        ],
    }


def display_tables(fits: SweepFits) -> list[tuple[str, str, list[list[str]]]]:
    """Return readable tables of the fits: title, note, and lines of cells with the headings first."""
    tables = []
    for family in fits.families:
        for kind, rows in family.rows.items():
            names = list(dict.fromkeys(name for row in rows for name in row.estimates))
            lines = [["", *names, "remark"]]
            for row in rows:
                shown = [_shown(row.estimates.get(name)) for name in names]
                lines.append([row.name, *shown, f"refused: {row.refusal}" if row.refusal else row.remark])
            title = _TITLES[kind] + (f", {family.family}" if family.family else "")
            tables.append((title, _FORMULAS[kind], lines))
    return tables


def _shown(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
