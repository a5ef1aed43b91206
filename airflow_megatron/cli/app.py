"""The command line's entry point."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from airflow_megatron import __version__
from airflow_megatron.cli.command_line import add_commands
from airflow_megatron.cli.console.streams import answering
from airflow_megatron.cli.console.verbosity import FLAGS, set_verbosity
from airflow_megatron.errors import RegistryError
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import NoProjectError, local_dir
from airflow_megatron.spec.documents.shipped_files import checkout
from airflow_megatron.spec.trust.permitted_variables import read_for_person

if TYPE_CHECKING:
    from collections.abc import Sequence


class VerbosityAnywhere(TyperGroup):
    """Command group that accepts ``--quiet``, ``--verbose`` and ``--debug`` before and after the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments with these flags moved to the front."""
        end = args.index("--") if "--" in args else len(args)
        flags = [word for word in args[:end] if word in FLAGS]
        return super().parse_args(
            ctx, flags + [word for word in args[:end] if word not in FLAGS] + args[end:]
        )

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its refusals of values do not begin with the words of pydantic, which Typer uses."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="airflow-megatron",
    help="Megatron-LM sweeps on Slurm clusters, driven from Apache Airflow.",
    cls=VerbosityAnywhere,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"airflow-megatron {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show errors only")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each step")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log everything")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Megatron-LM sweeps on Slurm clusters, driven from Apache Airflow."""
    context.with_resource(read_for_person())
    set_verbosity(quiet=quiet, verbose=verbose, debug=debug)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; report an invalid spec, or an output that cannot be written, without a traceback.

    :param words: command-line arguments; default: those of the process
    """
    # pydantic would read the metadata of every installed package in a search for plugins
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    group = cast("TyperGroup", get_command(app))
    add_commands(group)
    with answering():
        try:
            if checkout() is not None:  # an installed package uses the Airflow of its environment
                os.environ.setdefault("AIRFLOW_HOME", str(local_dir() / "airflow"))
            group(args=words, prog_name="airflow-megatron" if words is None else "airflow megatron")
        except (SpecError, NoProjectError, RegistryError) as error:
            print(error, file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main()
