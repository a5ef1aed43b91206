"""The list of sweeps as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.ui.live.planned_points import planned_sweep
from airflow_megatron.ui.live.point_table import rounded
from airflow_megatron.ui.live.sweep_progress import seconds_left
from airflow_megatron.ui.live.sweep_runs import Run, launched, newest_runs, point_states

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlalchemy.orm import Session

    from airflow_megatron.ui.live.recorded import Recorded
    from airflow_megatron.ui.live.result_folders import SweepResults


def sweep_rows(
    sweeps: Collection[str],
    reports: Mapping[str, SweepResults],
    session: Session,
    gpu_hours: Callable[[str], float | None],
    recorded: Callable[[str], Recorded],
) -> list[dict[str, Any]]:
    """Return a row for each sweep, running ones first, then the newest.

    ``sweep``, ``state`` (``running``, ``failed before launch``, ``failed``, ``finished``, ``not started`` or
    ``report`` for one that Airflow no longer has), ``run``, ``started``, ``ended``, ``points`` (state → number),
    ``best_loss``, ``best`` and ``report``, the time at which it was written; ``gpu_hours`` of all attempts that have
    ended, and ``eta_s``, the remaining seconds of the trainings of a running sweep. Times are Unix times. Unknown
    values are left out.

    :param sweeps: ids of DAGs that the reader may see
    :param reports: sweep → its report, of sweeps that the reader may see
    :param gpu_hours: sweep → GPU-hours of its attempts
    :param recorded: function: sweep → its stored results
    """
    newest = newest_runs(sweeps, session)
    of_points = point_states([point_dag_id(sweep) for sweep in sweeps], session)
    rows = []
    for sweep in sorted({*sweeps, *reports}):
        run = newest.get(sweep)
        points = {point: state for point, (_, state) in of_points.get(point_dag_id(sweep), {}).items()}
        counts = dict(Counter(points.values()))
        was_launched = run is not None and run.run_id in launched(sweep, [run.run_id], session)
        row: dict[str, Any] = {
            "sweep": sweep,
            "state": sweep_state(run, counts, was_launched=was_launched, known=sweep in sweeps),
            "points": counts,
        }
        if run is not None:
            row |= {"run": run.run_id, "started": run.started, "ended": run.ended}
        if (report := reports.get(sweep)) is not None:
            row |= {"report": report.written.timestamp(), "best": report.best, "best_loss": report.best_loss}
            row |= {"trainings": report.branches, "trainings_finished": report.finished}
        if run is not None:
            if hours := gpu_hours(sweep):
                row["gpu_hours"] = rounded(hours)
            if row["state"] == "running":
                left = _seconds_left(sweep, run, points, recorded)
                row |= {} if left is None else {"eta_s": rounded(left)}
        rows.append(row)
    return sorted(
        rows, key=lambda row: (row["state"] != "running", -(row.get("started") or 0.0), row["sweep"])
    )


def _seconds_left(
    sweep: str, run: Run, points: Mapping[str, str], recorded: Callable[[str], Recorded]
) -> float | None:
    planned = planned_sweep(sweep, run.run_id)
    if planned is None:
        return None
    running = {point for point, state in points.items() if state in ("running", "queued")}
    return seconds_left(planned, running, points.keys() - running, recorded(sweep).trainings())


def sweep_state(run: Run | None, points: Mapping[str, int], *, was_launched: bool, known: bool) -> str:
    """Return the state of a sweep in one word.

    :param run: its newest run
    :param points: state of a point's run → number of points
    :param was_launched: whether the run has started its points
    :param known: whether Airflow has its DAG
    """
    if points.get("running") or points.get("queued") or (run is not None and run.is_active):
        return "running"  # a user may have deleted the run, or have started a point
    if run is None:
        return "not started" if known else "report"
    if run.state == "failed" and not was_launched:
        return "failed before launch"
    return "failed" if run.state == "failed" or points.get("failed") else "finished"
