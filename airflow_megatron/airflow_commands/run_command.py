"""Run an Airflow command: ``python -m airflow_megatron.airflow_commands.run_command dags test …``.

It does what ``python -m airflow`` does, but with few garbage collections, which take half of the processor time of
Airflow's short commands.
"""

from __future__ import annotations

import atexit
import gc
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEW_OBJECTS: Final = 50_000


def collect_seldom() -> None:
    """Let this process collect garbage seldom, and not when it ends.

    Airflow and its libraries create a million objects, which exist until the process ends. Python's default is to begin
    a collection after 700 new objects, and to visit all objects a last time at the end.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)


def run_command(words: Sequence[str]) -> None:
    """Run an Airflow command in this process.

    :param words: the arguments after ``airflow``
    :raises SystemExit: with the command's exit status, if it is not 0
    """
    collect_seldom()
    from airflow import __main__ as airflow

    sys.argv = [airflow.__file__, *words]
    airflow.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run_command(sys.argv[1:])
