"""``airflow-megatron tensorboard``: one TensorBoard over the event files of a sweep's trainings."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_megatron.cli.plans.spec_options import ClusterOption, SpecArgument, load_spec
from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.cli.runs.report import pinned_run
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.pins.pin_store import PinError
from airflow_megatron.slurm.remote.quoting import QuotingError, quote, quote_path
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.hooks.connection_options import ConnectionOptions
    from airflow_megatron.spec.model.jobs import Job

ARGUMENT: Final = "--tensorboard-dir"
EVENTS: Final = "events.out.tfevents.*"
DEFAULT_PORT: Final = 6006
LONGEST_FOLDERS: Final = 100_000
"""Maximum number of characters of all names and folders; Linux limits one argument to 131,072."""
_FOUND: Final = re.compile(r"am-events (\d+)")


class TensorboardError(AirflowMegatronError):
    """TensorBoard cannot be started for the given sweep."""


def tensorboard(
    spec: SpecArgument,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Id of the sweep's run; default: the newest")
    ] = "",
    points: Annotated[
        str, typer.Option("--points", metavar="PATTERNS", help="Names of points, such as S_*,M_lr0.001")
    ] = "",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="Port on this machine")
    ] = DEFAULT_PORT,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command without running it")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Show the event files of a sweep in TensorBoard; for files on a cluster, print the command for a tunnel."""
    try:
        pinned, _ = pinned_run(load_spec(spec), run, cluster)
        plan = pinned.placed_plan()
        jobs = [job for job in plan.jobs if not pinned.others or cluster in (None, job.cluster)]
        used = list(dict.fromkeys(job.cluster for job in jobs))
        if len(used) != 1:
            raise TensorboardError(
                f"{pinned.sweep} has run on several clusters, and a TensorBoard shows one: choose with --cluster "
                f"{' or '.join(pinned.by_cluster)}"
            )
        profile = pinned.on(used[0]).plan_environment.cluster
        folders = event_folders(jobs, points)
        hook = None if (here := with_events(folders)) else command_line_hook(profile)
        if hook is not None:
            here = found_by(folders, hook.run(events_script(folders)).stdout)
        if not here:
            raise TensorboardError(
                f"{pinned.sweep} has no event files yet in {counted(len(folders), 'folder')}"
            )
        command = tensorboard_command(profile.python, here, port)
        if hook is not None:
            print(tunnel_command(hook.options(), command, port))
            return
    except (PinError, QuotingError, TensorboardError, TransportError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if only_print:
        print(" ".join(map(quote, command)))
        return
    print(f"{counted(len(here), 'folder')} at http://127.0.0.1:{port}/; end with Ctrl-C", flush=True)
    try:
        status = subprocess.run(command, check=False).returncode
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 0
    raise typer.Exit(status)


def event_folders(jobs: Iterable[Job], points: str = "") -> dict[str, str]:
    """Return the folders of event files of jobs: ``point/stage`` → absolute path, each folder once.

    :param jobs: with their commands
    :param points: shell patterns for names of points, separated by commas; empty for all
    :raises TensorboardError: if no job writes event files
    """
    patterns = [pattern.strip() for pattern in points.split(",") if pattern.strip()]
    found: dict[str, str] = {}
    for job in jobs:
        if patterns and not any(fnmatch.fnmatchcase(job.point, pattern) for pattern in patterns):
            continue
        words = list(job.command)
        for word, following in zip(words, [*words[1:], ""], strict=True):
            flag, equals, value = word.partition("=")
            folder = value if equals else following
            if flag.replace("_", "-") == ARGUMENT and folder.startswith("/"):
                found.setdefault(folder, f"{job.point}/{job.stage}" if job.point else job.stage)
    if not found:
        raise TensorboardError(f"no training{' of these points' if patterns else ''} writes event files")
    return {name: folder for folder, name in found.items()}


def with_events(folders: Mapping[str, str]) -> dict[str, str]:
    """Return the folders on this machine that contain event files."""
    return {name: folder for name, folder in folders.items() if any(Path(folder).glob(EVENTS))}


def events_script(folders: Mapping[str, str]) -> str:
    """Return a shell script that prints the number of each folder that contains event files."""
    tests = "".join(
        f"for file in {quote_path(folder)}/{EVENTS}; do [ -e \"$file\" ] && echo 'am-events {number}' && break; done\n"
        for number, folder in enumerate(folders.values())
    )
    return f"{tests}true\n"


def found_by(folders: Mapping[str, str], answer: str) -> dict[str, str]:
    """Return the folders in the script's output."""
    numbers = {int(match[1]) for line in answer.splitlines() if (match := _FOUND.fullmatch(line))}
    return {name: folder for number, (name, folder) in enumerate(folders.items()) if number in numbers}


def tensorboard_command(python: str, folders: Mapping[str, str], port: int) -> list[str]:
    """Return the command that starts TensorBoard, reachable only from its machine.

    :param python: interpreter with the package ``tensorboard``
    :raises TensorboardError: for folders that cannot be passed to TensorBoard
    """
    for folder in folders.values():
        if "," in folder or ":" in folder:
            raise TensorboardError(f"TensorBoard takes no folder with a comma or colon in its name: {folder}")
    named = ",".join(f"{name}:{folder}" for name, folder in folders.items())
    if len(named) > LONGEST_FOLDERS:
        raise TensorboardError(
            f"{len(folders)} folders are too many for one command; choose some with --points"
        )
    return [
        *(python, "-m", "tensorboard.main", "--logdir_spec", named),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def tunnel_command(options: ConnectionOptions, command: Iterable[str], port: int) -> str:
    """Return the shell command that starts TensorBoard on the login node and forwards its port to this machine."""
    to = f"{options.user}@{options.host}" if options.user else options.host
    words = ["ssh", "-t", "-L", f"{port}:127.0.0.1:{port}"]
    if options.port:
        words += ["-p", str(options.port)]
    words += [to, " ".join(map(quote, command))]
    return " ".join(map(quote, words))
