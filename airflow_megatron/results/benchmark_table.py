"""The table of a benchmark: step time, speed and memory of short trainings, beside what others reported."""

from __future__ import annotations

import csv
import io
import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.log_lines import MemoryRecord
from airflow_megatron.megatron.training_run import TrainingRun
from airflow_megatron.results.progress import StageState, stage_status
from airflow_megatron.results.sweep_jobs import format_value
from airflow_megatron.results.text_tables import aligned_text, markdown_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.results.snapshot import RunSnapshot, SweepSnapshot
    from airflow_megatron.results.sweep_jobs import SweepJob

KIND: Final = "benchmark"
_MIB_PER_GB: Final = 1e9 / (1 << 20)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """What one short training took. What is not known is None.

    :param point: name of the point
    :param sweep_params: the swept parameters
    :param outcome: ``ok``, ``oom``, ``oom (expected)``, ``ok (oom expected)``, or the job's state
    :param iterations: iterations that count
    :param step_ms: median time of an iteration, in milliseconds
    :param slowest_step_ms: the longest of them
    :param throughput: median TFLOP/s of a GPU, as Megatron counts them
    :param tokens_per_second: median tokens per second of a GPU; of the whole job where the GPUs are not known
    :param memory_gb: the most memory that PyTorch reserved on a GPU, of all GPUs that report it, in 10^9 bytes
    :param reported_step_ms: milliseconds of an iteration, measured elsewhere
    :param reported_memory_gb: memory of the fullest GPU, measured elsewhere
    """

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    iterations: int = 0
    step_ms: float | None = None
    slowest_step_ms: float | None = None
    throughput: float | None = None
    tokens_per_second: float | None = None
    memory_gb: float | None = None
    reported_step_ms: float | None = None
    reported_memory_gb: float | None = None

    @property
    def step_ratio(self) -> float | None:
        """Our step time over the reported one."""
        return _ratio(self.step_ms, self.reported_step_ms)

    @property
    def memory_ratio(self) -> float | None:
        """Our memory over the reported one."""
        return _ratio(self.memory_gb, self.reported_memory_gb)


def benchmark_rows(snapshot: SweepSnapshot, jobs: Sequence[SweepJob]) -> list[BenchmarkRow]:
    """Read the benchmarks of a sweep.

    :param snapshot: the run directories.
    :param jobs: the jobs of the plan; those of other kinds are passed over.
    :returns: one row per benchmark, in the plan's order.
    """
    return [_row(snapshot.run(job.run_dir), job) for job in jobs if job.kind == KIND]


def _row(run: RunSnapshot, job: SweepJob) -> BenchmarkRow:
    records = run.records(job.stage)
    skip = int(job.measure.get("skip") or 0)
    counted = [record for record in TrainingRun.of(records).iterations if record.iteration > skip]
    steps = [record.elapsed_ms for record in counted if record.elapsed_ms]
    speeds = [record.throughput for record in counted if record.throughput]
    memory = [
        max(filter(None, (record.max_reserved, record.reserved)), default=None)
        for record in records
        if isinstance(record, MemoryRecord)
    ]
    step = statistics.median(steps) if steps else None
    batch = next((record.global_batch_size for record in counted if record.global_batch_size), None)
    reported: Mapping[str, Any] = job.measure.get("reported") or {}
    hidden = set(job.measure.get("hidden") or ())
    return BenchmarkRow(
        point=job.point,
        sweep_params={name: value for name, value in job.sweep_params.items() if name not in hidden},
        outcome=_outcome(run, job),
        iterations=len(steps),
        step_ms=step,
        slowest_step_ms=max(steps, default=None),
        throughput=statistics.median(speeds) if speeds else None,
        tokens_per_second=batch * job.seq_length * 1000 / step / job.processes
        if step and batch and job.seq_length
        else None,
        memory_gb=max(filter(None, memory), default=0) / _MIB_PER_GB or None,
        reported_step_ms=reported.get("step_ms"),
        reported_memory_gb=reported.get("memory_gb"),
    )


def _outcome(run: RunSnapshot, job: SweepJob) -> str:
    verdict = run.verdicts.get(job.stage) or {}
    state = stage_status(run, job).state
    if state is StageState.FINISHED:
        if verdict.get("expected") == "oom":
            return "oom (expected)"
        return "ok (oom expected)" if job.expect == "oom" else "ok"
    return "oom" if verdict.get("outcome") == "out_of_memory" else state.value


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


_FIGURES: Final[tuple[tuple[str, str, Callable[[BenchmarkRow], float | int | None], str], ...]] = (
    ("step ms", "step_ms", lambda row: row.step_ms, ".1f"),
    ("reported ms", "reported_step_ms", lambda row: row.reported_step_ms, "g"),
    ("ratio", "step_ratio", lambda row: row.step_ratio, ".2f"),
    ("slowest ms", "slowest_step_ms", lambda row: row.slowest_step_ms, ".1f"),
    ("TFLOP/s/GPU", "throughput", lambda row: row.throughput, ".1f"),
    ("tokens/s/GPU", "tokens_per_second", lambda row: row.tokens_per_second, ",.0f"),
    ("memory GB", "memory_gb", lambda row: row.memory_gb, ".1f"),
    ("reported GB", "reported_memory_gb", lambda row: row.reported_memory_gb, "g"),
    ("memory ratio", "memory_ratio", lambda row: row.memory_ratio, ".2f"),
    ("iterations", "iterations", lambda row: row.iterations, "d"),
)
"""Heading, name in files, value and format of each figure."""


def display_table(rows: Sequence[BenchmarkRow]) -> list[list[str]]:
    """Write the rows for people, the headings first; a figure that no row has is left out."""
    names = _parameter_names(rows)
    shown = [figure for figure in _FIGURES if any(figure[2](row) is not None for row in rows)]
    table = [["point", *names, *(heading for heading, *_ in shown), "outcome"]]
    for row in rows:
        cells = [format_value(row.sweep_params.get(name)) or "–" for name in names]
        values = [(read(row), form) for _, _, read, form in shown]
        figures = ["–" if value is None else format(value, form) for value, form in values]
        table.append([row.point, *cells, *figures, row.outcome])
    return table


def to_text(rows: Sequence[BenchmarkRow]) -> str:
    """Write the table as aligned plain text."""
    return aligned_text(display_table(rows))


def to_markdown(rows: Sequence[BenchmarkRow]) -> str:
    """Write the table as Markdown."""
    return markdown_table(display_table(rows))


def to_csv(rows: Sequence[BenchmarkRow]) -> str:
    """Write the table as CSV: the point, ``param:<name>`` for each swept parameter, the figures, the outcome."""
    names = _parameter_names(rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["point", *(f"param:{name}" for name in names), *(name for _, name, *_ in _FIGURES), "outcome"]
    )
    for row in rows:
        cells = [format_value(row.sweep_params.get(name)) for name in names]
        figures = ["" if (value := read(row)) is None else value for _, _, read, _ in _FIGURES]
        writer.writerow([row.point, *cells, *figures, row.outcome])
    return out.getvalue()


def to_json(rows: Sequence[BenchmarkRow]) -> str:
    """Write the table as a JSON list of objects."""
    told = [
        {
            "point": row.point,
            "sweep_params": dict(row.sweep_params),
            **{name: read(row) for _, name, read, _ in _FIGURES},
            "outcome": row.outcome,
        }
        for row in rows
    ]
    return json.dumps(told, indent=2, default=str) + "\n"


def _parameter_names(rows: Sequence[BenchmarkRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.sweep_params))
