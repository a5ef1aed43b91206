"""The commands of ``airflow-megatron`` by name; a command's module is imported when the command runs.

Importing all of them takes ten times as long as printing the help.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperCommand
from typer.main import get_command

from airflow_megatron.cli.console.collection import no_collection

if TYPE_CHECKING:
    from typer.core import TyperGroup


class CommandPlace(NamedTuple):
    """Location of a command's definition.

    :param target: module and attribute, ``package.module:attribute``: a function, or a Typer app of sub-commands
    :param summary: the line that the list of commands shows
    """

    target: str
    summary: str


_CLI = "airflow_megatron.cli"
COMMANDS: Final[dict[str, CommandPlace]] = {
    "init": CommandPlace(f"{_CLI}.setup.init_command:init", "Create a project."),
    "lint": CommandPlace(f"{_CLI}.plans.spec_commands:lint", "Check sweep specs; exit with 1 on errors."),
    "plan": CommandPlace(
        f"{_CLI}.plans.spec_commands:plan", "Show the stage tree of a sweep, or list its jobs."
    ),
    "diff": CommandPlace(f"{_CLI}.plans.spec_commands:diff", "Show the differences between two specs."),
    "render": CommandPlace(f"{_CLI}.plans.script_commands:render", "Print the exact sbatch script of a job."),
    "build": CommandPlace(
        f"{_CLI}.plans.script_commands:build", "Write the sbatch scripts of all jobs into a folder."
    ),
    "schema": CommandPlace(f"{_CLI}.plans.spec_commands:schema", "Print the JSON Schema of sweep specs."),
    "prefetch": CommandPlace(
        f"{_CLI}.runs.prefetch:prefetch", "Fetch on the login node what a sweep's jobs read offline."
    ),
    "status": CommandPlace(f"{_CLI}.runs.run_commands:status", "Show the progress of every job of a sweep."),
    "cancel": CommandPlace(f"{_CLI}.runs.run_commands:cancel", "Stop a sweep, or some of its points."),
    "report": CommandPlace(f"{_CLI}.runs.run_commands:report", "Write the report of a sweep's run."),
    "fit": CommandPlace(
        f"{_CLI}.runs.fit:fit", "Fit optima and scaling laws to a run's losses, with intervals."
    ),
    "results": CommandPlace(
        f"{_CLI}.runs.results_commands:app", "Rebuild, merge or push the stored rows of a sweep's results."
    ),
    "tensorboard": CommandPlace(
        f"{_CLI}.runs.tensorboard:tensorboard", "Show the event files of a sweep in TensorBoard."
    ),
    "rerun": CommandPlace(
        f"{_CLI}.runs.rerun:rerun", "Repeat a run from its stored plan, and report what has changed since."
    ),
    "archive": CommandPlace(
        f"{_CLI}.housekeeping.commands:archive", "Write the files of a sweep to one archive on its cluster."
    ),
    "delete": CommandPlace(
        f"{_CLI}.housekeeping.commands:delete", "Delete the data of a sweep; without --yes, only list it."
    ),
    "quickstart": CommandPlace(
        f"{_CLI}.runs.run_commands:quickstart", "Run a small sweep on a local cluster from start to end."
    ),
    "ui": CommandPlace(
        f"{_CLI}.runs.run_commands:ui", "Start the local cluster and Airflow with its web UI."
    ),
    "checkpoints": CommandPlace(
        f"{_CLI}.checkpoint_commands:checkpoints", "Show which checkpoints can be loaded, with the reason."
    ),
    "log": CommandPlace(f"{_CLI}.log_commands:log", "Show the contents of training logs as records."),
    "simulate": CommandPlace(
        f"{_CLI}.simulation_commands:simulate", "Compare restart policies on a simulated cluster."
    ),
    "cluster": CommandPlace(
        f"{_CLI}.setup.cluster_commands:app",
        "Control the local Slurm cluster; install on any cluster what its jobs need.",
    ),
    "import": CommandPlace(
        f"{_CLI}.plans.import_commands:app", "Convert another tool's configuration to a sweep spec."
    ),
    "megatron-args": CommandPlace(
        f"{_CLI}.megatron_args:app", "Check Megatron-LM command lines; write argument tables."
    ),
}


class DeferredCommand(TyperCommand):
    """Placeholder in the list of commands; loads the command when it is called.

    :param place: where the command is defined
    """

    def __init__(self, name: str, place: CommandPlace) -> None:
        super().__init__(name=name, help=place.summary, callback=None, rich_markup_mode=None)
        self.place = place

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the loaded command."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import and return the command."""
        module, attribute = self.place.target.split(":")
        with no_collection():  # takes a tenth of the time of an import
            defined = getattr(importlib.import_module(module), attribute)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        if isinstance(defined, typer.Typer):
            app.add_typer(defined, name=self.name)
            return cast("TyperGroup", get_command(app)).commands[cast("str", self.name)]
        app.command(self.name)(defined)
        return get_command(app)


def add_commands(group: TyperGroup) -> None:
    """Add all commands to the top-level group."""
    for name, place in COMMANDS.items():
        group.add_command(DeferredCommand(name, place))
