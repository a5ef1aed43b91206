"""Batches of rows to be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Source(NamedTuple):
    """Origin of rows; the first fields are the columns of :data:`.tables.SOURCE`, in the same order.

    :param sweep: name of the sweep
    :param run: id of the sweep's run; empty if unknown
    :param point: name of the point; empty for a job of the whole sweep
    :param stage: name of the stage
    :param attempt: number of the attempt
    :param job_id: Slurm job id
    :param log: path of the attempt's log on the cluster
    :param seq_length: tokens per sample; 0 if unknown
    :param gpus: number of GPUs of the job; 0 if unknown
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
    :param source: origin of the rows
    :param time: Unix time at which they were read
    :param rows: values in the order of the table's own columns; for iterations the records themselves
    :param offsets: for each row the byte of the log at which its line begins; empty for rows that come from no log
    """

    table: str
    source: Source
    time: float
    rows: Sequence[Sequence[Any]]
    offsets: Sequence[int] = ()
