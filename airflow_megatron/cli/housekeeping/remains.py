"""The data of a sweep: folders on its clusters, runs in Airflow, stored plans and reports on this machine."""

from __future__ import annotations

import dataclasses
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.cli.plans.known_sweep import known_sweep
from airflow_megatron.cli.plans.spec_options import placed_sweep
from airflow_megatron.cli.runs.cancel import jobs_to_cancel
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.pinned import plan_environment_of
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.run_results import results_dir, run_results_dir
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.store.segments import SegmentStore, StoreError, default_root
from airflow_megatron.slurm.remote.run_folders import below
from airflow_megatron.spec.documents.configuration import airflow_home
from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.documents.yaml_document import NO_SUCH_FILE
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.dag_names import point_dag_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from airflow.models.dagrun import DagRun

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep


class HousekeepingError(AirflowMegatronError):
    """A sweep cannot be archived or deleted yet; the message states what to do first."""


@dataclass(frozen=True)
class Site:
    """The folders of a sweep on one cluster.

    :param cluster: the profile
    :param jobs: the selected jobs on this cluster
    :param folders: absolute paths of their folders below the run root; none contains another
    :param elsewhere: run directories outside the sweep's own folder
    """

    cluster: ClusterProfile
    jobs: tuple[Job, ...]
    folders: tuple[str, ...]
    elsewhere: tuple[str, ...]


@dataclass(frozen=True)
class Remains:
    """The selected data of a sweep.

    :param sweep: its name
    :param points: the selected points; None for all
    :param run: id of the selected run; empty for all
    :param sites: its folders; empty if one run is selected, because the runs of a sweep share them
    :param airflow_runs: DAG → run → whether it has ended
    :param reports: folders of reports on this machine
    :param store: the results store, if it has rows of the sweep outside these folders; it is deleted only with the
        whole sweep, because its files contain rows of all points and runs
    """

    sweep: str
    points: frozenset[str] | None
    run: str
    sites: tuple[Site, ...]
    airflow_runs: dict[str, dict[str, bool]]
    reports: tuple[Path, ...]
    store: SegmentStore | None = None

    @property
    def is_whole_sweep(self) -> bool:
        """Return whether all points and runs are selected."""
        return self.points is None and not self.run


def remaining_sweep(word: str) -> Sweep:
    """Return the sweep of a spec or of a stored plan.

    :raises SpecError: if neither exists
    """
    try:
        return known_sweep(word)
    except SpecError as error:
        problem = error.problems[0]
        if problem.message != NO_SUCH_FILE:
            raise
        message = f"there is no spec and no stored run of a sweep {word!r}"
        raise SpecError(dataclasses.replace(problem, message=message)) from None


def remains_of(sweep: Sweep, select: str = "", run: str = "", cluster: str | None = None) -> Remains:
    """Return the data of a sweep, of some of its points, or of one run.

    :param select: selected points; empty for all
    :param run: id of a run; empty for all
    :param cluster: cluster profile that replaces the spec's own
    :raises SpecError: if no point matches, or the spec is invalid
    :raises HousekeepingError: if Airflow's database cannot be reached, or the sweep has no such run
    """
    points = frozenset(point.name for point in choose_points(sweep, select)) if select.strip() else None
    sites: list[Site] = []
    if not run:
        plans = [plan_sweep(sweep, one) for one in sweep_clusters(sweep, cluster)]
        jobs = jobs_to_cancel(placed_sweep(sweep, plans), None)
        sites = _sites(sweep.name, jobs, points)
    reports = (
        [run_results_dir(sweep.name, run)] if run else [results_dir(sweep.name)] if points is None else []
    )
    found = tuple(path for path in reports if path.is_dir() and not path.is_symlink())
    runs = _airflow_runs(sweep.name, points, run)
    if run and not runs and not found:
        _require_run(sweep.name, run)
    return Remains(
        sweep.name,
        points,
        run,
        tuple(sites),
        runs,
        found,
        _store_elsewhere(sweep.name),
    )


def _require_run(sweep: str, run: str) -> None:
    """Refuse a run that neither Airflow nor the stored plans know.

    :raises HousekeepingError: with the runs that there are
    """
    known = {*_airflow_runs(sweep, None, "").get(sweep, ()), *PinStore().runs(sweep)}
    if run not in known:
        hint = did_you_mean(run, known) or f"its runs: {', '.join(sorted(known)[:8]) or 'none'}"
        raise HousekeepingError(f"{sweep} has no run {run!r} ({hint})")


def _store_elsewhere(sweep: str) -> SegmentStore | None:
    """Return the results store if it has rows of the sweep and is not in the folder of its reports.

    :raises HousekeepingError: if the store does not answer
    """
    store = SegmentStore(default_root())
    if store.root == str(results_dir(sweep).parent):
        return None
    try:
        return store if store.size(sweep) else None
    except StoreError as error:
        raise HousekeepingError(str(error)) from None


def _sites(sweep: str, jobs: Iterable[Job], points: Collection[str] | None) -> list[Site]:
    of_root: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        profile = plan_environment_of(job).cluster
        of_root.setdefault((profile.ssh_conn_id, profile.run_root), []).append(job)
    found: list[Site] = []
    for (_, root), here in of_root.items():
        chosen = [job for job in here if points is None or job.point in points]
        own = SweepLayout.of(root, sweep).path
        inside = [job for job in chosen if below(own, job.run_dir)]
        elsewhere = sorted({job.run_dir for job in chosen} - {job.run_dir for job in inside})
        folders = [own] if points is None else point_folders(own, here, points)
        if chosen:
            profile = plan_environment_of(chosen[0]).cluster
            found.append(Site(profile, tuple(chosen), tuple(folders), tuple(elsewhere)))
    return found


def point_folders(own: str, jobs: Sequence[Job], points: Collection[str]) -> list[str]:
    """Return the folders of some points of a sweep: the complete folder of a point if it contains no other job.

    :param own: the sweep's folder
    :param jobs: all jobs of the sweep there
    :param points: the selected points
    """
    others = [job.run_dir for job in jobs if job.point not in points]
    found: set[str] = set()
    for point in points:
        dirs = sorted({job.run_dir for job in jobs if job.point == point and below(own, job.run_dir)})
        whole = posixpath.commonpath(dirs) if dirs else own
        found |= set(dirs) if below(own, whole) is None else {whole}
    clear = {path for path in found if not any(_is_within(other, path) for other in others)}
    return sorted(path for path in clear if not any(below(other, path) for other in clear))


def _is_within(path: str, folder: str) -> bool:
    return posixpath.normpath(path) == posixpath.normpath(folder) or below(folder, path) is not None


def _airflow_runs(sweep: str, points: Collection[str] | None, run: str) -> dict[str, dict[str, bool]]:
    from sqlalchemy.exc import SQLAlchemyError

    def of_points(row: DagRun) -> bool:
        conf = row.conf or {}
        if run:
            return conf.get("run") == run
        return points is None or str(conf.get("point")) in points

    try:
        from airflow.utils.session import create_session

        from airflow_megatron.dag_factory.deleted_runs import runs_of

        with create_session() as session:
            found = {point_dag_id(sweep): runs_of(point_dag_id(sweep), session, of_points)}
            if points is None:
                found[sweep] = runs_of(sweep, session, lambda row: not run or row.run_id == run)
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        raise HousekeepingError(
            f"Airflow's database cannot be reached (AIRFLOW_HOME is {airflow_home()}): {reason}; run "
            "this command where Airflow runs, or 'airflow db migrate' if this database is new"
        ) from None
    return {dag_id: runs for dag_id, runs in found.items() if runs}
