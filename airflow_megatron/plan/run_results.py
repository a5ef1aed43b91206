"""Fetch a sweep's results from its cluster and write the report of a run."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote

from airflow_megatron.results.readings.plan_rows import plan_rows, sweep_jobs
from airflow_megatron.results.readings.progress import StageState, progress_grid
from airflow_megatron.results.readings.snapshot import SweepSnapshot, parse_snapshot, snapshot_script
from airflow_megatron.results.readings.sweep_jobs import run_directories
from airflow_megatron.results.report.report import Report, write_report
from airflow_megatron.results.report.report_files import AboutReport, holds_more, publish, read_about
from airflow_megatron.results.tables.trainings import result_table
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from airflow_megatron.plan.pinned import PinnedSweep
    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

    LoginNodes: TypeAlias = Callable[[str], CommandResult] | Mapping[str, Callable[[str], CommandResult]]
    """A function that runs scripts on the login node, or cluster → such a function."""

log = logging.getLogger(__name__)

RUNS: Final = "runs"
FEWER: Final = "~fewer"
"""Suffix of the folder of a report with fewer results than the existing report of its run."""
_LONGEST_NAME: Final = 240
"""Maximum length of the name of a run's folder, with room for :data:`FEWER`; Linux allows 255 bytes."""
STORE_S: Final = 30.0
"""Maximum seconds that a report waits for the store."""


@dataclass(frozen=True)
class ReportedRun:
    """The subject of a report, shown under its title.

    :param run_id: id of the sweep's run
    :param description: description of the sweep
    :param choice: expression or patterns that selected the points, empty for all
    :param limit: maximum number of points, None for all
    :param all_points: number of points of the whole sweep
    :param commit: commit of the checkout, empty if unknown
    :param passed_over: number of its points that had finished before
    """

    run_id: str
    description: str
    choice: str
    limit: int | None
    all_points: int
    commit: str
    passed_over: int = 0

    @classmethod
    def of(cls, pinned: PinnedSweep, run_id: str, *, passed_over: int = 0) -> ReportedRun:
        """Return the subject from a stored plan."""
        return cls(
            run_id,
            pinned.description,
            pinned.choice,
            pinned.limit,
            pinned.all_points,
            pinned.commit,
            passed_over,
        )


def results_dir(sweep: str) -> Path:
    """Return the folder of a sweep's tables and plots: of its most complete report, with ``runs/`` beside them."""
    return local_dir() / "results" / sweep


def run_results_dir(sweep: str, run_id: str) -> Path:
    """Return the folder of the report of one run."""
    name = quote(run_id, safe=":+~@=")
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 17]}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"
    return results_dir(sweep) / RUNS / (f"%2E{name[1:]}" if name.startswith(".") else name or "_")


def fetch_snapshot(
    jobs: Sequence[Job], run: LoginNodes, *, log_tail_bytes: int | None = None
) -> SweepSnapshot:
    """Read the run directories of the jobs with one remote command for each cluster.

    :param run: runs a script on the login node, or such a function for each cluster
    :param log_tail_bytes: read only the last bytes of each log; None for whole logs
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    :raises airflow_megatron.results.readings.snapshot.SnapshotError: if the answer is cut off
    """
    if callable(run):
        writers: dict[str, list[tuple[str, str]]] = {}
        for job in jobs:
            if job.shared_log is not None:
                writers.setdefault(job.shared_log, []).append((job.run_dir, job.stage))
        script = snapshot_script(
            run_directories(sweep_jobs(jobs)), logs=writers, log_tail_bytes=log_tail_bytes
        )
        return parse_snapshot(run(script).stdout, writers)
    snapshots = [
        fetch_snapshot(
            [job for job in jobs if job.cluster == cluster], of_cluster, log_tail_bytes=log_tail_bytes
        )
        for cluster, of_cluster in run.items()
    ]
    return SweepSnapshot({run_dir: found for one in snapshots for run_dir, found in one.runs.items()})


def fetch_whole_logs(jobs: Sequence[SweepJob], run: Callable[[str], CommandResult]) -> SweepSnapshot:
    """Read the run directories of jobs, with every line of their logs that contains a record.

    :param run: runs a script on the login node
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    :raises airflow_megatron.results.readings.snapshot.SnapshotError: if the answer is cut off
    """
    return parse_snapshot(run(snapshot_script(run_directories(jobs), whole=True)).stdout)


def write_results(plan: Plan, run: LoginNodes, reported: ReportedRun, *, digest: str = "") -> Report:
    """Fetch the results of a run's jobs and write its report.

    Each run has its own folder. The sweep's folder has a copy of the most complete report, or the newest of equally
    complete ones, so a run of some points or a failed run does not replace a more complete report. A report with fewer
    results than the existing report of its run, because run directories were deleted or jobs are repeated, is written
    beside it, to the folder with ``~fewer``.

    :param run: as for :func:`fetch_snapshot`
    :param digest: digest of the plan; default: computed
    """
    snapshot = fetch_snapshot(plan.jobs, run)
    written = datetime.now(UTC).replace(microsecond=0)
    folder = run_results_dir(plan.sweep, reported.run_id)
    about = _about(plan, reported, digest or plan.digest, written)
    jobs = sweep_jobs(plan.jobs, several=plan.several)
    states = [status.state for status in progress_grid(snapshot, jobs).cells.values()]
    finished = states.count(StageState.FINISHED) / len(states) if states else 0.0
    about = replace(
        about,
        complete=finished * len(plan.points) / max(reported.all_points, 1),
        losses=sum(row.loss is not None for row in result_table(snapshot, jobs).rows),
    )
    lines = _lines(about)
    if holds_more(read_about(folder), about):
        lines.append(f"An earlier report of this run holds more results: {folder}")
        log.warning("%s; it is kept", lines[-1])
        folder = folder.with_name(f"{folder.name}{FEWER}")
    report = write_report(
        snapshot,
        plan_rows(plan.jobs, several=plan.several),
        folder,
        title=plan.sweep,
        about=lines,
        queue_waits=_queue_waits(plan.sweep),
    )
    publish(report.paths, results_dir(plan.sweep), about)
    _store(plan, snapshot, reported.run_id, written.timestamp())
    return report


def _queue_waits(sweep: str) -> dict[tuple[str, str, int], float]:
    """Return the queue times of attempts; if the store does not answer, log a warning and return none."""
    from airflow_megatron.results.store.reading import load, queue_waits  # importing polars is slow
    from airflow_megatron.results.store.segments import StoreError

    try:
        return queue_waits(load(sweep))
    except (OSError, StoreError) as error:
        log.warning("the report has no times in the queue: %s", error)
        return {}


def _store(plan: Plan, snapshot: SweepSnapshot, run_id: str, read_at: float) -> None:
    """Store the data that triggers do not read: evaluations, GPU samples, points; do not wait long for the store."""
    from airflow_megatron.results.store.snapshot_rows import (
        batches_of_snapshot,
    )  # importing polars is slow
    from airflow_megatron.results.store.tables import ATTEMPTS
    from airflow_megatron.results.store.writer import ResultWriter

    writer = ResultWriter.shared()
    jobs = sweep_jobs(plan.jobs, several=plan.several)
    for batch in batches_of_snapshot(plan.sweep, snapshot, jobs, read_at, run=run_id):
        if batch.table != ATTEMPTS.name:  # triggers store these, without secrets
            writer.put(batch)
    if not writer.drain(STORE_S):
        log.warning(
            "the rows of %s are not stored yet; airflow-megatron results rebuild adds them", plan.sweep
        )


def _lines(about: AboutReport) -> list[str]:
    """Return the lines under the title of a report."""
    points = f"{about.points} of {counted(about.all_points, 'point')}"
    if about.selection:
        points += f" ({about.selection})"
    lines = [about.description] if about.description else []
    if about.passed_over:
        points += f", {about.passed_over} of them finished in an earlier run,"
    lines.append(f"{points} on {about.cluster}, run {about.run}, written {_moment(about.written)}")
    lines.append(f"plan {about.digest}" + (f", commit {about.commit}" if about.commit else ""))
    return lines


def _moment(written: str) -> str:
    """Return an ISO time in a readable form, with its time zone: ``2026-11-22 14:05 UTC``."""
    import pendulum  # imported here, because the import is slow and only reports print times

    return pendulum.instance(datetime.fromisoformat(written)).format("YYYY-MM-DD HH:mm z")


def _about(plan: Plan, reported: ReportedRun, digest: str, written: datetime) -> AboutReport:
    return AboutReport(
        sweep=plan.sweep,
        description=reported.description,
        run=reported.run_id,
        cluster=plan.cluster,
        points=len(plan.points),
        all_points=reported.all_points,
        selection=reported.choice,
        limit=reported.limit,
        passed_over=reported.passed_over,
        digest=digest,
        commit=reported.commit,
        written=written.isoformat(),
    )
