"""Rows on their way into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Source(NamedTuple):
    """Where rows are from; the first fields are columns of :data:`.tables.SOURCE`, in their order.

    :param sweep: name of the sweep
    :param run: id of the sweep's run, empty where it is not known
    :param point: name of the point, empty for a job of the whole sweep
    :param stage: name of the stage
    :param attempt: number of the attempt
    :param job_id: Slurm's id
    :param log: the attempt's log on the cluster
    :param seq_length: tokens of a sample, 0 where it is not known
    :param gpus: GPUs of the job, 0 where it is not known
    """

    sweep: str
    run: str
    point: str
    stage: str
    attempt: int
    job_id: str
    log: str
    seq_length: int = 0
    gpus: int = 0


class Batch(NamedTuple):
    """Rows of one table from one source.

    :param table: name of the table
    :param source: where they are from
    :param time: Unix time at which they were read
    :param rows: values in the order of the table's own columns; of iterations the records themselves
    :param offsets: byte of the log at which the line of each begins; empty for rows that are from no log
    """

    table: str
    source: Source
    time: float
    rows: Sequence[Sequence[Any]]
    offsets: Sequence[int] = ()
