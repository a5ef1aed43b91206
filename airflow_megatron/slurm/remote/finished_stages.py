"""Which jobs have a verdict, for a whole sweep with one remote command: much less than all that is recorded of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def finished_stages_script(points: Iterable[Sequence[str]]) -> str:
    """Return the remote script that reads the verdicts of points whose jobs may all have finished.

    Of a point it reads up to the first stage without a verdict, so a sweep that never ran costs one look a point. The
    answer is read with :func:`airflow_megatron.slurm.remote.stage_records.parse_stage_states`, for all directories in
    the same order; the records that it makes hold verdicts and numbers of attempts, nothing else.

    :param points: the stage directories of each point
    """
    calls, index = [], 0
    for directories in points:
        words = []
        for directory in directories:
            words.append(f"{index} {quote_path(directory)}")
            index += 1
        calls.append(" ".join(["am_point", *words]))
    return framed("\n".join([shell_file("finished_stages"), *calls]))
