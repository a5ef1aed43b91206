"""``airflow-megatron megatron-args``: argument tables from checkouts, and checks of command lines.

``megatron-args CHECKOUT`` writes a checkout's argument table, ``megatron-args check --release R`` reads command
lines as JSON lines. The first is the group's default command: an unknown command name is read as CHECKOUT.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from airflow_megatron.cli.console.empty_options import not_empty
from airflow_megatron.megatron.arguments.checkout import CheckoutError, dump_checkout
from airflow_megatron.megatron.arguments.table_writer import make_table, table_text
from airflow_megatron.megatron.arguments.tables import ArgumentError, program_table, release_tag
from airflow_megatron.megatron.rules.command_line import CommandLineReader, reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.trainers.trainer_table import trainer_table
from airflow_megatron.megatron.validation.command_checks import check_lines
from airflow_megatron.requirements.job_machine import trainer_machine
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.trust.quoting import quote

_DEFAULT = "table"
_UPSTREAM = "megatron_lm"


class _TableByDefault(TyperGroup):
    """Command group whose default command gets a first word that is not a command name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the first word, or the default command."""
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
    release: Annotated[
        str | None, typer.Option(help="Name of the release in the table; default: the folder's name")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Output file; default: standard output")
    ] = None,
) -> None:
    """Write the argument table of a checkout or fork. This executes the checkout's own parsers, without PyTorch."""
    try:
        dump = dump_checkout(Path(checkout), release)
    except CheckoutError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    for note in dump["notes"]:
        print(f"note: {note}", file=sys.stderr)
    text = table_text(make_table([dump]))
    if output is None:
        print(text, end="")
    else:
        Path(output).write_text(text, encoding="utf-8")


@app.command(context_settings={"allow_extra_args": True})  # the words after the first value of --env
def check(
    ctx: typer.Context,
    release: Annotated[str, typer.Option(help="Upstream release, for example core_v0.16.1 or 0.16.1")],
    first_iteration: Annotated[
        bool,
        typer.Option("--first-iteration", help="Also check for failures before the end of the first step"),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Cluster profile of the jobs' nodes",
            callback=not_empty("a node of default settings"),
        ),
    ] = None,
    transformer_engine: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Installed version of Transformer Engine; default: none"),
    ] = None,
    compute_capability: Annotated[
        str | None, typer.Option(metavar="N", help="CUDA compute capability of the GPUs; default: 9")
    ] = None,
    packages: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Other installed Python packages, by import name")
    ] = None,
    missing_packages: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Packages missing beside Transformer Engine: apex"),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V …", help="Environment variables of the jobs, one or more; may be repeated"),
    ] = None,
) -> None:
    """Check command lines: JSON lines {"argv": […], "world_size": n} in, {"ok", "problems"} out.

    A line may also have "env": {…}, the environment of its job.
    """
    release = release_tag(release)
    for word in ctx.args:
        if "=" not in word:
            print(
                f"check reads its command lines from standard input, not from {word!r}; write check … < {quote(word)}",
                file=sys.stderr,
            )
            raise typer.Exit(2)
    try:
        machine, environment, flags = _machine(
            release,
            cluster,
            transformer_engine,
            compute_capability,
            packages or [],
            missing_packages or [],
            [*(env or []), *ctx.args],
        )
        for line in check_lines(
            sys.stdin,
            release,
            machine=machine,
            environment=environment,
            first_iteration=first_iteration,
            flags=flags,
        ):
            print(line)
    except (ArgumentError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


def _machine(
    release: str,
    cluster: str | None,
    transformer_engine: str | None,
    compute_capability: str | None,
    packages: list[str],
    missing_packages: list[str],
    env: list[str],
) -> tuple[Machine, dict[str, str], CommandLineReader]:
    """Return the jobs' machine, its known environment variables, and the parser of the jobs' flags."""
    variables = dict(_variable(text) for text in env)
    given = Machine.of(
        transformer_engine=transformer_engine,
        compute_capability=compute_capability,
        packages=_names(packages),
        missing=_names(missing_packages),
    )
    if cluster is None:
        table = program_table(release).with_packages(given.packages)
        return replace(given, environment={**given.environment, **variables}), variables, reader(table)
    profile = load_cluster(cluster)
    base = trainer_machine(_UPSTREAM, profile, variables)
    machine = replace(
        base,
        transformer_engine=given.transformer_engine or base.transformer_engine,
        compute_capability=base.compute_capability
        if compute_capability is None
        else given.compute_capability,
        packages=base.packages | given.packages,
        missing=base.missing | given.missing,
    )
    table = trainer_table(_UPSTREAM, release, profile, {}).with_packages(given.packages)
    return machine, dict(machine.environment), reader(table)


def _names(lists: list[str]) -> set[str]:
    return {name.strip() for text in lists for name in text.split(",") if name.strip()}


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--env {text!r} is not a variable; write --env NAME=VALUE")
    return name, value
