"""Log messages of Airflow do not appear before the output of a command."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.console.verbosity import log_to_standard_error, set_verbosity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_verbosity() -> Iterator[None]:
    log = logging.getLogger("airflow_megatron")
    before = log.level, log.handlers[:], log.propagate
    yield
    log.setLevel(before[0])
    log.handlers[:] = before[1]
    log.propagate = before[2]


def logged(capsys: pytest.CaptureFixture[str], name: str, level: int) -> str:
    """Log a message of Airflow to standard output; return what appears on standard error."""
    handler = logging.StreamHandler(sys.stdout)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        log_to_standard_error()
        logging.getLogger(name).log(level, "empty cryptography key")
    finally:
        root.removeHandler(handler)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    ("level", "verbose"), [(logging.ERROR, False), (logging.WARNING, True), (logging.ERROR, True)]
)
def test_a_log_that_goes_to_standard_output_is_turned_to_standard_error(
    capsys: pytest.CaptureFixture[str], level: int, verbose: bool
) -> None:
    set_verbosity(quiet=False, verbose=verbose, debug=False)
    assert "empty cryptography key" in logged(capsys, "airflow.models.crypto", level)


def test_notices_of_airflow_do_not_stand_beside_a_message_of_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Airflow notices, for example, that a value of a connection is too short to be masked."""
    set_verbosity(quiet=False, verbose=False, debug=False)
    assert logged(capsys, "airflow.models.crypto", logging.WARNING) == ""
    assert "empty cryptography key" in logged(capsys, "asyncssh", logging.WARNING)


@pytest.mark.slow
def test_what_airflow_prints_while_it_is_imported_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = "from airflow_megatron.cli.runs.login_node import command_line_hook as hook\n"
    words += (
        "from airflow_megatron.spec.model.cluster_profile import load_cluster\nhook(load_cluster('local'))"
    )
    around = {
        "AIRFLOW_HOME": str(tmp_path / "file" / "airflow"),
        "AIRFLOW_CONN_SLURM_LOCAL": "ssh://me@127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", words], env=os.environ | around, capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    assert "log folder" in ran.stderr
