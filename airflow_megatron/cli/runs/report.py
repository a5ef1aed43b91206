"""The results of a sweep's run at any time, for ``airflow-megatron report`` and ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.run_results import ReportedRun, fetch_snapshot, write_results
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.tables.trainings import result_table
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.results.report.report import Report
    from airflow_megatron.results.tables.trainings import ResultTable
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.sweep import Sweep

UNPLANNED = "never-planned"
"""Placeholder for the run id of a sweep without a run."""


def pinned_run(sweep: Sweep, run_id: str, cluster: str | None) -> tuple[PinnedSweep, str]:
    """Return the stored plan of a sweep's run and the run's id; a sweep without a run is planned now.

    :param run_id: the sweep's run; empty for the newest
    :param cluster: for a sweep without a run: profile that replaces the spec's own
    :raises PinError: if the run has no stored plan
    """
    store = PinStore()
    runs = store.runs(sweep.name)
    chosen = run_id or next(iter(runs), "")
    if chosen not in runs and (run_id or runs):
        hint = did_you_mean(chosen, runs) or f"its runs: {', '.join(runs[:8]) or 'none'}"
        raise PinError(f"{sweep.name} has no run {chosen!r} that has stored a plan; {hint}")
    digest = store.newest(sweep.name, chosen) if chosen else None
    if digest is not None:
        return PinnedSweep.read(digest, store), chosen
    around = [PlanEnvironment.now(one) for one in sweep_clusters(sweep, cluster)]
    plans = [(plan_sweep(sweep, one.cluster), one) for one in around]
    with store.writing():
        pinned = PinnedSweep.stored_on_clusters(sweep, sweep.document.text, plans, store)
    return pinned, chosen or UNPLANNED


def run_report(sweep: Sweep, run_id: str, cluster: str | None) -> Report:
    """Write a report from the files on the cluster, and return it.

    :param run_id: as for :func:`pinned_run`
    :param cluster: as for :func:`pinned_run`
    :raises PinError: if the run has no stored plan
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    pinned, chosen = pinned_run(sweep, run_id, cluster)
    plan = pinned.placed_plan()
    nodes = login_nodes(pinned, plan)
    return write_results(plan, nodes, ReportedRun.of(pinned, chosen), digest=pinned.digest)


def login_nodes(pinned: PinnedSweep, plan: Plan) -> dict[str, Callable[[str], CommandResult]]:
    """Return cluster → a function that runs scripts on its login node, for the clusters of a plan's jobs.

    :raises airflow_megatron.slurm.remote.transport.TransportError: if Airflow lacks a connection
    """
    return {
        name: command_line_hook(pinned.on(name).plan_environment.cluster).run
        for name in dict.fromkeys(job.cluster for job in plan.jobs)
    }


def run_table(sweep: Sweep, run_id: str, cluster: str | None) -> ResultTable:
    """Read the result table of a run from the files on the cluster.

    :param run_id: as for :func:`pinned_run`
    :param cluster: as for :func:`pinned_run`
    :raises PinError: if the run has no stored plan
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    pinned, _ = pinned_run(sweep, run_id, cluster)
    plan = pinned.placed_plan()
    snapshot = fetch_snapshot(plan.jobs, login_nodes(pinned, plan))
    return result_table(snapshot, sweep_jobs(plan.jobs, several=plan.several))
