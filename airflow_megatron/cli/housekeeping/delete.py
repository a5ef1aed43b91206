"""``airflow-megatron delete``: delete the data of a sweep."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_megatron.cli.housekeeping.remains import HousekeepingError
from airflow_megatron.cli.runs.login_node import ANSWER_WINDOW_S, command_line_hook, login_node
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.results.store.segments import StoreError
from airflow_megatron.slurm.polling.queue_states import fetch_queue
from airflow_megatron.slurm.remote.run_folders import folders_script, parse_folders
from airflow_megatron.slurm.submission.job_script import attempts_in_queue
from airflow_megatron.slurm.verdicts.stage_records import (
    other_account_message,
    parse_stage_states,
    stage_state_script,
)
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.trust.plain_text import shown
from airflow_megatron.supervision.attempts import answered, slurm_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_megatron.cli.housekeeping.remains import Remains, Site
    from airflow_megatron.slurm.remote.run_folders import FolderAnswer
    from airflow_megatron.slurm.remote.transport import CommandResult

log = logging.getLogger(__name__)

REMOVAL_S: Final = 6 * 3600.0
"""Timeout in seconds for measuring or deleting folders on a login node; checkpoints are many and large."""


def refuse_under_way(remains: Remains) -> None:
    """Refuse the deletion if a selected run or job is in progress.

    :raises HousekeepingError: with the runs or jobs in progress
    :raises airflow_megatron.slurm.remote.transport.TransportError: if a login node does not answer
    """
    under_way = [
        f"{dag_id} {run}"
        for dag_id, runs in remains.airflow_runs.items()
        for run, has_ended in runs.items()
        if not has_ended
    ]
    jobs = [name for site in remains.sites for name in _jobs_in_slurm(site)]
    if under_way or jobs:
        what = [f"run {name} is under way" for name in under_way] + [
            f"job {name} is in Slurm" for name in jobs
        ]
        more = f" and {len(what) - 8} more" if len(what) > 8 else ""
        raise HousekeepingError(
            f"{'; '.join(what[:8])}{more}. Wait for the end, or stop it: airflow-megatron cancel {remains.sweep}"
        )


def _jobs_in_slurm(site: Site) -> list[str]:
    """Return the names of the jobs with an attempt in the queue."""
    folders = [job.stage_dir for job in site.jobs]
    with login_node(site.cluster) as run:
        states = answered(
            run, stage_state_script(folders), partial(parse_stage_states, folders), log, ANSWER_WINDOW_S
        )
        ids = {
            attempt.job_id: job.name
            for job in site.jobs
            for attempt in states[job.stage_dir].attempts
            if attempt.job_id is not None
        }
        queue = fetch_queue(slurm_commands(site.cluster), run)
    for job in site.jobs:
        if account := states[job.stage_dir].other_account:
            raise HousekeepingError(other_account_message(job.name, job.stage_dir, account))
    if queue is None:
        raise HousekeepingError(
            f"squeue does not answer on {site.cluster.name}: whether jobs run is not known"
        )
    recorded = {name for job_id, name in ids.items() if job_id in queue and not queue[job_id].state.ended}
    return sorted(recorded | {job.name for job, _ in attempts_in_queue(site.jobs, queue)})


def what_is_there(remains: Remains) -> Iterator[str]:
    """Yield a line for each item that would be deleted or kept.

    :raises airflow_megatron.slurm.remote.transport.TransportError: if a login node does not answer
    """
    for site in remains.sites:
        for answer in _on(remains, site, remove=False):
            yield from _foreign(answer, site)
            if answer.problem:
                yield f"left alone: {answer.problem}"
            elif answer.exists:
                yield f"{_removable(answer)} on {site.cluster.name}, {answer.kibibytes / 1024:.1f} MiB"
        for path in site.elsewhere:
            yield f"left alone: {path} on {site.cluster.name} is not in the sweep's own folder"
    for folder in remains.reports:
        yield f"{folder} on this machine"
    if remains.store is not None:
        what = f"rows of the sweep in {remains.store.shown}"
        yield what if remains.is_whole_sweep else f"left alone: {what}, which all points and runs share"
    for dag_id, runs in remains.airflow_runs.items():
        names = ", ".join(list(runs)[:4]) + (" …" if len(runs) > 4 else "")
        yield f"{counted(len(runs), 'run')} of {dag_id} in Airflow's database: {names}"


def delete(remains: Remains) -> Iterator[str]:
    """Delete the data, folders first; yield a line for each deleted item, and for items that are kept.

    The command can be repeated after an interruption at any time.

    :raises HousekeepingError: if a folder could not be deleted; runs and stored plans, which refer to it, are kept
    :raises airflow_megatron.slurm.remote.transport.TransportError: if a login node does not answer
    """
    problems: list[str] = []
    for site in remains.sites:
        for answer in _on(remains, site, remove=True):
            yield from _foreign(answer, site)
            if answer.problem:
                problems.append(f"{answer.path} on {site.cluster.name}: {answer.problem}")
            elif answer.removed:
                yield f"deleted {_removable(answer)} on {site.cluster.name}"
    if problems:
        raise HousekeepingError("not removed: " + "; ".join(problems))
    if remains.sites:
        placements = Placements(remains.sweep)
        placements.forget(placements.read() if remains.points is None else remains.points)
    for folder in remains.reports:
        shutil.rmtree(folder)
        yield f"deleted {folder} on this machine"
    if remains.store is not None and remains.is_whole_sweep:
        try:
            remains.store.remove_sweep(remains.sweep)
        except StoreError as error:
            raise HousekeepingError(str(error)) from None
        yield f"deleted rows of the sweep in {remains.store.shown}"
    yield from _delete_runs(remains)


def _delete_runs(remains: Remains) -> Iterator[str]:
    from airflow.utils.session import create_session

    from airflow_megatron.dag_factory.deleted_runs import delete_runs

    store = PinStore()
    for dag_id, runs in remains.airflow_runs.items():
        with create_session() as session:
            gone = delete_runs(dag_id, session, list(runs))
        for run in gone:
            store.forget(dag_id, run)
        yield f"deleted {counted(len(gone), 'run')} of {dag_id} in Airflow's database"
    if remains.points is None:
        noted = [remains.run] if remains.run else store.runs(remains.sweep)
        for run in noted:  # stored plans of runs that are no longer in Airflow's database
            store.forget(remains.sweep, run)


def _foreign(answer: FolderAnswer, site: Site) -> Iterator[str]:
    """Yield a line about the entries of a sweep's folder that no job of it has made."""
    if answer.kept:
        names = ", ".join(map(shown, answer.kept[:8])) + (" …" if len(answer.kept) > 8 else "")
        yield f"left alone: {names} in {answer.path} on {site.cluster.name}: not the folders of jobs"


def _removable(answer: FolderAnswer) -> str:
    return f"the folders of jobs in {answer.path}" if answer.kept else answer.path


def _on(remains: Remains, site: Site, *, remove: bool) -> list[FolderAnswer]:
    run = partial(command_line_hook(site.cluster).run, timeout=REMOVAL_S)
    script = folders_script(
        site.cluster.run_root, site.folders, remove=remove, of_jobs=remains.points is None
    )
    parse: Callable[[CommandResult], list[FolderAnswer]] = partial(parse_folders, site.folders)
    return answered(run, script, parse, log, ANSWER_WINDOW_S)
