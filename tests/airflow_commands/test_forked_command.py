"""Airflow commands in forks of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_megatron.airflow_commands.forked_command import ForkedCommand

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
OTHER_AIRFLOW = """
import os, sys, time

def main():
    if sys.argv[1] == "sleep":
        print("sleeps", flush=True)
        time.sleep(600)
    os.system("echo from a child")
    sys.stdout.buffer.write(b"caf\\xe9\\n")
    sys.exit(3)
"""
CALLER = """
from airflow_megatron.airflow_commands.forked_command import ForkedCommand

def printed(command):
    for line in command.lines():
        print(ascii(line))
        if line == "sleeps\\n":
            command.terminate()
            command.wait(60)
    print(command.exit_status())

if __name__ == "__main__":
    printed(ForkedCommand("list"))
    printed(ForkedCommand("sleep"))
"""


def test_commands_of_airflow() -> None:
    version, unknown = ForkedCommand("version"), ForkedCommand("dags", "tset")
    from airflow import __version__

    assert [*version.lines()] == [f"{__version__}\n"]
    assert version.exit_status() == 0
    assert "invalid choice: 'tset'" in "".join(unknown.lines())
    assert unknown.exit_status() == 2


@pytest.mark.parametrize("temporary", ["/tmp", "long" * 30])
def test_output_and_exit_status(temporary: str, tmp_path: Path) -> None:
    """The socket of a fork server is in the folder for temporary files, and its path may have 107 bytes."""
    (tmp_path / temporary).mkdir(exist_ok=True)
    package = tmp_path / "airflow"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(OTHER_AIRFLOW)
    (tmp_path / "caller.py").write_text(CALLER)
    ended = subprocess.run(
        [sys.executable, tmp_path / "caller.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "TMPDIR": str(tmp_path / temporary)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    listed = [r"'from a child\n'", r"'caf\ufffd\n'", "3"]
    assert ended.stdout.splitlines() == [*listed, r"'sleeps\n'", "-15"]


def test_no_thread_remains_that_a_fork_would_not_have() -> None:
    code = (
        "import airflow_megatron.airflow_commands.preloaded_command, sys, threading\n"
        "server = sys.modules['airflow.sdk.execution_time.supervisor'].in_process_api_server()\n"
        "assert server._app\n"
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
