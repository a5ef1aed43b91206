"""``airflow-megatron results``: rebuild, tidy or push the stored rows of a sweep's results."""

from __future__ import annotations

import dataclasses
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.plans.spec_options import ClusterOption, SpecArgument, load_spec
from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.cli.runs.report import pinned_run
from airflow_megatron.errors import RegistryError
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.run_results import fetch_whole_logs
from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.readings.snapshot import SnapshotError
from airflow_megatron.results.store.segments import SegmentStore, StoreError, default_root
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.trackers.tracker import TrackerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.plan.pinned import PinnedSweep
    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.sweep import Sweep

POINTS_AT_ONCE = 50
"""Number of points whose logs one remote command reads."""

app = typer.Typer(help="Rebuild, merge or push the stored rows of a sweep's results.", no_args_is_help=True)


@app.command()
def rebuild(
    spec: SpecArgument,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Id of one of the sweep's runs; default: all")
    ] = "",
    cluster: ClusterOption = None,
) -> None:
    """Read the rows of a sweep from its run directories again; rows that are already stored are kept and count
    once.
    """
    from airflow_megatron.results.store.compaction import compact

    sweep = load_spec(spec)
    store = SegmentStore(default_root())
    try:
        with ExitStack() as logins:
            nodes: dict[str, Callable[[str], CommandResult]] = {}
            for run_id, pinned in _plans(sweep, run, cluster):
                plan = pinned.placed_plan()
                for name in dict.fromkeys(job.cluster for job in plan.jobs):
                    profile = pinned.on(name).plan_environment.cluster
                    node = nodes.get(profile.ssh_conn_id)
                    if node is None:  # all runs share one login
                        node = logins.enter_context(command_line_hook(profile).session())
                        nodes[profile.ssh_conn_id] = node
                    of_cluster = dataclasses.replace(
                        plan, jobs=tuple(job for job in plan.jobs if job.cluster == name)
                    )
                    for table, rows in _rebuilt(store, run_id, of_cluster, node).items():
                        print(f"{run_id or 'no run'}: {counted(rows, 'row')} of {table}")
        compact(store, sweep.name)
    except (PinError, SnapshotError, StoreError, TransportError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"stored in {store.shown}")


@app.command()
def compact(sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of the sweep")]) -> None:
    """Merge the files of a sweep's rows into one for each table."""
    from airflow_megatron.results.store.compaction import compact as merge

    store = SegmentStore(default_root())
    try:
        merged = merge(store, sweep)
        is_known = bool(merged) or bool(store.segments(sweep))
    except StoreError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if not is_known:
        print(f"{store.shown} has no rows of a sweep {sweep!r}", file=sys.stderr)
        raise typer.Exit(1)
    for table, count in merged.items():
        print(f"{table}: {counted(count, 'file')} merged into one")


@app.command()
def push(
    spec: SpecArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="TRACKER", help="One of the spec's trackers; default: all")
    ] = "",
    cluster: ClusterOption = None,
) -> None:
    """Send new stored rows of the sweep's trainings to the spec's trackers."""
    sweep = load_spec(spec)
    sections = [section for section in sweep.settings.trackers if to in ("", section.tracker)]
    if not sections:
        known = ", ".join(section.tracker for section in sweep.settings.trackers)
        print(
            f"{spec}: trackers: has no {to or 'tracker'}" + (f"; it has {known}" if known else ""),
            file=sys.stderr,
        )
        raise typer.Exit(2)
    from airflow_megatron.hooks.tracker_access import tracker_access
    from airflow_megatron.results.trackers.pushing import push_sweep

    try:
        jobs = {
            job.name: job
            for plan in (pinned.placed_plan() for _, pinned in _plans(sweep, "", cluster))
            for job in sweep_jobs(plan.jobs, several=plan.several)
        }
    except PinError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    failed = False
    for section in sections:
        try:
            access = tracker_access(section.connection)
            pushed = push_sweep(
                SegmentStore(default_root()), sweep.name, jobs.values(), section, access, by_hand=True
            )
        except (RegistryError, StoreError, TrackerError) as error:
            print(error, file=sys.stderr)
            failed = True
        else:
            print(f"{section.tracker}: {pushed.records} records of {pushed.trainings} trainings sent")
    if failed:
        raise typer.Exit(1)


def _plans(sweep: Sweep, run: str, cluster: str | None) -> list[tuple[str, PinnedSweep]]:
    """Return runs and their newest plans, the oldest run first."""
    runs = [run] if run else PinStore().runs(sweep.name)[::-1]
    if not runs:
        return [("", pinned_run(sweep, "", cluster)[0])]
    return [(one, pinned_run(sweep, one, cluster)[0]) for one in runs]


def _rebuilt(
    store: SegmentStore, run_id: str, plan: Plan, node: Callable[[str], CommandResult]
) -> dict[str, int]:
    from airflow_megatron.results.store.snapshot_rows import batches_of_snapshot, write_batches

    hide = _masking(
        {f"{job.name}/{name}": source for job in plan.jobs for name, source in job.delivered.items()}
    )
    jobs = sweep_jobs(plan.jobs, several=plan.several)
    points = list(dict.fromkeys(job.point for job in jobs))
    written: dict[str, int] = {}
    for start in range(0, len(points), POINTS_AT_ONCE):
        chosen = set(points[start : start + POINTS_AT_ONCE])
        some = [job for job in jobs if job.point in chosen]
        snapshot = fetch_whole_logs(some, node)
        batches = batches_of_snapshot(plan.sweep, snapshot, some, time.time(), run=run_id, hide=hide)
        for table, rows in write_batches(store, batches).items():
            written[table] = written.get(table, 0) + rows
    return written


def _masking(delivered: Mapping[str, Mapping[str, str]]) -> Callable[[str], str] | None:
    """Return a function that masks the secrets delivered to jobs; None without secrets."""
    if not delivered:
        return None
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    from airflow_megatron.hooks.job_secrets import mask_secrets

    mask_secrets(delivered)
    return lambda text: str(redact(text))
