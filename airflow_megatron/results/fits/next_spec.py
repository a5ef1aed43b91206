"""A spec for the next size: the best run of the largest, scaled, with the learning rate and batch that fits predict."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any, Final

import yaml

from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.results.fits.sweep_fits import next_size
from airflow_megatron.results.fits.sweep_runs import estimated_counts
from airflow_megatron.results.tables.trainings import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow_megatron.results.fits.intervals import Estimate
    from airflow_megatron.results.fits.sweep_fits import FamilyFits, SweepFits
    from airflow_megatron.results.fits.sweep_runs import FinishedRun
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.spec.documents.yaml_document import YamlDocument

_RATES: Final = ("lr", "learning_rate")
_BATCH: Final = "global_batch_size"


def next_spec(
    name: str,
    document: YamlDocument,
    fits: SweepFits,
    scale: float,
    path: Path,
    planned: Mapping[str, float] | None = None,
) -> str:
    """Write the spec as YAML: it extends the sweep's own and replaces its points by one.

    Of the swept parameters it scales those that determine the size: layers, hidden size, heads, feed-forward size. The
    number of layers and the hidden size grow by the same factor, as far as whole heads allow.

    :param name: name of the sweep
    :param document: the sweep's spec
    :param fits: its fits
    :param scale: next size over the largest
    :param path: future path of the spec
    :param planned: N, D and C of the training in the new spec (:func:`planned_size`), for which settings are
        predicted; None for those of the next size
    :raises FitRefusedError: if the fits do not predict a learning rate, or the sweep's sizes are not of this form
    """
    data = document.data
    if not isinstance(data, dict) or "stages" not in data or not isinstance(data.get("sweep"), dict):
        raise FitRefusedError("only a native spec with a sweep can be extended: import this one first")
    best = min((_best(family), index) for index, family in enumerate(fits.families))
    family = fits.families[best[1]]
    if "lr" not in family.laws:
        why = next((row.refusal for row in family.rows.get("optimum-law", ()) if row.refusal), "")
        raise FitRefusedError(
            f"there is no law of the learning rate to take the next one from{': ' if why else ''}{why}"
        )
    at = planned or next_size(family.cells, scale)
    predicted = {
        setting: law.at(**{each: at[each] for each in law.variables}) for setting, law in family.laws.items()
    }
    run = _start(family)
    config = dict(run.swept)
    _scale(config, scale)
    _set(config, run, predicted, family)
    for key, value in config.items():
        if isinstance(value, str) and len({other.swept.get(key) for other in _all(family)}) > 1:
            config[key] = f"x{scale:g}"  # the name of a size
    rate = predicted["lr"]
    size, tokens = format_count(at["N"]), format_count(at["D"])
    lines = [
        f"# {scale:g} times the largest size of {name}: N {size} ({fits.counts} parameters), D {tokens} tokens.",
        f"# Learning rate for this N and D: 95 % interval {rate.low:.3g} to {rate.high:.3g}.",
    ]
    spec = {
        "extends": os.path.relpath(document.file, path.parent),
        "name": f"{name}_x{scale:g}".replace(".", "_"),
        "description": f"{name}, {scale:g} times its largest size",
        "sweep": {**dict.fromkeys(data["sweep"]), "configs": [config]},
    }
    return "\n".join(lines) + "\n" + yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)


def planned_size(jobs: Sequence[SweepJob], fits: SweepFits, scale: float) -> dict[str, float] | None:
    """Return N, D and C = 6 N D of the longest training of a plan; None if its arguments do not determine D.

    :param jobs: jobs of the plan
    :param fits: fits of the sweep; their next size gives N if the arguments do not determine it
    :param scale: next size over the largest
    """
    found = []
    predicted = max(cell.parameters for family in fits.families for cell in family.cells) * scale
    for job in jobs:
        batch, tokens = job.params.get(_BATCH), (job.train_iters or 0) * (job.seq_length or 0)
        if job.reported_as != "training" or not isinstance(batch, int) or not tokens:
            continue
        size, d = estimated_counts(job).get(fits.counts) or predicted, float(tokens * batch)
        found.append({"N": size, "D": d, "C": 6 * size * d})
    return max(found, key=lambda each: each["D"], default=None)


def _all(family: FamilyFits) -> list[FinishedRun]:
    return [run for cell in family.cells for run in cell.runs]


def _best(family: FamilyFits) -> float:
    return min(run.loss for run in _all(family))


def _start(family: FamilyFits) -> FinishedRun:
    """Return the best run of the largest size."""
    largest = max(cell.parameters for cell in family.cells)
    return min(
        (run for cell in family.cells if cell.parameters == largest for run in cell.runs),
        key=lambda run: run.loss,
    )


def _scale(config: dict[str, Any], scale: float) -> None:
    hidden, layers = config.get("hidden_size"), config.get("num_layers")
    if not isinstance(hidden, int) and not isinstance(layers, int):
        raise FitRefusedError(
            "the sweep varies neither hidden_size nor num_layers: write the next size's spec by hand"
        )
    wanted = scale
    if isinstance(hidden, int):
        heads = config.get("num_attention_heads")
        unit = hidden // heads if isinstance(heads, int) and heads > 0 and hidden % heads == 0 else 64
        grown = scale ** (1 / 3 if isinstance(layers, int) else 1 / 2)
        groups = config.get("num_query_groups")
        step = groups if isinstance(groups, int) and groups > 0 else 1
        count = max(step, step * round(hidden * grown / unit / step))
        if isinstance(heads, int):
            config["num_attention_heads"] = count
        config["hidden_size"] = unit * count
        wanted = scale / (config["hidden_size"] / hidden) ** 2
        inner = config.get("ffn_hidden_size")
        if isinstance(inner, int):
            config["ffn_hidden_size"] = 64 * max(1, round(inner * config["hidden_size"] / hidden / 64))
    if isinstance(layers, int):
        config["num_layers"] = max(1, round(layers * wanted))


def _set(
    config: dict[str, Any], run: FinishedRun, predicted: Mapping[str, Estimate], family: FamilyFits
) -> None:
    rate = next((each for each in _RATES if each in config), None)
    if rate is None:
        raise FitRefusedError("the sweep does not vary lr: write the next size's spec by hand")
    config[rate] = float(f"{predicted['lr'].value:.3g}")
    if "batch" in predicted and isinstance(config.get(_BATCH), int) and run.batch:
        tested = [
            int(other.swept[_BATCH]) for other in _all(family) if isinstance(other.swept.get(_BATCH), int)
        ]
        unit = functools.reduce(math.gcd, tested)
        samples = predicted["batch"].value * config[_BATCH] / run.batch
        config[_BATCH] = max(unit, unit * round(samples / unit))
