"""The commands that convert other tools' configurations to sweep specs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Convert another tool's configuration to a sweep spec.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Convert another tool's configuration to a sweep spec."""


@app.command("oellm")
def import_oellm_configuration(
    config_dir: Annotated[str, typer.Option(help="The config/ folder of oellm-autoexp")],
    config_name: Annotated[str, typer.Option(help="Name of the configuration in Hydra's notation")],
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Hydra override; may be repeated")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Output file; default: standard output")] = "",
) -> None:
    """Compose a Hydra configuration of oellm-autoexp and write it as a native spec."""
    from airflow_megatron.spec.oellm_import import MissingHydraError, import_oellm

    try:
        text = import_oellm(config_dir, config_name, override or [])
    except MissingHydraError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if not output:
        print(text, end="")
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{output} cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"wrote {output}", file=sys.stderr)
