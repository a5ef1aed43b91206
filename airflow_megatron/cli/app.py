"""The command line's entry point."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from airflow_megatron.cli import cluster_commands, import_commands, megatron_args, run_commands, spec_commands
from airflow_megatron.cli.checkpoint_commands import checkpoints
from airflow_megatron.cli.log_commands import log
from airflow_megatron.cli.simulation_commands import simulate
from airflow_megatron.cli.verbosity import FLAGS, set_verbosity
from airflow_megatron.spec.errors import SpecError
from airflow_megatron.spec.project import local_dir


class VerbosityAnywhere(typer.core.TyperGroup):
    """Takes ``--quiet``, ``--verbose`` and ``--debug`` before and after the name of the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the flags to the front."""
        end = args.index("--") if "--" in args else len(args)
        flags = [word for word in args[:end] if word in FLAGS]
        return super().parse_args(
            ctx, flags + [word for word in args[:end] if word not in FLAGS] + args[end:]
        )


app = typer.Typer(
    name="airflow-megatron",
    help="Megatron-LM sweeps on Slurm clusters, driven from Apache Airflow.",
    cls=VerbosityAnywhere,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    quiet: Annotated[bool, typer.Option("--quiet", help="Errors only")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what is done")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Say everything")] = False,
) -> None:
    """Megatron-LM sweeps on Slurm clusters, driven from Apache Airflow."""
    set_verbosity(quiet=quiet, verbose=verbose, debug=debug)


spec_commands.register(app)
run_commands.register(app)
app.command()(checkpoints)
app.command()(log)
app.command()(simulate)
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(import_commands.app, name="import")
app.add_typer(megatron_args.app, name="megatron-args")


def main() -> None:
    """Run the command line; a wrong spec is told without a traceback."""
    os.environ.setdefault("AIRFLOW_HOME", str(local_dir() / "airflow"))
    try:
        app()
    except SpecError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
