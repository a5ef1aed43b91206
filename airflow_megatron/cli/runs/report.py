"""``airflow-megatron report``: write the report of a sweep's run at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.run_results import ReportedRun, write_results
from airflow_megatron.plan.surroundings import Surroundings
from airflow_megatron.plan.sweep_cluster import sweep_cluster
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from airflow_megatron.results.report.report import Report
    from airflow_megatron.spec.model.sweep import Sweep

UNPLANNED = "never-planned"
"""Replaces the run id if the sweep has no run."""


def run_report(sweep: Sweep, run_id: str, cluster: str | None) -> Report:
    """Write a report from the files on the cluster, and return it.

    :param run_id: the sweep's run; empty for the newest
    :param cluster: for a sweep without a run: profile that replaces the spec's own
    :raises PinError: if the run has no stored plan
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    store = PinStore()
    runs = store.runs(sweep.name)
    chosen = run_id or next(iter(runs), "")
    if chosen not in runs and (run_id or runs):
        hint = did_you_mean(chosen, runs) or f"its runs: {', '.join(runs[:8]) or 'none'}"
        raise PinError(f"{sweep.name} has no run {chosen!r} that has stored a plan; {hint}")
    digest = store.newest(sweep.name, chosen) if chosen else None
    if digest is not None:
        pinned = PinnedSweep.read(digest, store)
    else:
        around = Surroundings.now(sweep_cluster(sweep, cluster))
        plan = plan_sweep(sweep, around.cluster)
        with store.writing():
            pinned = PinnedSweep.stored(sweep, sweep.document.text, plan, around, store)
    hook = command_line_hook(pinned.surroundings.cluster)
    about = ReportedRun.of(pinned, chosen or UNPLANNED)
    return write_results(pinned.plan(), hook.run, about, digest=pinned.digest)
