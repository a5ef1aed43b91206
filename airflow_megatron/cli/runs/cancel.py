"""``airflow-megatron cancel``: stop a sweep, or some of its points, in Airflow and in Slurm."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from airflow_megatron.cli.runs.login_node import ANSWER_WINDOW_S, login_node
from airflow_megatron.plan.pinned import PinnedSweep, plan_environment_of
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.slurm.polling.queue_states import fetch_queue
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.attempt_chain import current_attempt
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel
from airflow_megatron.slurm.submission.job_script import attempts_in_queue
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.spec.documents.configuration import airflow_home
from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.supervision.attempts import JobAttempts, answered, slurm_commands
from airflow_megatron.supervision.submission.attempt_chain import is_chained, withdraw_chain
from airflow_megatron.supervision.submission.stages_ahead import withdrawn_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

log = logging.getLogger(__name__)


def stop_in_airflow(sweep: str, points: Collection[str] | None) -> list[str] | None:
    """Mark runs of a sweep failed in Airflow's database: first the sweep's own, which would start others.

    :param points: only the runs of these points; None for all, including the sweep's own runs
    :return: ``<dag> <run>`` of each; None if Airflow's database cannot be reached
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        from airflow.utils.session import create_session

        from airflow_megatron.dag_factory.stopped_runs import stop_runs

        stopped: list[str] = []
        if points is None:
            with create_session() as session:
                stopped += [f"{sweep} {run}" for run in stop_runs(sweep, session, lambda _: True)]
        of_points = point_dag_id(sweep)
        with create_session() as session:
            ids = stop_runs(
                of_points,
                session,
                lambda run: points is None or str((run.conf or {}).get("point")) in points,
            )
            stopped += [f"{of_points} {run}" for run in ids]
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        log.warning(
            "Airflow's database cannot be reached (AIRFLOW_HOME is %s): %s",
            airflow_home(),
            reason,
        )
        return None
    return stopped


def jobs_to_cancel(plan: Plan, points: Collection[str] | None) -> list[Job]:
    """Return the jobs of a sweep: those in the stored plans of its runs, and those of the current spec.

    :param points: only the jobs of these points, without stages that other points use; None for all
    """
    store = PinStore()
    pins = {pin for dag_id in (plan.sweep, point_dag_id(plan.sweep)) for pin in store.pins(dag_id)}
    found = {job.stage_dir: job for job in plan.jobs}
    for pin in sorted(pins):
        try:
            pinned = PinnedSweep.read(pin, store).placed_plan()
        except PinError as error:
            log.warning("%s", error)
            continue
        found |= {job.stage_dir: job for job in pinned.jobs}
    return [job for job in found.values() if points is None or job.point in points]


def cancel_jobs(jobs: Iterable[Job]) -> list[str]:
    """Cancel the Slurm jobs of jobs and prevent their later attempts; return the names of the cancelled jobs.

    :raises airflow_megatron.slurm.remote.transport.TransportError: if a login node does not answer
    """
    by_connection: dict[str, list[Job]] = {}
    for job in jobs:
        by_connection.setdefault(plan_environment_of(job).cluster.ssh_conn_id, []).append(job)
    cancelled: list[str] = []
    missed: list[str] = []
    for of_one in by_connection.values():
        try:
            with login_node(plan_environment_of(of_one[0]).cluster) as run:
                cancelled += _cancel_on(run, of_one)
        except TransportError as error:
            if len(by_connection) == 1:
                raise
            missed.append(str(error))
    if missed:
        raise TransportError("; ".join([*missed, f"cancelled: {', '.join(cancelled) or 'nothing'}"]))
    return cancelled


def _cancel_on(run: Callable[[str], CommandResult], jobs: Sequence[Job]) -> list[str]:
    """Cancel the Slurm jobs on one login node; return the names of the cancelled jobs."""
    cancelled: list[str] = []
    folders = [job.stage_dir for job in jobs]
    if any(job.ahead for job in jobs):
        around = plan_environment_of(jobs[0])
        first = JobAttempts(jobs[0], around.cluster, run, log, around.templates, window_s=ANSWER_WINDOW_S)
        withdrawn_stages(first, folders[::-1])
    parse = partial(parse_stage_states, folders)
    states = answered(run, stage_state_script(folders), parse, log, ANSWER_WINDOW_S)
    for job in jobs:
        state = states[job.stage_dir]
        if state.latest is None or state.verdict_on_newest is not None:
            continue
        around = plan_environment_of(job)
        attempts = JobAttempts(job, around.cluster, run, log, around.templates, window_s=ANSWER_WINDOW_S)
        if is_chained(job) and not state.other_account:
            withdraw_chain(attempts, after=current_attempt(state))
        if attempts.withdraw():
            cancelled.append(job.name)
    without_records = _cancel_without_records(run, jobs)
    return list(dict.fromkeys([*cancelled, *without_records]))


def _cancel_without_records(run: Callable[[str], CommandResult], jobs: Sequence[Job]) -> list[str]:
    """Cancel what the queue still has of jobs, because a user has deleted their run directories; return their names."""
    commands = slurm_commands(plan_environment_of(jobs[0]).cluster)
    queue = fetch_queue(commands, run)
    if queue is None:
        raise TransportError("squeue does not answer, so that jobs without a run directory are not known")
    left = [(job, row) for job, row in attempts_in_queue(jobs, queue) if row.state is not JobState.COMPLETING]
    if not left:
        return []
    wanted = [(row.job_id, row.name) for _, row in left]
    done = answered(
        run, cancel_script(wanted, commands), partial(parse_cancel, wanted), log, ANSWER_WINDOW_S
    ).cancelled
    return [job.name for job, row in left if row.job_id in done]
