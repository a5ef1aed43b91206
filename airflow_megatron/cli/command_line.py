"""The commands of ``airflow-megatron`` by name; a command's module is imported when the command runs.

Importing all of them takes ten times as long as printing the help.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperCommand
from typer.main import get_command

if TYPE_CHECKING:
    from typer.core import TyperGroup


class CommandPlace(NamedTuple):
    """Where a command is defined.

    :param target: module and attribute, ``package.module:attribute``: a function, or a Typer app of sub-commands
    :param summary: the line that the list of commands shows
    """

    target: str
    summary: str


_CLI = "airflow_megatron.cli"
COMMANDS: Final[dict[str, CommandPlace]] = {
    "init": CommandPlace(f"{_CLI}.setup.init_command:init", "Make a project."),
    "lint": CommandPlace(f"{_CLI}.plans.spec_commands:lint", "Check sweep specs; exit 1 when one is wrong."),
    "plan": CommandPlace(
        f"{_CLI}.plans.spec_commands:plan", "Draw the stage tree of a sweep, or list its jobs."
    ),
    "diff": CommandPlace(f"{_CLI}.plans.spec_commands:diff", "Show what changes from one spec to another."),
    "render": CommandPlace(f"{_CLI}.plans.script_commands:render", "Print the exact sbatch script of a job."),
    "build": CommandPlace(
        f"{_CLI}.plans.script_commands:build", "Write the sbatch scripts of all jobs into a folder."
    ),
    "schema": CommandPlace(f"{_CLI}.plans.spec_commands:schema", "Print the JSON Schema of sweep specs."),
    "status": CommandPlace(f"{_CLI}.runs.run_commands:status", "Show how far every job of a sweep is."),
    "cancel": CommandPlace(f"{_CLI}.runs.run_commands:cancel", "Stop a sweep, or some of its points."),
    "report": CommandPlace(f"{_CLI}.runs.run_commands:report", "Write the report of a sweep's run."),
    "rerun": CommandPlace(
        f"{_CLI}.runs.rerun:rerun", "Repeat a run from its stored plan, and say what differs now."
    ),
    "archive": CommandPlace(
        f"{_CLI}.housekeeping.commands:archive", "Write what a sweep has left into one file on its cluster."
    ),
    "delete": CommandPlace(
        f"{_CLI}.housekeeping.commands:delete", "Delete what a sweep has left; first print what that is."
    ),
    "quickstart": CommandPlace(
        f"{_CLI}.runs.run_commands:quickstart", "Run a small sweep on a local cluster, start to end."
    ),
    "ui": CommandPlace(f"{_CLI}.runs.run_commands:ui", "Start the local cluster and Airflow's web page."),
    "checkpoints": CommandPlace(
        f"{_CLI}.checkpoint_commands:checkpoints", "Show which checkpoints can be loaded, and why."
    ),
    "log": CommandPlace(f"{_CLI}.log_commands:log", "Show what a training log says, as records."),
    "simulate": CommandPlace(
        f"{_CLI}.simulation_commands:simulate", "Compare restart policies on a simulated cluster."
    ),
    "cluster": CommandPlace(
        f"{_CLI}.setup.cluster_commands:app",
        "The local Slurm cluster; put onto a cluster what its jobs need.",
    ),
    "import": CommandPlace(
        f"{_CLI}.plans.import_commands:app", "Turn another tool's configuration into a sweep spec."
    ),
    "megatron-args": CommandPlace(
        f"{_CLI}.megatron_args:app", "Check Megatron-LM command lines; write argument tables."
    ),
}


class DeferredCommand(TyperCommand):
    """Stands for a command in the list of commands, and becomes it when it is called.

    :param place: where the command is defined
    """

    def __init__(self, name: str, place: CommandPlace) -> None:
        super().__init__(name=name, help=place.summary, callback=None, rich_markup_mode=None)
        self.place = place

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import and return the command."""
        module, attribute = self.place.target.split(":")
        defined = getattr(importlib.import_module(module), attribute)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        if isinstance(defined, typer.Typer):
            app.add_typer(defined, name=self.name)
            return cast("TyperGroup", get_command(app)).commands[cast("str", self.name)]
        app.command(self.name)(defined)
        return get_command(app)


def add_commands(group: TyperGroup) -> None:
    """Add all commands to the group that the command line is."""
    for name, place in COMMANDS.items():
        group.add_command(DeferredCommand(name, place))
