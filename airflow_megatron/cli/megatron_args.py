"""``airflow-megatron megatron-args``: argument tables from checkouts, and checks of command lines.

``megatron-args CHECKOUT`` writes a checkout's argument table, ``megatron-args check --release R`` reads command
lines as JSON lines. The first is the group's default command: a word that is no command is a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from airflow_megatron.megatron.arguments import ArgumentError, argument_table, release_tag
from airflow_megatron.megatron.arguments_table import make_table, table_text
from airflow_megatron.megatron.checkout import CheckoutError, dump_checkout
from airflow_megatron.megatron.validation import check_lines

_DEFAULT = "table"


class _TableByDefault(TyperGroup):
    """Takes a first word that is no command for the default command's argument."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the words start with."""
        if args and args[0] not in self.commands:
            args = [_DEFAULT, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_TableByDefault,
    help="Megatron-LM's arguments: CHECKOUT writes a checkout's table; check reads command lines.",
    no_args_is_help=True,
)


@app.command(_DEFAULT)
def write_checkout_table(
    checkout: Annotated[str, typer.Argument(metavar="CHECKOUT", help="Folder of a Megatron-LM checkout")],
    release: Annotated[str | None, typer.Option(help="What to call it; the folder's name by default")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File instead of standard output")
    ] = None,
) -> None:
    """Write the compact argument table of a checkout, forks included. Its own code runs, without PyTorch."""
    try:
        text = table_text(make_table([dump_checkout(Path(checkout), release)]))
    except CheckoutError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if output is None:
        print(text, end="")
    else:
        Path(output).write_text(text, encoding="utf-8")


@app.command()
def check(
    release: Annotated[str, typer.Option(help="Upstream release, for example core_v0.16.1 or 0.16.1")],
) -> None:
    """Check command lines: JSON lines {"argv": […], "world_size": n} in, {"ok", "problems"} out."""
    release = release_tag(release)
    try:
        argument_table(release)
        for line in check_lines(sys.stdin, release):
            print(line)
    except (ArgumentError, ValueError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
