"""The table of a benchmark: step time, speed and memory of short trainings, compared with reported values."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.megatron.logs.log_lines import MemoryRecord
from airflow_megatron.results.readings.progress import StageState, progress_grid
from airflow_megatron.results.tables.points import Figure, PointTable
from airflow_megatron.slurm.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import Record
    from airflow_megatron.results.readings.progress import StageStatus
    from airflow_megatron.results.readings.snapshot import RunSnapshot, SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob

MIB_PER_GB: Final = 1e9 / (1 << 20)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """Time, speed and memory of one short training. Unknown values are None.

    :param point: name of the point
    :param sweep_params: the swept parameters
    :param outcome: ``ok``, ``oom``, ``oom (expected)``, ``ok (oom expected)``, or the job's state
    :param iterations: iterations that count
    :param step_ms: median time of an iteration, in milliseconds
    :param slowest_step_ms: the longest of them
    :param throughput: median TFLOP/s per GPU, as computed by Megatron
    :param mfu: Model FLOPs utilisation in percent: *throughput* over the GPU's peak dense bf16 rate; None if the
        cluster's profile does not name the GPU
    :param tokens_per_second: median tokens per second per GPU; of the whole job if the number of GPUs is unknown
    :param memory_gb: maximum over the reporting GPUs of the memory that PyTorch reserved, in 10^9 bytes
    :param stage_memory_gb: the same of each stage of the pipeline, first stage first; empty without a pipeline, or if
        a stage reports none
    :param used_memory_gb: maximum memory in use on a GPU by nvidia-smi, in 10^9 bytes; None if not sampled
    :param utilisation: mean over the GPUs of nvidia-smi's utilisation, in percent
    :param power_w: mean over the GPUs of their power, in watts
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
    mfu: float | None = None
    tokens_per_second: float | None = None
    memory_gb: float | None = None
    stage_memory_gb: tuple[float, ...] = ()
    used_memory_gb: float | None = None
    utilisation: float | None = None
    power_w: float | None = None
    reported_step_ms: float | None = None
    reported_memory_gb: float | None = None

    @property
    def step_ratio(self) -> float | None:
        """Our step time over the reported one."""
        return ratio(self.step_ms, self.reported_step_ms)

    @property
    def memory_ratio(self) -> float | None:
        """Our memory over the reported one."""
        return ratio(self.memory_gb, self.reported_memory_gb)


def benchmark_rows(snapshot: SweepSnapshot, jobs: Sequence[SweepJob]) -> list[BenchmarkRow]:
    """Read the benchmarks of a sweep.

    :param snapshot: the run directories.
    :param jobs: the jobs of the plan; other kinds are ignored.
    :returns: one row per benchmark, in the plan's order.
    """
    benchmarks = [job for job in jobs if job.reported_as == "benchmark"]
    if not benchmarks:  # as in most sweeps, whose states need not be read for it
        return []
    cells = progress_grid(snapshot, jobs).cells
    return [_row(snapshot.run(job.run_dir), job, cells[job.point, job.stage]) for job in benchmarks]


def _row(run: RunSnapshot, job: SweepJob, status: StageStatus) -> BenchmarkRow:
    records = run.records(job.stage)
    skip = int(job.measure.get("skip") or 0)
    counted = [record for record in run.training(job.stage).iterations if record.iteration > skip]
    steps = [record.elapsed_ms for record in counted if record.elapsed_ms]
    speeds = [record.throughput for record in counted if record.throughput]
    memory = _memory_of_ranks(records)
    gpus = [use for attempt in run.attempts.get(job.stage, ())[-1:] for use in attempt.gpus]
    step = statistics.median(steps) if steps else None
    throughput = statistics.median(speeds) if speeds else None
    gpu = GPUS.get(job.measure.get("gpu") or "")
    batch = next((record.global_batch_size for record in counted if record.global_batch_size), None)
    reported: Mapping[str, Any] = job.measure.get("reported") or {}
    hidden = set(job.measure.get("hidden") or ())
    return BenchmarkRow(
        point=job.point,
        sweep_params={name: value for name, value in job.sweep_params.items() if name not in hidden},
        outcome=_outcome(run, job, status),
        iterations=len(steps),
        step_ms=step,
        slowest_step_ms=max(steps, default=None),
        throughput=throughput,
        mfu=throughput * 1e14 / gpu.operations_per_s if throughput and gpu else None,
        tokens_per_second=batch * job.seq_length * 1000 / step / job.processes
        if step and batch and job.seq_length
        else None,
        memory_gb=max(memory.values(), default=0) / MIB_PER_GB or None,
        stage_memory_gb=_memory_of_stages(memory, job),
        used_memory_gb=max((use.memory_mib for use in gpus), default=0) / MIB_PER_GB or None,
        utilisation=statistics.fmean(use.utilisation for use in gpus) if gpus else None,
        power_w=statistics.fmean(use.power_w for use in gpus) if gpus else None,
        reported_step_ms=reported.get("step_ms"),
        reported_memory_gb=reported.get("memory_gb"),
    )


def _memory_of_ranks(records: Sequence[Record]) -> dict[int, float]:
    """Return the maximum memory that PyTorch reserved on the GPU of each reporting rank, in 2^20 bytes."""
    memory: dict[int, float] = {}
    for record in records:
        if isinstance(record, MemoryRecord):
            found = max(filter(None, (record.max_reserved, record.reserved)), default=0)
            memory[record.rank] = max(found, memory.get(record.rank, 0))
    return memory


def _memory_of_stages(memory: Mapping[int, float], job: SweepJob) -> tuple[float, ...]:
    """Return the maximum memory of a GPU in each pipeline stage, in 10^9 bytes.

    Ranks are counted through the stages last (``RankGenerator`` in Megatron's ``parallel_state.py``, order
    tp-cp-ep-dp-pp), or before the data parallel ones with ``--use-tp-pp-dp-mapping``.
    """
    sizes = [
        job.params.get(f"{name}_parallel_size") for name in ("pipeline_model", "tensor_model", "context")
    ]
    stages, tensors, contexts = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    if stages == 1:
        return ()
    before = tensors * contexts if job.params.get("use_tp_pp_dp_mapping") else job.processes // stages
    found: dict[int, float] = {}
    for rank, mib in memory.items():
        stage = rank // max(1, before) % stages
        found[stage] = max(mib, found.get(stage, 0))
    return tuple(found[stage] / MIB_PER_GB for stage in range(stages)) if len(found) == stages else ()


def _outcome(run: RunSnapshot, job: SweepJob, status: StageStatus) -> str:
    recorded = run.verdicts.get(job.stage)
    verdict = recorded.verdict if recorded is not None else None
    state = status.state
    if state is StageState.FINISHED:
        if verdict is not None and verdict.expected == "oom":
            return "oom (expected)"
        return "ok (oom expected)" if job.expect == "oom" else "ok"
    out_of_memory = recorded is not None and recorded.outcome is Outcome.OUT_OF_MEMORY
    return "oom" if out_of_memory else state.value


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return the ratio of the measured to the reported value; None if one is unknown."""
    return ours / theirs if ours and theirs else None


_FIGURES: Final[tuple[Figure[BenchmarkRow], ...]] = (
    Figure("step ms", "step_ms", lambda row: row.step_ms, ".1f"),
    Figure("reported ms", "reported_step_ms", lambda row: row.reported_step_ms, "g"),
    Figure("ratio", "step_ratio", lambda row: row.step_ratio, ".2f"),
    Figure("slowest ms", "slowest_step_ms", lambda row: row.slowest_step_ms, ".1f"),
    Figure("TFLOP/s/GPU", "throughput", lambda row: row.throughput, ".1f"),
    Figure("MFU %", "mfu", lambda row: row.mfu, ".1f"),
    Figure("tokens/s/GPU", "tokens_per_second", lambda row: row.tokens_per_second, ",.0f"),
    Figure("memory GB", "memory_gb", lambda row: row.memory_gb, ".1f"),
    Figure(
        "GB by stage",
        "stage_memory_gb",
        lambda row: " / ".join(f"{memory:.1f}" for memory in row.stage_memory_gb) or None,
        "s",
    ),
    Figure("reported GB", "reported_memory_gb", lambda row: row.reported_memory_gb, "g"),
    Figure("memory ratio", "memory_ratio", lambda row: row.memory_ratio, ".2f"),
    Figure("nvidia-smi GB", "used_memory_gb", lambda row: row.used_memory_gb, ".1f"),
    Figure("GPU busy %", "utilisation", lambda row: row.utilisation, ".0f"),
    Figure("W/GPU", "power_w", lambda row: row.power_w, ".0f"),
    Figure("iterations", "iterations", lambda row: row.iterations, "d"),
)


def benchmark_table(rows: Sequence[BenchmarkRow]) -> PointTable[BenchmarkRow]:
    """Make the table of a sweep's benchmarks.

    :param rows: result of :func:`benchmark_rows`.
    """
    return PointTable(
        name="benchmark",
        title="Benchmark",
        note="Medians over the iterations that count. Memory is what PyTorch reserved on the fullest GPU, and of each"
        " stage of a pipeline; nvidia-smi's is that of all processes. A ratio is this sweep's figure over the reported"
        " one.",
        figures=_FIGURES,
        rows=rows,
    )
