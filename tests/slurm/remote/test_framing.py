"""What is wrong with an answer without its marker lines."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from pathlib import Path


def bash(script: str, home: Path) -> CommandResult:
    shell = subprocess.run(
        ["bash", "--login", "-s"],
        input=script,
        capture_output=True,
        text=True,
        env={"HOME": str(home)},
        check=False,
    )
    return CommandResult(shell.returncode, shell.stdout, shell.stderr)


@pytest.mark.parametrize(
    ("start_up", "body", "message"),
    [
        (
            "exit",
            "echo x",
            r"did not run the script \(shell exit status 0: no message\).* start-up file .*ends the shell",
        ),
        ("echo no quota >&2; exit 4", "echo x", r"did not run the script \(shell exit status 4: no quota\)"),
        ("", "exit 3", r"answer is cut off \(shell exit status 3: no message\)$"),
    ],
)
def test_a_start_up_file_that_ends_the_shell_is_suspected(
    start_up: str, body: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / ".bash_profile").write_text(f"{start_up}\n")
    with pytest.raises(TransportError, match=message):
        unframed(bash(framed(body), tmp_path))


def test_what_start_up_files_print_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("echo Welcome\n")
    assert unframed(bash(framed("echo x"), tmp_path)) == ["x"]
