"""The ids that squeue, sacct and scontrol print: arrays, heterogeneous jobs, clusters of a federation."""

from __future__ import annotations

import re

_ARRAY_TASKS = re.compile(r"(\d+)_\[([^\]]*)\]?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LARGEST_ARRAY = 4_000_001
"""Slurm's own upper bound of ``MaxArraySize``."""


def job_ids(text: str) -> tuple[str, ...]:
    """Return the ids of all jobs that one printed id stands for.

    ``7`` and ``7_3`` stand for themselves. ``7_[1-3,8-12:2%4]``, the waiting tasks of an array in one row,
    stands for each of them (``%4`` is the number that may run at once). ``7+1``, a component of a heterogeneous
    job, stands for itself (:mod:`airflow_megatron.slurm.states.job_components` makes one job of them).

    A list that Slurm cut off (``7_[1,3,...]``) gives the tasks that it still shows.
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
