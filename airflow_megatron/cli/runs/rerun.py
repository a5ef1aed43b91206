"""``airflow-megatron rerun``: repeat a run from its stored plan, and report differences."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron import __version__
from airflow_megatron.cli.console.empty_options import not_empty
from airflow_megatron.cli.plans.spec_options import complete_cluster, load_own_spec
from airflow_megatron.cli.runs.login_node import login_node
from airflow_megatron.cli.runs.recorded_cluster import remove, write_cluster, write_new
from airflow_megatron.plan.job_origins import job_origins
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.provenance import (
    differences,
    parse_question,
    parse_record,
    question_script,
    record_script,
)
from airflow_megatron.spec.documents.commit import commit_of
from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.documents.project import clusters_dir, project_root, sweep_specs_dir
from airflow_megatron.spec.native.sweep import NativeSweep
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_megatron.plan.sweep_plan import Plan

_POINTS = ".point"


def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a sweep's run, or SWEEP/RUN")],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="A current cluster profile, instead of the one that the run has pinned",
            autocompletion=complete_cluster,
            callback=not_empty("the run's own cluster"),
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Name of the new sweep; default: SWEEP-rerun",
            callback=not_empty("SWEEP-rerun"),
        ),
    ] = "",
) -> None:
    """Write a spec that repeats a run from its stored plan, into a new folder, and report differences.

    Cluster profile, templates, signatures and tables of arguments are those of the run, written as a new profile,
    unless --cluster names another.
    """
    written: list[Path] = []
    try:
        pinned = pinned_run(run)
        if cluster is None and pinned.others:
            names = " or ".join(pinned.by_cluster)
            raise PinError(f"the points of this run are on several clusters; choose one: --cluster {names}")
        name = name or free_name(f"{pinned.sweep}-rerun")
        if cluster is None:
            written = write_cluster(pinned.plan_environment, profile_name(name))
        path = write_spec(pinned, cluster or profile_name(name), name)
        written.insert(0, path)
        plan = check_sweep(load_own_spec(str(path)))
        for line in changes(pinned, plan, recorded=cluster is None):
            print(f"differs: {line}")
    except BaseException as error:
        remove(written)
        if not isinstance(error, PinError | SpecError):
            raise
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    for file in written:
        print(f"wrote {file}")
    chosen = (
        f" --conf '{json.dumps({'points': ','.join(pinned.points)})}'"
        if pinned.choice or pinned.limit
        else ""
    )
    print(f"start it: airflow dags trigger {plan.sweep}{chosen}")


def pinned_run(run: str) -> PinnedSweep:
    """Return the newest stored plan of a run.

    :param run: its id, or ``SWEEP/RUN`` if several sweeps have a run of that id
    :raises PinError: if there is none, or several
    """
    store = PinStore()
    known = {
        (dag_id, run_id)
        for dag_id in store.dags()
        if not dag_id.endswith(_POINTS)
        for run_id in store.runs(dag_id)
    }
    found = sorted(pair for pair in known if run in (pair[1], "/".join(pair)))
    if len(found) != 1:
        names = ["/".join(pair) for pair in (found or sorted(known))]
        hint = did_you_mean(run, names) or f"runs: {', '.join(names[:8]) or 'none'}"
        problem = "several sweeps have" if found else "no sweep has"
        raise PinError(f"{problem} a run {run!r} that has stored a plan; {hint}")
    return PinnedSweep.read(str(store.newest(*found[0])), store)


def free_name(wanted: str) -> str:
    """Return a name that no spec and no profile has: *wanted*, or *wanted* with a number, from 2."""
    names = (wanted, *(f"{wanted}{number}" for number in range(2, 10_000)))
    specs, clusters = sweep_specs_dir(), clusters_dir()
    return next(
        name
        for name in names
        if not (specs / f"{name}.yaml").exists() and not (clusters / f"{profile_name(name)}.yaml").exists()
    )


def profile_name(sweep: str) -> str:
    """Return the name of the cluster profile of a repeated sweep."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", sweep)


def write_spec(pinned: PinnedSweep, cluster: str, name: str) -> Path:
    """Write the spec of a run, with the files that it used merged into it, under another name; return its path.

    :raises SpecError: if it cannot be run there
    :raises PinError: if the file exists, or another tool's file was pinned
    """
    sweep = load_sweep_text(pinned.text, pinned.file, pinned.sources)
    if not isinstance(sweep, NativeSweep):
        raise PinError(
            f"{pinned.sweep} is written in another tool's language; give a copy of {pinned.file} a new name"
        )
    path = sweep_specs_dir() / f"{name}.yaml"
    if "/" in name or name.startswith("."):
        raise PinError(f"{name!r} cannot be the name of a sweep")
    data = {**sweep.document.data, "name": name, "cluster": cluster}
    origin = f"# From the plan {pinned.pin} of {pinned.sweep}, made by airflow-megatron {pinned.package}.\n"
    text = origin + json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    check_sweep(load_sweep_text(text, str(path)))  # leave no invalid spec in the folder
    try:
        write_new(path, text)
    except FileExistsError:
        raise PinError(f"{path} exists; choose another --name") from None
    except OSError as error:
        raise PinError(f"{path} cannot be written: {error.strerror}") from None
    return path


def changes(pinned: PinnedSweep, plan: Plan, *, recorded: bool) -> Iterator[str]:
    """Yield the differences between a run's plan and records and the current state, one line each.

    :param plan: plan of the new sweep
    :param recorded: whether its profile is the one that the run has pinned
    """
    now = PlanEnvironment.now(plan.cluster)
    if pinned.package != __version__:
        yield f"planned by airflow-megatron {pinned.package}, now {__version__}"
    commit = commit_of(project_root())
    if pinned.commit != commit:
        yield f"the project was at commit {pinned.commit[:12] or 'unknown'}, now {commit[:12] or 'unknown'}"
    if not recorded and plan.cluster != pinned.cluster:
        yield f"cluster {pinned.cluster}, now {plan.cluster}"
    if not recorded:
        yield from pinned.plan_environment.changes(now, profile=plan.cluster == pinned.cluster)
    before = pinned.plan()
    roots = [
        f"{around.cluster.run_root.rstrip('/')}/{sweep}"
        for around, sweep in ((pinned.plan_environment, pinned.sweep), (now, plan.sweep))
    ]
    commands = {(job.point, job.stage): _at(job.command, roots[1]) for job in plan.jobs}
    other = [
        job.name
        for job in before.jobs
        if commands.get((job.point, job.stage), ()) != _at(job.command, roots[0])
    ]
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        yield f"the command of {', '.join(other[:4])}{more}"
    yield from _programs(pinned, before, plan, now)


def _at(command: tuple[str, ...], root: str) -> tuple[str, ...]:
    return tuple(str(word).replace(root, "<sweep>") for word in command)


def _programs(pinned: PinnedSweep, before: Plan, plan: Plan, now: PlanEnvironment) -> Iterator[str]:
    """Yield the differences between the recorded programs of an attempt and those on the login node."""
    jobs = sorted(before.jobs, key=lambda job: not job.runs_trainer)
    folders = [job.stage_dir for job in jobs]
    try:
        with login_node(pinned.plan_environment.cluster) as run:
            recorded = parse_record(
                folders, run(record_script(folders, pinned.plan_environment.cluster.run_root))
            )
        if recorded is None:
            yield "the programs of its jobs are not recorded"
            return
        was = next(job for job in jobs if job.stage_dir == recorded[0])
        job = next((job for job in plan.jobs if job.stage == was.stage), plan.jobs[0])
        with login_node(now.cluster) as run:
            script = question_script(job_origins(job, now.cluster), now.cluster.run_root)
            found = parse_question(run(script))
    except TransportError as error:
        yield f"unknown in the programs: {error}"
        return
    yield from differences(recorded[1], found)
