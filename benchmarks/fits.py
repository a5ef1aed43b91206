"""How well the fits' intervals hold: synthetic sweeps, StepLaw's data, scenarios that bias approach 2, another tool.

python benchmarks/fits.py coverage 1000
python benchmarks/fits.py further 300 81                     # small grids, approaches 1 to 3, cooldowns of trunks; seed
python benchmarks/fits.py allocations 600 86                 # approaches 1 to 3 alone; seed
python benchmarks/fits.py shared-trunks 600 89               # approach 2 on cooldowns that share trunks; seed
python benchmarks/fits.py steplaw dense_lr_bs_loss.csv       # of github.com/step-law/steplaw, data/
python benchmarks/fits.py bias                               # scenarios of
github.com/Open-Athena/scaling-law-analysis
python benchmarks/fits.py chinchilla 10                      # pip install chinchilla
(github.com/kyo-takano/chinchilla)
"""

from __future__ import annotations

import csv
import math
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_megatron.results.fits.allocations import approach_1, approach_2
from airflow_megatron.results.fits.loss_laws import CHINCHILLA_DELTA, fit_loss_law
from airflow_megatron.results.fits.optima import Cell, Optimum, find_optima
from airflow_megatron.results.fits.optimum_laws import fit_optimum_law
from airflow_megatron.results.fits.refusals import FitRefusedError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "results" / "fits"))
from synthetic_sweeps import (
    Surface,
    grid_sweep,
    isoflop_sweep,
    loss_sweep,
    random_surface,
    rate_sweep,
    trunk_isoflop_sweep,
    trunk_sweep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.results.fits.intervals import Array, Estimate
    from airflow_megatron.results.fits.optimum_laws import OptimumLaw


class Coverage:
    """Counts how often intervals hold the true value."""

    def __init__(self) -> None:
        self.hits: defaultdict[str, list[bool]] = defaultdict(list)
        self.halves: defaultdict[str, list[float]] = defaultdict(list)
        self.fittable: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def add(self, quantity: str, estimate: Estimate, truth: float) -> None:
        """Count an interval."""
        self.hits[quantity].append(estimate.low <= truth <= estimate.high)
        self.halves[quantity].append(estimate.half_width)

    def print(self) -> None:
        """Print the shares, as a table in Markdown."""
        print("| quantity | intervals | cover | median half-width |\n| --- | --- | --- | --- |")
        for quantity, hits in self.hits.items():
            half = np.median(self.halves[quantity])
            print(f"| {quantity} | {len(hits)} | {np.mean(hits):.1%} | {half:.2g} |")
        for what, count in self.fittable.items():
            print(f"refused of {count} fittable {what}: {self.refused[what] / count:.1%}")


def coverage(count: int) -> None:
    rng, kept = np.random.default_rng(2026), Coverage()
    begin = time.process_time()
    for _ in range(count):
        rates(rng, kept)
    for _ in range(count):
        losses(rng, kept)
    kept.print()
    print(f"{time.process_time() - begin:.0f} s of processor time")


def rates(rng: np.random.Generator, kept: Coverage) -> None:
    sweep = rate_sweep(rng)
    found = find_optima(sweep.cells)
    for name in sweep.fittable:
        kept.fittable["optima"] += 1
        optimum = found[name]
        if isinstance(optimum, Optimum):
            kept.add("best learning rate of a size", optimum.settings["lr"], sweep.optima[name])
        else:
            kept.refused["optima"] += 1
    optima = [(name, each) for name, each in found.items() if isinstance(each, Optimum)]
    kept.fittable["laws of the optimum"] += len(sweep.fittable) >= 3
    try:
        law = fit_optimum_law(
            {"N": [sweep.sizes[name] for name, _ in optima]},
            [each.settings["lr"].value for _, each in optima],
            [each.log_errors["lr"] for _, each in optima],
        )
    except FitRefusedError:
        kept.refused["laws of the optimum"] += len(sweep.fittable) >= 3
        return
    kept.add("its exponent in N", law.exponent("N"), sweep.exponent)
    kept.add("its prediction at 10 times the largest size", law.at(N=2e10), sweep.optimum(2e10))


def losses(rng: np.random.Generator, kept: Coverage) -> None:
    truth = random_surface(rng)
    n, d, values = loss_sweep(rng, truth)
    kept.fittable["laws of the loss"] += 1
    try:
        law = fit_loss_law({"N": n.tolist(), "D": d.tolist()}, values.tolist())
    except FitRefusedError:
        kept.refused["laws of the loss"] += 1
        return
    kept.add("E", law.floor, truth.e)
    kept.add("A", law.coefficient("N"), truth.a)
    kept.add("B", law.coefficient("D"), truth.b)
    kept.add("α", law.exponent("N"), truth.alpha)
    kept.add("β", law.exponent("D"), truth.beta)
    kept.add("loss at 10 times the largest size", law.loss(N=2e10, D=4e11), float(truth.loss(2e10, 4e11)))
    kept.add("exponent of the best N", law.allocation_exponent("N"), truth.beta / (truth.alpha + truth.beta))
    kept.add("best N for 1e23 operations", law.allocation("N", 1e23), truth.best_size(1e23))


def further(count: int, seed: int) -> None:
    """Measure what ``coverage`` does not: small grids, approaches 1 to 3, cooldowns of shared trunks."""
    rng, kept = np.random.default_rng(seed), Coverage()
    for _ in range(count):
        grids(rng, kept)
        truth = random_surface(rng)
        approaches(rng, kept, truth)
        trunks(rng, kept, truth)
    kept.print()


def allocations(count: int, seed: int) -> None:
    """Measure approaches 1 to 3 alone."""
    rng, kept = np.random.default_rng(seed), Coverage()
    for _ in range(count):
        approaches(rng, kept, random_surface(rng))
    kept.print()


def shared_trunks(count: int, seed: int) -> None:
    """Measure approach 2 on cooldowns of which each size's share a trunk."""
    rng, kept = np.random.default_rng(seed), Coverage()
    for _ in range(count):
        truth = random_surface(rng)
        kept_allocation("approach 2 on trunks", kept, truth, approach_2, trunk_isoflop_sweep(rng, truth))
    kept.print()


def grids(rng: np.random.Generator, kept: Coverage) -> None:
    sweep = grid_sweep(rng)
    found = find_optima(sweep.cells)
    optima = [(name, each) for name, each in found.items() if isinstance(each, Optimum)]
    kept.fittable["grids"] += len(found)
    kept.refused["grids"] += len(found) - len(optima)
    for setting, exponent in sweep.exponents.items():
        for name, each in optima:
            kept.add(f"grid: best {setting} of a size", each.settings[setting], sweep.optima[name][setting])
        kept.fittable[f"laws of {setting} from grids"] += 1
        try:
            law = fit_optimum_law(
                {"N": [sweep.sizes[name] for name, _ in optima]},
                [each.settings[setting].value for _, each in optima],
                [each.log_errors[setting] for _, each in optima],
            )
        except FitRefusedError:
            kept.refused[f"laws of {setting} from grids"] += 1
            continue
        kept.add(f"grid: exponent of {setting} in N", law.exponent("N"), exponent)


def approaches(rng: np.random.Generator, kept: Coverage, truth: Surface) -> None:
    product, isoflop = loss_sweep(rng, truth), isoflop_sweep(rng, truth)
    kept_allocation("approach 1", kept, truth, approach_1, product)
    kept_allocation("approach 2", kept, truth, approach_2, isoflop)
    n, d, values = product
    law_quantities("approach 3", kept, truth, n, d, values, delta=CHINCHILLA_DELTA)


def kept_allocation(
    what: str,
    kept: Coverage,
    truth: Surface,
    approach: Callable[..., OptimumLaw],
    runs: tuple[Array, Array, Array],
) -> None:
    n, d, values = runs
    # without noise: many sweeps have no sizes on both sides of the optimum at three budgets
    fittable = _fitted(approach, n, d, truth.loss(n, d)) is not None
    law = _fitted(approach, n, d, values)
    kept.fittable[what] += fittable
    if law is None:
        kept.refused[what] += fittable
        return
    exponent = truth.beta / (truth.alpha + truth.beta)
    kept.add(f"{what}: exponent of the best N", law.exponent("C"), exponent)


def _fitted(approach: Callable[..., OptimumLaw], n: Array, d: Array, values: Array) -> OptimumLaw | None:
    try:
        return approach(n.tolist(), d.tolist(), values.tolist())
    except FitRefusedError:
        return None


def trunks(rng: np.random.Generator, kept: Coverage, truth: Surface) -> None:
    n, d, values = trunk_sweep(rng, truth)
    law_quantities("trunks, assumed to be independent runs", kept, truth, n, d, values)
    law_quantities("trunks", kept, truth, n, d, values, trunks=n.tolist())
    kept_allocation(
        "approach 1 on trunks", kept, truth, lambda *runs: approach_1(*runs, n.tolist()), (n, d, values)
    )


def law_quantities(
    what: str, kept: Coverage, truth: Surface, n: Array, d: Array, values: Array, **options: Any
) -> None:
    kept.fittable[what] += 1
    try:
        law = fit_loss_law({"N": n.tolist(), "D": d.tolist()}, values.tolist(), **options)
    except FitRefusedError:
        kept.refused[what] += 1
        return
    kept.add(f"{what}: E", law.floor, truth.e)
    kept.add(f"{what}: α", law.exponent("N"), truth.alpha)
    kept.add(f"{what}: β", law.exponent("D"), truth.beta)
    share = truth.beta / (truth.alpha + truth.beta)
    kept.add(f"{what}: exponent of the best N", law.allocation_exponent("N"), share)
    prediction, true = law.loss(N=2e10, D=4e11), float(truth.loss(2e10, 4e11))
    kept.add(f"{what}: loss at 10 times the size", prediction, true)


def steplaw(path: str) -> None:
    cells: defaultdict[tuple[float, float], list[tuple[float, float, float]]] = defaultdict(list)
    with Path(path).open() as file:
        for row in csv.DictReader(file):
            run = float(row["lr"]), float(row["bs"]) * 2048, float(row["smooth loss"])
            cells[float(row["N"]), float(row["D"])].append(run)
    found = find_optima(
        {
            str(key): Cell(
                {"lr": [r for r, _, _ in runs], "batch": [b for _, b, _ in runs]}, [x for *_, x in runs]
            )
            for key, runs in cells.items()
        }
    )
    optima = [(key, each) for key in cells if isinstance(each := found[str(key)], Optimum)]
    print(f"{len(optima)} of {len(cells)} cells have an optimum\n")
    print("| law | published | fitted | 95 % interval | half-width |\n| --- | --- | --- | --- | --- |")
    for setting, names, published in (
        ("lr", ("N", "D"), (-0.713, 0.307)),
        ("batch", ("D",), (0.571,)),
        ("batch", ("N", "D"), (0.0, 0.571)),
    ):
        columns = {"N": [n for (n, _), _ in optima], "D": [d for (_, d), _ in optima]}
        law = fit_optimum_law(
            {name: columns[name] for name in names},
            [each.settings[setting].value for _, each in optima],
            [each.log_errors[setting] for _, each in optima],
        )
        for name, value in zip(names, published, strict=True):
            fitted = law.exponent(name)
            interval = f"{fitted.low:.4f} to {fitted.high:.4f}"
            label = f"{setting}({', '.join(names)}): {name}"
            print(f"| {label} | {value} | {fitted.value:.3f} | {interval} | {fitted.half_width:.3f} |")


SURFACES = {
    "symmetric": Surface(1.69, 400, 400, 0.31, 0.31),
    "chinchilla": Surface(1.69, 406.4, 410.7, 0.34, 0.28),
    "asymmetric": Surface(1.69, 406.4, 410.7, 0.465, 0.155),
}
SAMPLINGS = {
    "baseline": (0, 1),
    "drift 0.2": (0.2, 1),
    "drift 0.4": (0.4, 1),
    "scale 1.5": (0, 1.5),
    "scale 2": (0, 2),
}
BUDGETS = np.array([1e17, 1e18, 1e19, 1e20, 1e21])
FARTHER = np.geomspace(1e22, 1e25, 7)


def bias(count: int = 20) -> None:
    """Compare the bias of the best D at 1e22 to 1e25 operations: without noise, and its mean over noisy sweeps."""
    print("| surface | sampling | noise | approach 2: bias of D | ours | exponent of N: approach 2 | ours |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(1)
    for name, surface in SURFACES.items():
        for sampling, (drift, scale) in SAMPLINGS.items():
            for noise in (0.0, 0.002):
                errors = [errors_of(surface, drift, scale, noise, rng) for _ in range(count if noise else 1)]
                plain, ours, plain_a, our_a = np.abs(np.mean([each for each in errors if each], axis=0))
                print(
                    f"| {name} | {sampling} | {noise:.1%} | {math.expm1(plain):.1%} | {math.expm1(ours):.1%} | "
                    f"{plain_a:.4f} | "
                    f"{our_a:.4f} |"
                )


def errors_of(
    surface: Surface, drift: float, scale: float, noise: float, rng: np.random.Generator
) -> tuple[float, ...] | None:
    """Return the mean log error of the best D of approach 2 and of ours, and the errors of the exponent of N."""
    n_all, d_all, l_all, best = [], [], [], []
    for index, budget in enumerate(BUDGETS):
        centre = (
            math.log10(surface.best_size(budget)) - math.log10(scale) - drift * index / (len(BUDGETS) - 1)
        )
        n = np.logspace(centre - 1, centre + 1, 15)
        d = budget / 6 / n
        values = surface.loss(n, d) * np.exp(noise * rng.standard_t(3, 15) / math.sqrt(3))
        parabolas = [np.polyfit(np.log(each), values, 2) for each in (n, d)]
        best.append([-b / (2 * a) for a, b, _ in parabolas])
        n_all.append(n), d_all.append(d), l_all.append(values)
    logs = np.log(BUDGETS)
    in_n, in_d = (np.polyfit(logs, np.array(best)[:, axis], 1) for axis in (0, 1))
    try:
        law = fit_loss_law(
            {"N": np.concatenate(n_all).tolist(), "D": np.concatenate(d_all).tolist()},
            np.concatenate(l_all).tolist(),
        )
    except FitRefusedError:
        return None
    true = np.log([budget / 6 / surface.best_size(budget) for budget in FARTHER])
    plain = float(np.mean(np.polyval(in_d, np.log(FARTHER)) - true))
    ours = float(np.mean(np.log([law.allocation("D", budget).value for budget in FARTHER]) - true))
    exponent = surface.beta / (surface.alpha + surface.beta)
    return plain, ours, float(in_n[0]) - exponent, law.allocation_exponent("N").value - exponent


def chinchilla(count: int) -> None:
    """Fit the same noisy sweeps with kyo-takano/chinchilla, from its own grid of starts."""
    from chinchilla import Chinchilla

    grid = {
        "e": np.linspace(0.3, 0.9, 3),
        "a": np.linspace(4, 9, 3),
        "b": np.linspace(4, 9, 3),
        "alpha": np.linspace(0.25, 0.5, 3),
        "beta": np.linspace(0.25, 0.5, 3),
    }
    rng = np.random.default_rng(5)
    kept: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    seconds: Counter[str] = Counter()
    for _ in range(count):
        truth = random_surface(rng)
        n, d, values = loss_sweep(rng, truth)
        begin = time.perf_counter()
        law = fit_loss_law({"N": n.tolist(), "D": d.tolist()}, values.tolist())
        seconds["ours"] += time.perf_counter() - begin
        true = float(truth.loss(2e10, 4e11))
        kept["ours"].append(
            (
                law.exponent("N").value - truth.alpha,
                law.exponent("D").value - truth.beta,
                law.loss(N=2e10, D=4e11).value / true - 1,
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            other = Chinchilla(folder, param_grid=grid, seed_ranges={}, log_level=50)
            for size, tokens, loss in zip(n, d, values, strict=True):
                other.append(N=size, D=tokens, C=6 * size * tokens, loss=loss)
            begin = time.perf_counter()
            other.fit()
            seconds["chinchilla"] += time.perf_counter() - begin
            predicted = float(other.predict_loss(2e10, 4e11))
        kept["chinchilla"].append(
            (float(other.alpha) - truth.alpha, float(other.beta) - truth.beta, predicted / true - 1)
        )
    print("| tool | rms error of α | of β | of the loss at 10 times the size | s per fit | intervals |")
    print("| --- | --- | --- | --- | --- | --- |")
    for tool, errors in kept.items():
        a, b, loss = np.sqrt((np.array(errors) ** 2).mean(0))
        has = "yes" if tool == "ours" else "no"
        print(f"| {tool} | {a:.3f} | {b:.3f} | {loss:.2%} | {seconds[tool] / count:.2f} | {has} |")


if __name__ == "__main__":
    which, *rest = sys.argv[1:]
    if which == "coverage":
        coverage(int(rest[0]) if rest else 100)
    elif which == "further":
        further(int(rest[0]), int(rest[1]))
    elif which == "allocations":
        allocations(int(rest[0]), int(rest[1]))
    elif which == "shared-trunks":
        shared_trunks(int(rest[0]), int(rest[1]))
    elif which == "steplaw":
        steplaw(rest[0])
    elif which == "bias":
        bias()
    else:
        chinchilla(int(rest[0]) if rest else 3)
