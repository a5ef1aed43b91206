"""Options that may not be empty: an unset variable of a script would otherwise count as an option that is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


def not_empty(otherwise: str) -> Callable[[typer.Context, typer.CallbackParam, str | None], str | None]:
    """Return a callback of an option that refuses an empty text on the command line.

    :param otherwise: what the command does without the option
    """

    def checked(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
        source = context.get_parameter_source(parameter.name or "")
        if value is not None and not value.strip() and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it is empty; leave the option out for {otherwise}")
        return value

    return checked
