"""The command line: ``python3 docker/local_cluster <command>``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_cluster.cluster import Cluster
from local_cluster.errors import ClusterError
from local_cluster.layout import Layout
from local_cluster.packages import BROWSER_PROGRAMS_BY_PACKAGE, install
from local_cluster.settings import Size

if TYPE_CHECKING:
    from types import FrameType

DEFAULT_DIRECTORY = Path(__file__).resolve().parents[2] / ".local" / "cluster"

EXIT_FAILED = 1
EXIT_NOT_UP = 3


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status: 0; 1 if it failed; 3 from ``status`` if the cluster is not completely up; 130 if
        interrupted.
    """
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(arguments)
    except ClusterError as error:
        print(f"local cluster: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"local cluster: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("local cluster: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace) -> int:
    layout = Layout.at(arguments.dir)
    if arguments.command == "install":
        install(_say, BROWSER_PROGRAMS_BY_PACKAGE) if arguments.browser else install(_say)
        return 0
    cluster = Cluster(layout, _say)
    match arguments.command:
        case "up":
            wanted = {name: getattr(arguments, name) for name in Size.__dataclass_fields__}
            given = {name: value for name, value in wanted.items() if value is not None}
            cluster.up(given, arguments.imitate)
        case "down":
            cluster.down(purge=arguments.purge)
        case "status":
            status = cluster.status()
            print(json.dumps(status, indent=1) if arguments.json else _status_text(status))
            return 0 if status["up"] else EXIT_NOT_UP
        case "kill":
            cluster.kill(arguments.daemon)
        case "start":
            cluster.start(arguments.daemon)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="local_cluster", description="A complete Slurm cluster on this machine, without containers."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_DIRECTORY,
        help="folder of the cluster's files (default: %(default)s)",
    )
    packages = commands.add_parser(
        "install", parents=[place], help="install missing Debian or Ubuntu packages"
    )
    packages.add_argument(
        "--browser", action="store_true", help="install Chromium instead, for the tests of pages"
    )
    up = commands.add_parser(
        "up", parents=[place], help="start the cluster; the next start uses the same size"
    )
    defaults = Size()
    for name, meaning in (
        ("nodes", "number of nodes"),
        ("gpus_per_node", "fake GPUs of each node"),
        ("cpus_per_node", "configured CPUs of each node; the machine may have fewer"),
        ("memory_mb", "configured memory of each node in MiB; the machine may have less"),
        ("slurmd_timeout", "seconds without an answer after which a node is down"),
    ):
        text = f"{meaning} (default at the first start: {getattr(defaults, name)})"
        up.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    up.add_argument("--imitate", type=Path, metavar="FILE", help="description of a site to imitate (JSON)")
    down = commands.add_parser("down", parents=[place], help="stop the cluster and all its jobs")
    down.add_argument("--purge", action="store_true", help="also delete its files: accounting, logs, keys")
    status = commands.add_parser(
        "status", parents=[place], help="show the running daemons; exit status 3 if one does not run"
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")
    kill = commands.add_parser("kill", parents=[place], help="kill a daemon, to test a failure")
    kill.add_argument(
        "daemon", help="slurmctld, slurmdbd, sshd, slurmd:n1, ...; node:n1 for a node with its jobs"
    )
    start = commands.add_parser("start", parents=[place], help="start a daemon that was killed")
    start.add_argument("daemon", help="slurmctld, slurmdbd, sshd, slurmd:n1, ...")
    return parser


def _status_text(status: dict[str, Any]) -> str:
    lines = [f"{'up' if status['up'] else 'not up'}: {status['dir']}"]
    lines += [
        f"  {name:<12} {f'process {pid}' if pid else 'not running'}"
        for name, pid in status["daemons"].items()
    ]
    if status["nodes"]:
        lines.append("nodes: " + ", ".join(f"{name} {state}" for name, state in status["nodes"].items()))
        lines.append(
            "jobs: " + (", ".join(f"{count} {state}" for state, count in status["jobs"].items()) or "none")
        )
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C, so that an incomplete start is undone."""
    raise KeyboardInterrupt
