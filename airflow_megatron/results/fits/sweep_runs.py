"""The finished runs of a sweep, for fits: parameters, tokens, learning rate, batch, final loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.arguments.tables import argument_table
from airflow_megatron.megatron.estimates.estimate import estimate
from airflow_megatron.results.fits.kinds import ParameterCount
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.readings.sweep_jobs import format_value
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.tables.trainings import Branch, ResultTable

COUNTS: Final = tuple(count.value for count in ParameterCount)
_ANNEALED: Final = 0.5
"""Fraction of the peak learning rate; a run that ends above it has not been annealed."""
_SEEDS: Final = frozenset(("seed", "data_seed"))
_SAME: Final = 0.02
"""Relative difference below which token counts and parameters are the same budget and the same size."""


@dataclass(frozen=True)
class FinishedRun:
    """One training that ended.

    :param point: its point
    :param branch: its branch
    :param parameters: way of counting (:data:`COUNTS`) → number of parameters; None if unknown
    :param tokens: tokens seen
    :param lr: peak learning rate
    :param batch: tokens of a batch
    :param loss: final loss, nats per token
    :param swept: the swept parameters
    :param family: values of the other swept parameters, as text; fits are made within a family
    """

    point: str
    branch: str
    parameters: Mapping[str, float | None]
    tokens: float
    lr: float | None
    batch: float | None
    loss: float
    swept: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep.

    :param runs: those that fits use
    :param loss: kind of the losses: ``validation`` or ``training``
    :param left_out: why runs were left out, one sentence each
    """

    runs: tuple[FinishedRun, ...]
    loss: str
    left_out: tuple[str, ...]


def sweep_runs(table: ResultTable) -> SweepRuns:
    """Return the runs of a result table that can be fitted.

    Finished trainings count, including cooldowns of one trunk: each is a run with its own number of tokens (Hägele et
    al. 2024, arXiv:2405.18392). Runs with a high learning rate at the end, such as trunks, are left out if others were
    annealed.
    """
    finished = [
        branch
        for branch in table.branches
        if branch.row.state == StageState.FINISHED and not branch.row.diverged and branch.row.tokens
    ]
    left_out = []
    if unfinished := len(table.branches) - len(finished):
        left_out.append(f"{counted(unfinished, 'run')} without a finite loss at the end")
    annealed = [branch for branch in finished if _annealed(branch)]
    if annealed and (trunks := len(finished) - len(annealed)):
        left_out.append(
            f"{counted(trunks, 'run')} whose learning rate was not decayed, such as trunks of cooldowns"
        )
    chosen = annealed or finished
    validated = bool(chosen) and all(branch.row.validation_loss is not None for branch in chosen)
    counts: dict[tuple[object, ...], Mapping[str, float | None]] = {}
    runs = []
    for branch in chosen:
        row = branch.row
        loss = row.validation_loss if validated else row.train_loss
        if loss is None or not math.isfinite(loss) or loss <= 0:
            left_out.append(f"{row.point} {row.branch}: no loss")
            continue
        key = (row.parameters, _shape(branch.job))
        if key not in counts:
            counts[key] = _counts(branch)
        runs.append(
            FinishedRun(
                row.point,
                row.branch,
                counts[key],
                float(row.tokens or 0),
                row.learning_rate,
                _batch(branch),
                loss,
                row.sweep_params,
            )
        )
    families = _families(runs)
    return SweepRuns(
        tuple(replace(run, family=family) for run, family in zip(runs, families, strict=True)),
        "validation" if validated else "training",
        tuple(left_out),
    )


def groups_of(values: Iterable[float], *, same: float = _SAME) -> dict[float, float]:
    """Map each positive value to the first value that equals it except for rounding.

    :param same: relative difference of values that count as equal
    """
    groups: dict[float, float] = {}
    first = -math.inf
    for value in sorted(set(values)):
        if value > first * (1 + same):
            first = value
        groups[value] = first
    return groups


def _annealed(branch: Branch) -> bool:
    last, peak = branch.training.last, branch.row.learning_rate
    if last is None or last.learning_rate is None or not peak:
        return True
    return last.learning_rate <= _ANNEALED * peak


def _batch(branch: Branch) -> float | None:
    last, length = branch.training.last, branch.job.seq_length
    samples = last.global_batch_size if last else None
    return float(samples * length) if samples and length else None


def _shape(job: SweepJob) -> tuple[object, ...]:
    names = (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_experts",
        "vocab_size",
    )
    return tuple(str(job.params.get(name)) for name in names)


def _counts(branch: Branch) -> dict[str, float | None]:
    """Return the parameter counts from the log, and those computed from the arguments."""
    return estimated_counts(branch.job, branch.row.parameters, branch.row.parameters_without_padding)


def estimated_counts(
    job: SweepJob, total: int | None = None, unpadded: int | None = None
) -> dict[str, float | None]:
    """Count the parameters of a job's model in each way; None if its arguments do not determine them.

    :param total: number in the log; None to compute it
    :param unpadded: number in the log without the padding of the vocabulary; None to compute it
    """
    bare = None
    if job.release is not None:
        try:
            table = argument_table(job.release)
            # nodes and similar keys belong to Slurm
            arguments = {name: value for name, value in job.params.items() if table.get(name) is not None}
            counted = estimate(arguments, max(1, job.processes), job.release).parameters
        except (AirflowMegatronError, ValueError, TypeError, ArithmeticError, KeyError):
            counted = (
                None  # the trainer accepts values that the estimate does not; the number in the log remains
            )
        if counted is not None:
            total = total or counted.total
            unpadded = unpadded or counted.without_padding
            bare = total - counted.embedding
    return {
        "unpadded": float(unpadded or total) if total else None,
        "non-embedding": float(bare) if bare and bare > 0 else None,
        "total": float(total) if total else None,
    }


def _families(runs: Sequence[FinishedRun]) -> list[str]:
    """Return each run's swept parameters that size, tokens, learning rate and batch do not determine, as text."""
    tokens = groups_of(run.tokens for run in runs)
    cells: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    valleys: dict[tuple[object, ...], list[FinishedRun]] = {}
    for run in runs:
        key = (run.parameters.get("total"), tokens[run.tokens], run.batch)
        cells.setdefault((*key, run.lr), []).append(run.swept)
        valleys.setdefault(key, []).append(run)
    names = {
        name
        for alike in cells.values()
        for name in set().union(*alike)
        if name not in _SEEDS and len({format_value(params.get(name)) for params in alike}) > 1
    }
    for valley in valleys.values():
        names |= _choices(valley)
    return [
        ", ".join(f"{name}={format_value(run.swept.get(name))}" for name in sorted(names)) for run in runs
    ]


def _choices(valley: Sequence[FinishedRun]) -> set[str]:
    """Return the swept texts and flags, such as an optimizer, of which one has several learning rates of its own.

    The choices may share no learning rate. A text with one learning rate is a name for it.
    """
    found = set()
    for name in set().union(*(run.swept for run in valley)) - _SEEDS:
        rates: dict[str, set[float | None]] = {}
        for run in valley:
            if isinstance(value := run.swept.get(name), str | bool):
                rates.setdefault(format_value(value), set()).add(run.lr)
        if len(rates) > 1 and max(map(len, rates.values())) > 1:
            found.add(name)
    return found
