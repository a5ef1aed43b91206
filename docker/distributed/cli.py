"""The command line: ``python3 docker/distributed <command>``."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from local_cluster import packages
from local_cluster.errors import ClusterError

from distributed.engine import Engine
from distributed.layout import Layout, Size
from distributed.services import PACKAGES

if TYPE_CHECKING:
    from types import FrameType

LOCAL = Path(__file__).resolve().parents[2] / ".local"
LOCK = Path(__file__).with_name("requirements.lock")
EXIT_NOT_UP = 3


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    :returns: the exit status: 0; 1 if it failed; 3 from ``status`` if not everything runs; 130 if interrupted
    """
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(arguments)
    except (ClusterError, OSError) as error:
        print(f"distributed Airflow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("distributed Airflow: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace) -> int:
    venv = arguments.venv.absolute()
    if arguments.command == "install":
        _install(venv)
        return 0
    engine = Engine(Layout.at(arguments.dir), venv / "bin" / "python", _say)
    match arguments.command:
        case "up":
            engine.up(Size(**{name: getattr(arguments, name) for name in asdict(Size())}))
        case "down":
            engine.down(purge=arguments.purge)
        case "status":
            found = engine.status()
            print(json.dumps(found, indent=1))
            return 0 if found and all(found.values()) else EXIT_NOT_UP
        case "kill":
            engine.kill(arguments.service, alone=arguments.alone)
        case "start":
            engine.start(arguments.service, wait=not arguments.no_wait)
    return 0


def _install(venv: Path) -> None:
    """Install PostgreSQL, Redis and the Python environment if they are missing.

    :raises ClusterError: if it fails
    """
    packages.install(_say, PACKAGES)
    stamp = venv / ".installed"
    if stamp.exists() and stamp.read_text() == LOCK.read_text():
        return
    _say(f"creating the environment {venv}")
    checkout = str(Path(__file__).resolve().parents[2])
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for command in (
        (sys.executable, "-m", "venv", "--clear", str(venv)),
        (*pip, "--no-deps", "--require-hashes", "-r", str(LOCK)),
        (*pip, "--no-deps", "--editable", checkout),
    ):
        if subprocess.run(command, check=False).returncode:
            raise ClusterError(f"{' '.join(command[:6])} … failed")
    stamp.write_text(LOCK.read_text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="distributed", description="Airflow with PostgreSQL, Redis, Celery and several of each daemon."
    )
    place = argparse.ArgumentParser(add_help=False)
    for option, name, meaning in (
        ("--dir", "distributed", "folder of its files"),
        ("--venv", "venv-distributed", "virtual environment with Airflow"),
    ):
        place.add_argument(
            option,
            type=Path,
            default=LOCAL / name,
            metavar="FOLDER",
            help=f"{meaning} (default: %(default)s)",
        )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "install", parents=[place], help="install PostgreSQL, Redis and the Python environment"
    )
    up = commands.add_parser("up", parents=[place], help="start everything")
    for name, number in asdict(Size()).items():
        what = "tasks of each worker" if name == "concurrency" else name.replace("_", " ")
        up.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=number, metavar="N", help=f"{what} (%(default)s)"
        )
    down = commands.add_parser("down", parents=[place], help="stop everything")
    down.add_argument("--purge", action="store_true", help="also delete database, logs and secrets")
    commands.add_parser(
        "status", parents=[place], help="show the process ids; exit status 3 if a service does not run"
    )
    kill = commands.add_parser("kill", parents=[place], help="kill a service, to test a failure")
    kill.add_argument("service", help="postgres, redis, api-server, scheduler:1, triggerer:2, worker:3 …")
    kill.add_argument("--alone", action="store_true", help="do not kill its children")
    start = commands.add_parser("start", parents=[place], help="start a service that was killed")
    start.add_argument("service")
    start.add_argument("--no-wait", action="store_true", help="return before it is ready")
    return parser


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C, so that an incomplete start is undone."""
    raise KeyboardInterrupt
