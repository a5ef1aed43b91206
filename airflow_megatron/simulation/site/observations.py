"""Observations of an attempt on the simulated cluster, in the same classes as those of a real poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation, QueueRow, Unreachable

if TYPE_CHECKING:
    from airflow_megatron.simulation.site.cluster import SimulatedAttempt, SimulatedCluster


def observe(cluster: SimulatedCluster, attempt: SimulatedAttempt) -> Observation:
    """Return the current observation from the login node."""
    now, services = cluster.environment.now, cluster.services
    cut = services.outage("login", now)
    if cut is not None:
        return Observation(now, unreachable=Unreachable(cut.start, "connection timed out", 1))
    queue_ok = services.outage("controller", now) is None
    queue = _queue_row(cluster, attempt, now) if queue_ok else None
    ended_there = queue is None or queue.state.ended
    accounting_ok = not ended_there or services.outage("accounting", now) is None
    return Observation(
        now,
        queue=queue,
        queue_ok=queue_ok,
        accounting=_accounting_row(cluster, attempt, now) if ended_there and accounting_ok else None,
        accounting_ok=accounting_ok,
        exit=_exit_record(attempt),
        tracker=str(attempt.training.tracked) if attempt.training.tracked else None,
        checkpoint_files=attempt.training.listing(),
    )


def _name(attempt: SimulatedAttempt) -> str:
    return f"simulated.{attempt.training.plan.name}.{attempt.job_id}"


def _node_list(attempt: SimulatedAttempt) -> str:
    """Return a host list of Slurm; for several nodes it is only the range from the first to the last."""
    if len(attempt.indexes) < 2:
        return "".join(attempt.hosts[:1])
    first, last = attempt.hosts
    return f"n[{first[1:]}-{last[1:]}]"


def _queue_row(cluster: SimulatedCluster, attempt: SimulatedAttempt, now: float) -> QueueRow | None:
    if attempt.ended is not None and now - attempt.ended > cluster.site.min_job_age_s:
        return None
    return QueueRow(
        attempt.job_id,
        _name(attempt),
        attempt.state,
        node_list=_node_list(attempt),
        node_count=attempt.training.plan.nodes,
        submitted=attempt.submitted,
        started=attempt.started,
        ended=attempt.ended,
    )


def _accounting_row(cluster: SimulatedCluster, attempt: SimulatedAttempt, now: float) -> AccountingRow:
    known = attempt.ended is None or now - attempt.ended >= cluster.site.accounting_lag_s
    state = attempt.state if known else JobState.RUNNING
    ended = attempt.ended if known else None
    began = attempt.started if attempt.started is not None else attempt.submitted
    return AccountingRow(
        attempt.job_id,
        _name(attempt),
        state,
        "CANCELLED by 1000" if state is JobState.CANCELLED else state.value,
        exit_code=attempt.exit_code if known else 0,
        exit_signal=0,
        node_list=_node_list(attempt),
        node_count=attempt.training.plan.nodes,
        submitted=attempt.submitted,
        started=attempt.started,
        ended=ended,
        elapsed=(ended if ended is not None else now) - began,
    )


def _exit_record(attempt: SimulatedAttempt) -> ExitRecord | None:
    if attempt.ended is None or not attempt.recorded:
        return None
    return ExitRecord(
        exit_code=attempt.exit_code,
        signal=None,
        host=attempt.hosts[0],
        nodes=_node_list(attempt),
        started=attempt.started or 0.0,
        ended=attempt.ended,
        job_id=attempt.job_id,
        restart_count=0,
    )
