"""Find which jobs of a sweep have a verdict, with one remote command that reads only the verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def finished_stages_script(points: Iterable[Sequence[str]]) -> str:
    """Return the remote script that reads the verdicts of points whose jobs may all have finished.

    For each point, the script stops at the first stage without a verdict, so it checks one stage per point of a sweep
    that never ran. :func:`airflow_megatron.slurm.verdicts.stage_records.parse_stage_states` parses the output, with all
    directories in the same order; its records hold only verdicts and attempt numbers.

    :param points: the stage directories of each point
    """
    calls, index = [], 0
    for directories in points:
        words = []
        for directory in directories:
            words.append(f"{index} {quote_path(directory)}")
            index += 1
        calls.append(" ".join(["am_point", *words]))
    return framed("\n".join([shell_file("finished_stages"), *calls, "am_verdicts"]))


def started_points_script(points: Iterable[Sequence[str]]) -> str:
    """Return the remote script that prints ``started NUMBER`` for each point with an attempt.

    :param points: the stage directories of each point
    """
    calls = [
        " ".join(["am_started", str(number), *map(quote_path, directories)])
        for number, directories in enumerate(points)
    ]
    return framed("\n".join([shell_file("finished_stages"), *calls]))
