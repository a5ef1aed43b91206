"""Storing of the results of an evaluation when its job ends; the report stores them again from the run directories."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from airflow_megatron.results.readings.plan_rows import sweep_jobs
from airflow_megatron.results.readings.snapshot import parse_snapshot, snapshot_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

log = logging.getLogger(__name__)

WAIT_S: Final = 20.0
"""Maximum seconds that a task waits for the store."""


def store_evaluations(
    job: Job, run: Callable[[str], CommandResult], sweep_run: str, *, several: bool = False
) -> None:
    """Store the results in the run directory of a finished evaluation; do nothing for other jobs.

    No verdict depends on the store, so errors are only logged.

    :param run: runs a script on the login node
    :param sweep_run: id of the sweep's run
    :param several: whether the spec names several clusters
    """
    sweep_job = sweep_jobs([job], several=several)[0]
    if sweep_job.reported_as != "evaluation":
        return
    try:
        stored = _store(job, sweep_job, run, sweep_run)
    except Exception as error:  # the job has finished, whether or not the store accepts its results
        log.warning("the results of %s are not stored before the report: %s", job.name, error)
    else:
        if not stored:
            log.warning("the results of %s are not stored before the report: the store is slow", job.name)


def _store(job: Job, sweep_job: SweepJob, run: Callable[[str], CommandResult], sweep_run: str) -> bool:
    """Store the results; return whether they have been written."""
    from airflow_megatron.results.store.snapshot_rows import batches_of_evaluations  # polars loads slowly
    from airflow_megatron.results.store.writer import ResultWriter

    answer = run(snapshot_script([sweep_job.run_dir], log_tail_bytes=1))
    snapshot = parse_snapshot(answer.stdout)
    writer = ResultWriter.shared()
    for batch in batches_of_evaluations(job.sweep, snapshot, [sweep_job], time.time(), run=sweep_run):
        writer.put(batch)
    return writer.drain(WAIT_S)
