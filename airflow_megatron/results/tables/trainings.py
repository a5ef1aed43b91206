"""The result table of a sweep: one row per point and training branch, and its writers."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.readings.evaluations import measurements
from airflow_megatron.results.readings.progress import StageState, progress_grid
from airflow_megatron.results.readings.sweep_jobs import SweepJob, finite_value, format_value, plain_values
from airflow_megatron.results.tables.text import aligned_text, csv_cell, markdown_table
from airflow_megatron.results.tables.vocabulary_padding import padding_parameters
from airflow_megatron.slurm.verdicts.outcomes import NAN_IN_TRAINING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.megatron.logs.training_run import TrainingRun
    from airflow_megatron.results.readings.progress import StageStatus
    from airflow_megatron.results.readings.snapshot import RunSnapshot, SweepSnapshot


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result of one training branch of one point. Unknown values are None.

    :param point: name of the point
    :param branch: ``pretrain``, ``cooldown_100M``, …
    :param parent_branch: the branch whose checkpoint it starts from, None for a stable phase
    :param group: the swept parameters other than the learning rate, as text
    :param sweep_params: the swept parameters
    :param state: state of the branch's training job
    :param reason: why it failed or was cancelled
    :param parameters: number of parameters of the model
    :param parameters_without_padding: without those of the vocabulary's padding, None if its size is unknown
    :param tokens: tokens seen, pretraining included: at the last logged iteration, of a finished training at its end
    :param iteration: last logged iteration
    :param train_iters: iteration at which training ends
    :param learning_rate: peak learning rate
    :param train_loss: training loss at the end, nats per token (mean over the last logged iterations)
    :param validation_loss: nats per token
    :param test_loss: nats per token
    :param diverged: whether the loss is no longer a finite number, logged or as the error that ended the last attempt
    :param evaluations: ``task/metric`` → value, of the last evaluated checkpoint
    :param evaluation_errors: ``task/metric`` → standard error
    :param evaluated_iteration: the iteration of that checkpoint
    :param wall_seconds: total run time of the attempts
    :param tokens_per_second: median speed of the whole job
    :param attempts: number of Slurm submissions
    :param best: lowest loss among the rows of its group and branch
    """

    point: str
    branch: str
    parent_branch: str | None
    group: tuple[tuple[str, str], ...]
    sweep_params: Mapping[str, Any]
    state: str
    reason: str = ""
    parameters: int | None = None
    parameters_without_padding: int | None = None
    tokens: int | None = None
    iteration: int | None = None
    train_iters: int | None = None
    learning_rate: float | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    test_loss: float | None = None
    diverged: bool = False
    evaluations: Mapping[str, float] = field(default_factory=dict)
    evaluation_errors: Mapping[str, float] = field(default_factory=dict)
    evaluated_iteration: int | None = None
    wall_seconds: float | None = None
    tokens_per_second: float | None = None
    attempts: int = 0
    best: bool = False

    @property
    def loss(self) -> float | None:
        """The loss for comparing rows: validation, else training."""
        return self.validation_loss if self.validation_loss is not None else self.train_loss


@dataclass(frozen=True, slots=True)
class Branch:
    """One training branch with all data about it.

    :param job: its training job
    :param run: its run directory
    :param training: its combined logs
    :param row: its row of the table
    """

    job: SweepJob
    run: RunSnapshot
    training: TrainingRun
    row: ResultRow

    def tokens_at(self, iteration: int) -> int | None:
        """Return the tokens seen at an iteration, including those of its parents; None if the log shows none."""
        last = self.training.last
        if last is None or not last.iteration or not self.job.seq_length:
            return None
        return round(last.consumed_samples / last.iteration * iteration) * self.job.seq_length


@dataclass(frozen=True)
class ResultTable:
    """The rows of a sweep in the plan's order, and their branches."""

    branches: tuple[Branch, ...]

    @property
    def rows(self) -> tuple[ResultRow, ...]:
        """One row per point and branch."""
        return tuple(branch.row for branch in self.branches)

    def parent_of(self, branch: Branch) -> Branch | None:
        """Return the branch from whose checkpoint a branch starts; None for a stable phase."""
        return self._by_name.get((branch.row.point, branch.row.parent_branch))

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str | None], Branch]:
        return {(branch.row.point, branch.row.branch): branch for branch in self.branches}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Every swept parameter, in the order of the points."""
        return tuple(dict.fromkeys(key for row in self.rows for key in row.sweep_params))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every evaluation metric as ``task/metric``, sorted."""
        return tuple(sorted({name for row in self.rows for name in row.evaluations}))


def result_table(snapshot: SweepSnapshot, jobs: Sequence[SweepJob]) -> ResultTable:
    """Make the result table of a sweep.

    :param snapshot: the run directories.
    :param jobs: the jobs of the plan. Every training job has a row, regardless of its state, and so has a job of
        another kind whose log contains iterations, such as a script that starts Megatron-LM.
    :returns: the table.
    """
    cells = progress_grid(snapshot, jobs).cells
    branches = [
        _branch(run, job, cells[job.point, job.stage])
        for job in jobs
        if (run := snapshot.run(job.run_dir)).has_training(job)
    ]
    best = _best_rows([branch.row for branch in branches])
    return ResultTable(
        tuple(
            replace(branch, row=replace(branch.row, best=True)) if index in best else branch
            for index, branch in enumerate(branches)
        )
    )


def flatten_evaluation(results: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Flatten the results of lm-evaluation-harness.

    :param results: content of ``results.json``.
    :returns: two mappings from ``task/metric`` (``task/metric,filter`` for a filter other than ``none``): values and
        standard errors. Values that are not finite numbers are left out.
    """
    measured = list(measurements(results))
    errors = {each.name: each.stderr for each in measured if each.stderr is not None}
    return {each.name: each.value for each in measured}, errors


def _branch(run: RunSnapshot, job: SweepJob, status: StageStatus) -> Branch:
    training = run.training(job.stage)
    last = training.last
    seq_length = job.seq_length
    samples = _samples(run, job, training, status)
    evaluated = max(run.evaluations) if run.evaluations else None
    values, errors = flatten_evaluation(run.evaluations[evaluated]) if evaluated is not None else ({}, {})
    row = ResultRow(
        point=job.point,
        branch=job.branch,
        parent_branch=job.parent_branch,
        group=job.group,
        sweep_params=job.sweep_params,
        state=status.state.value,
        reason=status.reason,
        parameters=training.parameters,
        parameters_without_padding=_unpadded(training.parameters, job),
        tokens=samples * seq_length if samples is not None and seq_length else None,
        iteration=last.iteration if last else None,
        train_iters=status.train_iters,
        learning_rate=job.learning_rate,
        train_loss=training.train_loss,
        validation_loss=training.evaluation_loss("validation"),
        test_loss=training.evaluation_loss("test"),
        diverged=bool(last and last.is_nan) or _stopped_at_nan(run, job),
        evaluations=values,
        evaluation_errors=errors,
        evaluated_iteration=evaluated,
        wall_seconds=_wall_seconds(run, job, training),
        tokens_per_second=training.tokens_per_second(seq_length) if seq_length else None,
        attempts=status.attempts,
    )
    return Branch(job, run, training, row)


def _samples(run: RunSnapshot, job: SweepJob, training: TrainingRun, status: StageStatus) -> int | None:
    """Return the consumed samples, of a finished training at its end: the last logging interval may be incomplete."""
    last = training.last
    if last is None or status.state is not StageState.FINISHED:
        return last.consumed_samples if last else None
    recorded = run.verdicts.get(job.stage)
    saved = recorded.verdict.iteration if recorded and recorded.verdict else None
    shown = [saved or 0, *(each.iteration or 0 for each in training.validations)]
    unlogged = max(last.iteration, *shown) - last.iteration
    return last.consumed_samples + unlogged * (last.global_batch_size or 0)


def _stopped_at_nan(run: RunSnapshot, job: SweepJob) -> bool:
    """Return whether the last attempt ended at a NaN loss, which Megatron does not log before it raises the error."""
    attempts = run.attempts.get(job.stage)
    recorded = attempts[-1].verdict if attempts else None
    verdict = recorded.verdict if recorded else None
    return verdict is not None and verdict.signature == NAN_IN_TRAINING


def _unpadded(parameters: int | None, job: SweepJob) -> int | None:
    padding = padding_parameters(job.params)
    return (
        parameters - padding
        if parameters is not None and padding is not None and padding < parameters
        else None
    )


def _wall_seconds(run: RunSnapshot, job: SweepJob, training: TrainingRun) -> float | None:
    exits = [attempt.exit for attempt in run.attempts.get(job.stage, ())]
    times = [end.ended - end.started for end in exits if end is not None and 0 < end.started <= end.ended]
    if times and len(times) == len(exits):
        return sum(times)
    # A killed attempt wrote no exit record, so only its iterations are known.
    return sum(seconds for seconds in training.line_seconds if seconds is not None) or None


def _best_rows(rows: Sequence[ResultRow]) -> set[int]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if (
            row.state == StageState.FINISHED
            and not row.diverged
            and row.loss is not None
            and math.isfinite(row.loss)
        ):
            groups.setdefault((row.branch, row.group), []).append(index)
    best = set()
    for indices in groups.values():
        # Losses on different data are not comparable: if one row has no validation loss, compare training # losses.
        validated = all(rows[index].validation_loss is not None for index in indices)
        keys = [rows[index].validation_loss if validated else rows[index].train_loss for index in indices]
        ranked = [(key, index) for key, index in zip(keys, indices, strict=True) if key is not None]
        if len(ranked) > 1:
            best.add(min(ranked)[1])
    return best


_COLUMNS: Final[tuple[tuple[str, Callable[[ResultRow], object]], ...]] = (
    ("state", lambda row: row.state),
    ("best", lambda row: row.best),
    ("parameters", lambda row: row.parameters),
    ("tokens", lambda row: row.tokens),
    ("iteration", lambda row: row.iteration),
    ("train_iters", lambda row: row.train_iters),
    ("learning_rate", lambda row: row.learning_rate),
    ("train_loss", lambda row: row.train_loss),
    ("validation_loss", lambda row: row.validation_loss),
    ("test_loss", lambda row: row.test_loss),
    ("diverged", lambda row: row.diverged),
    ("wall_seconds", lambda row: row.wall_seconds),
    ("tokens_per_second", lambda row: row.tokens_per_second),
    ("attempts", lambda row: row.attempts),
    ("parameters_without_padding", lambda row: row.parameters_without_padding),
    ("reason", lambda row: row.reason),
)


def to_csv(table: ResultTable) -> str:
    """Return the table as CSV.


    The columns are the point, the branch, ``param:<name>`` for each swept parameter, the fields of
    :class:`ResultRow`, and ``eval:<task>/<metric>`` with ``eval_stderr:…``. An unknown value is empty.
    """
    metrics = table.metric_names
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [
        "point",
        "branch",
        *(f"param:{name}" for name in table.parameter_names),
        *(name for name, _ in _COLUMNS),
        "evaluated_iteration",
        *(f"{kind}:{name}" for name in metrics for kind in ("eval", "eval_stderr")),
    ]
    writer.writerow(map(csv_cell, heads))
    for row in table.rows:
        cells: list[object] = [row.point, row.branch]
        cells += [format_value(row.sweep_params.get(name)) for name in table.parameter_names]
        cells += [read(row) for _, read in _COLUMNS]
        cells.append(row.evaluated_iteration)
        for name in metrics:
            cells += [row.evaluations.get(name), row.evaluation_errors.get(name)]
        writer.writerow([csv_cell(cell) for cell in cells])
    return out.getvalue()


def to_json(table: ResultTable) -> str:
    """Return the table as a JSON list of objects with the fields of :class:`ResultRow`."""
    rows = []
    for row in table.rows:
        rows.append(
            {
                "point": row.point,
                "branch": row.branch,
                "sweep_params": plain_values(row.sweep_params),
                **{name: finite_value(read(row)) for name, read in _COLUMNS},
                "evaluated_iteration": row.evaluated_iteration,
                "evaluations": dict(row.evaluations),
                "evaluation_errors": dict(row.evaluation_errors),
            }
        )
    return json.dumps(rows, indent=2, default=str, allow_nan=False) + "\n"


def display_columns(table: ResultTable) -> list[str]:
    """Return the columns of :func:`display_rows`; columns without values are left out."""
    return [name for name, _ in _display(table)]


def display_rows(table: ResultTable) -> list[list[str]]:
    """Return readable rows: rounded, with units, ``–`` for unknown values, ``★`` at a group's best loss."""
    columns = _display(table)
    return [[write(row) for _, write in columns] for row in table.rows]


def to_markdown(table: ResultTable) -> str:
    """Return the table as Markdown, best losses bold."""
    rows = [[f"**{cell}**" if cell.endswith("★") else cell for cell in row] for row in display_rows(table)]
    return markdown_table([display_columns(table), *rows])


def to_text(table: ResultTable) -> str:
    """Return the table as aligned plain text, independent of the terminal."""
    return aligned_text([display_columns(table), *display_rows(table)])


def format_count(value: float | None) -> str:
    """Return a count with a unit: ``1.56B``, ``100M``, ``57.7k``, ``12``."""
    if value is None:
        return "–"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        # 999,999 rounds to 1000k, so use the next unit.
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def format_seconds(value: float | None) -> str:
    """Return a duration as text: ``2d 03:04:05``, ``03:04:05``, ``04:05``."""
    if value is None:
        return "–"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}" if hours or days else f"{minutes:02d}:{seconds:02d}"
    return f"{days}d {clock}" if days else clock


def _display(table: ResultTable) -> list[tuple[str, Callable[[ResultRow], str]]]:
    columns: list[tuple[str, Callable[[ResultRow], str]]] = [
        ("point", lambda row: row.point),
        ("branch", lambda row: row.branch),
    ]
    columns += [(name, _parameter_cell(name)) for name in table.parameter_names]
    columns += [
        (name, write)
        for name, known, write in _OPTIONAL_COLUMNS
        if any(known(row) is not None for row in table.rows)
    ]
    columns += [(name, _metric_cell(name)) for name in table.metric_names]
    return [
        *columns,
        ("time", lambda row: format_seconds(row.wall_seconds)),
        ("attempts", lambda row: str(row.attempts)),
        ("state", lambda row: row.state),
    ]


def _parameter_cell(name: str) -> Callable[[ResultRow], str]:
    return lambda row: format_value(row.sweep_params.get(name)) or "–"


def _metric_cell(name: str) -> Callable[[ResultRow], str]:
    def write(row: ResultRow) -> str:
        value, error = row.evaluations.get(name), row.evaluation_errors.get(name)
        if value is None:
            return "–"
        return f"{value:.4g} ±{error:.2g}" if error else f"{value:.4g}"

    return write


def _iterations_cell(row: ResultRow) -> str:
    if row.iteration is None:
        return "–"
    done = row.train_iters is None or row.iteration >= row.train_iters
    return str(row.iteration) if done else f"{row.iteration}/{row.train_iters}"


def _train_loss_cell(row: ResultRow) -> str:
    if row.diverged:
        return "NaN"
    return _loss(row.train_loss) + (" ★" if row.best and row.validation_loss is None else "")


def _validation_loss_cell(row: ResultRow) -> str:
    return _loss(row.validation_loss) + (" ★" if row.best and row.validation_loss is not None else "")


_OPTIONAL_COLUMNS: Final[
    tuple[tuple[str, Callable[[ResultRow], object], Callable[[ResultRow], str]], ...]
] = (
    ("parameters", lambda row: row.parameters, lambda row: format_count(row.parameters)),
    (
        "without padding",
        lambda row: (
            row.parameters_without_padding if row.parameters_without_padding != row.parameters else None
        ),
        lambda row: format_count(row.parameters_without_padding),
    ),
    ("tokens", lambda row: row.tokens, lambda row: format_count(row.tokens)),
    ("iterations", lambda row: row.iteration, _iterations_cell),
    ("train loss", lambda row: row.iteration, _train_loss_cell),
    ("validation loss", lambda row: row.validation_loss, _validation_loss_cell),
    ("test loss", lambda row: row.test_loss, lambda row: _loss(row.test_loss)),
    ("tokens/s", lambda row: row.tokens_per_second, lambda row: format_count(row.tokens_per_second)),
)


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
