"""Parse the ids that squeue, sacct and scontrol print: arrays, heterogeneous jobs, clusters of a federation."""

from __future__ import annotations

import re

_ARRAY_TASKS = re.compile(r"(\d+)_\[([^\]]*)\]?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LARGEST_ARRAY = 4_000_001
"""Slurm's own upper bound of ``MaxArraySize``."""


def job_ids(text: str) -> tuple[str, ...]:
    """Return the ids of all jobs that one printed id denotes.

    ``7`` and ``7_3`` denote one job. ``7_[1-3,8-12:2%4]``, one row for the pending tasks of an array, denotes each of
    the tasks (``%4`` limits how many run at the same time). ``7+1`` denotes one component of a heterogeneous job
    (:mod:`airflow_megatron.slurm.states.job_components` merges the components).

    For a list that Slurm truncated (``7_[1,3,...]``), the result holds the listed tasks only.
    """
    text = text.strip().partition(";")[0]  # "7;cluster", as sbatch --parsable writes it
    array = _ARRAY_TASKS.fullmatch(text)
    if array is None:
        return (text,)
    found: list[str] = []
    for part in array.group(2).partition("%")[0].split(","):
        bounds = _RANGE.fullmatch(part.strip())
        if bounds is None:
            continue
        first, last, step = (
            int(bounds.group(1)),
            int(bounds.group(2) or bounds.group(1)),
            int(bounds.group(3) or 1),
        )
        if last < _LARGEST_ARRAY and step:
            found += [f"{array.group(1)}_{task}" for task in range(first, last + 1, step)]
    return tuple(found) or (text,)
