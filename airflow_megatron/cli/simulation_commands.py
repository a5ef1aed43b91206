"""``airflow-megatron simulate``: compare restart policies on a simulated cluster."""

from __future__ import annotations

import importlib.util
import json
import sys
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer


class SimulatedWork(StrEnum):
    """Workload of the simulated cluster."""

    TRAINING = "training"
    SWEEP = "sweep"


_SIZES = {SimulatedWork.TRAINING: [1024, 4096, 16384], SimulatedWork.SWEEP: [1024]}
"""Default numbers of GPUs."""


def simulate(
    output: Annotated[
        Path | None, typer.Option(help="Directory for simulation.md, simulation.json and plots")
    ] = None,
    work: Annotated[
        list[SimulatedWork] | None,
        typer.Option(help="One training on all GPUs, or a sweep of 4-node trainings; default: both"),
    ] = None,
    gpus: Annotated[
        list[int] | None, typer.Option(help="Size of the cluster; may be given several times")
    ] = None,
    days: Annotated[float, typer.Option(min=0.1, help="Length of a run")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy")] = 20,
    rate: Annotated[
        str, typer.Option(help="Incidents per 1000 node-days: a number, or the name of a published rate")
    ] = "meta-rsc1",
    processes: Annotated[int, typer.Option(min=1, help="Policies simulated at the same time")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with closed formulas and published figures instead")
    ] = False,
    policy: Annotated[
        list[str] | None, typer.Option(help="Only this policy; may be given several times")
    ] = None,
) -> None:
    """Compare restart policies on a simulated cluster, with the code that supervises real jobs."""
    if importlib.util.find_spec("simpy") is None:
        print("the simulation needs simpy: pip install 'airflow-megatron[simulation]'", file=sys.stderr)
        raise typer.Exit(1)
    from airflow_megatron.results.plots.figures import missing_for_plots
    from airflow_megatron.simulation.reports.comparison import compare
    from airflow_megatron.simulation.reports.plots import draw
    from airflow_megatron.simulation.reports.report import tables
    from airflow_megatron.simulation.reports.validation import validation_table
    from airflow_megatron.simulation.scenarios import scenario
    from airflow_megatron.simulation.supervisors.policies import POLICIES

    if check:
        print(validation_table(seeds=seeds, days=days))
        return
    known = {known.name: known for known in POLICIES}
    for name in policy or ():
        if name not in known:
            raise typer.BadParameter(f"there is no policy {name!r}; known: {', '.join(known)}")
    chosen = [known[name] for name in policy] if policy else list(POLICIES)
    scenarios = []
    for kind in work or list(SimulatedWork):
        for size in gpus or _SIZES[kind]:
            try:
                scenarios.append(scenario(kind.value, size, days=days, rate=_rate(rate)))
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    results = []
    for result in compare(scenarios, chosen, seeds, processes=processes):
        ettr = result.mean(lambda outcome: outcome.ettr)
        label = f"{result.scenario.name}, {result.scenario.gpus} GPUs, {result.policy.name}"
        typer.echo(f"{label}: ETTR {100 * ettr.value:.1f} %", err=True)
        results.append(result)
    report = tables(results)
    print(report)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "simulation.md").write_text(report, encoding="utf-8")
        data = json.dumps([result.to_json() for result in results], indent=1)
        (output / "simulation.json").write_text(data, encoding="utf-8")
        missing = missing_for_plots()
        if missing:
            print(missing, file=sys.stderr)
        for plot in [] if missing else draw(results):
            (output / f"{plot.name}.png").write_bytes(plot.png)
            (output / f"{plot.name}.svg").write_bytes(plot.svg)


def _rate(text: str) -> float:
    from airflow_megatron.simulation.site.site import PUBLISHED_RATES

    if text in PUBLISHED_RATES:
        return PUBLISHED_RATES[text]
    try:
        value = float(text)
    except ValueError:
        names = ", ".join(PUBLISHED_RATES)
        raise typer.BadParameter(f"{text!r} is neither a number nor one of {names}") from None
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"a rate must be positive, got {text}")
    return value
