"""The commands of ``airflow-megatron`` as ``airflow megatron …``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow.cli.cli_config import CLICommand

_WORDS = Arg(("words",), nargs="...", metavar="ARGUMENT", help="as for airflow-megatron")  # type: ignore[no-untyped-call]


def airflow_commands() -> list[CLICommand]:
    """Return the commands that this package adds to Airflow's command line."""
    return [
        ActionCommand(
            name="megatron",
            help="Plan, run and inspect Megatron-LM sweeps on Slurm clusters (airflow-megatron)",
            func=_run,
            args=(_WORDS,),
        )
    ]


def _run(arguments: Namespace) -> None:
    from airflow.configuration import AIRFLOW_HOME

    from airflow_megatron.cli.app import (
        main,
    )  # imported only when it runs, because every Airflow command imports this module

    os.environ.setdefault("AIRFLOW_HOME", AIRFLOW_HOME)
    main(arguments.words)
