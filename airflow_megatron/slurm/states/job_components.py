"""Heterogeneous jobs: one job with a row for each component.

Component 0 runs the script, so its row has the name and exit code of the job. The job has ended when all components
have ended. If a component failed with its node or for lack of memory, that failure ended the other components
(``heterogeneous_jobs.html`` of Slurm's documentation).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, ControllerRow, QueueRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RowT = TypeVar("RowT", QueueRow, AccountingRow, ControllerRow)

_COMPONENT = re.compile(r"(\d+)\+(\d+)")
_CAUSES = (JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY, JobState.PREEMPTED)


def with_whole_jobs(rows: Iterable[RowT]) -> list[RowT]:
    """Return the rows and an additional row for each heterogeneous job, under the id that sbatch printed.

    :param rows: the output of one command, in its order.
    """
    found = list(rows)
    components: dict[str, list[RowT]] = {}
    for row in found:
        if match := _COMPONENT.fullmatch(row.job_id):
            components.setdefault(match[1], []).append(row)
    return found + [_whole_job(job_id, parts) for job_id, parts in components.items()]


def _whole_job(job_id: str, components: Sequence[RowT]) -> RowT:
    leader = next((row for row in components if row.job_id == f"{job_id}+0"), components[0])
    going_on = [row for row in components if not row.state.ended]
    lost = [row for row in components if row.state in _CAUSES]
    deciding = leader
    if going_on and leader not in going_on:
        deciding = going_on[0]
    elif lost and leader not in lost:
        deciding = min(lost, key=lambda row: _CAUSES.index(row.state))
    rows = [deciding] if deciding in lost else components
    nodes = ",".join(row.node_list for row in rows if row.node_list)
    changes: dict[str, Any] = {"state": deciding.state, "reason": deciding.reason, "node_list": nodes}
    if isinstance(deciding, AccountingRow):
        changes["state_text"] = deciding.state_text
    return replace(leader, job_id=job_id, **changes)
