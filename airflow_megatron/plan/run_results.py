"""Fetching a sweep's results from its cluster and writing the report of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow_megatron.plan.sweep_plan import Plan, plan_row
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.readings.snapshot import SweepSnapshot, parse_snapshot, snapshot_script
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.report import Report, write_report
from airflow_megatron.results.report.report_files import publish
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from airflow_megatron.plan.pinned import PinnedSweep
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

RUNS: Final = "runs"


@dataclass(frozen=True)
class ReportedRun:
    """What a report is about, shown under its title.

    :param run_id: of the sweep's run
    :param description: of the sweep
    :param choice: which points were asked for, empty for all
    :param limit: how many at most
    :param all_points: points of the whole sweep
    :param commit: of the checkout, empty when it is not known
    :param passed_over: how many of its points had finished before
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
        """Return what a stored plan says of its run."""
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
    return results_dir(sweep) / RUNS / (f"%2E{name[1:]}" if name.startswith(".") else name or "_")


def fetch_snapshot(
    jobs: Sequence[Job], run: Callable[[str], CommandResult], *, log_tail_bytes: int | None = None
) -> SweepSnapshot:
    """Read the run directories of the jobs with one remote command.

    :param run: runs a script on the login node
    :param log_tail_bytes: look at the last bytes of each log only; None for whole logs
    :raises airflow_megatron.slurm.remote.transport.TransportError: when the login node does not answer
    :raises airflow_megatron.results.readings.snapshot.SnapshotError: when the answer is cut off
    """
    directories = run_directories(read_jobs(plan_row(job) for job in jobs))
    return parse_snapshot(run(snapshot_script(directories, log_tail_bytes=log_tail_bytes)).stdout)


def write_results(
    plan: Plan, run: Callable[[str], CommandResult], reported: ReportedRun, *, digest: str = ""
) -> Report:
    """Fetch the results of a run's jobs and write its report.

    Each run has a folder of its own. The sweep's folder holds a copy of the most complete report, of equal ones the
    newest: a run of some points, or one that failed, does not take the place of one that holds more.

    :param digest: of the plan; worked out when left out
    """
    snapshot = fetch_snapshot(plan.jobs, run)
    written = datetime.now(UTC).replace(microsecond=0)
    folder = run_results_dir(plan.sweep, reported.run_id)
    about = _about(plan, reported, digest or plan.digest, written)
    report = write_report(
        snapshot, [plan_row(job) for job in plan.jobs], folder, title=plan.sweep, about=_lines(about)
    )
    states = [status.state for status in report.grid.cells.values()]
    finished = states.count(StageState.FINISHED) / len(states) if states else 0.0
    about["complete"] = finished * len(plan.points) / max(reported.all_points, 1)
    publish(report.paths, results_dir(plan.sweep), about)
    return report


def _lines(about: Mapping[str, Any]) -> list[str]:
    """Return what stands under the title of a report."""
    points = f"{about['points']} of {about['all_points']} points"
    if about["selection"]:
        points += f" ({about['selection']})"
    lines = [about["description"]] if about["description"] else []
    if about["passed_over"]:
        points += f", {about['passed_over']} of them finished before and passed over,"
    lines.append(f"{points} on {about['cluster']}, run {about['run']}, written {_moment(about['written'])}")
    lines.append(f"plan {about['digest']}" + (f", commit {about['commit']}" if about["commit"] else ""))
    return lines


def _moment(written: str) -> str:
    """Return an ISO time as people read it, with its time zone: ``2026-11-22 14:05 UTC``."""
    import pendulum  # who writes a report reads times; who plans does not

    return pendulum.instance(datetime.fromisoformat(written)).format("YYYY-MM-DD HH:mm z")


def _about(plan: Plan, reported: ReportedRun, digest: str, written: datetime) -> dict[str, Any]:
    return {
        "sweep": plan.sweep,
        "description": reported.description,
        "run": reported.run_id,
        "cluster": plan.cluster,
        "points": len(plan.points),
        "all_points": reported.all_points,
        "selection": reported.choice,
        "limit": reported.limit,
        "passed_over": reported.passed_over,
        "digest": digest,
        "commit": reported.commit,
        "written": written.isoformat(),
    }
