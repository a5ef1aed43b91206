"""Log messages of Airflow do not appear before the output of a command."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.console.verbosity import log_to_standard_error, set_verbosity

if TYPE_CHECKING:
    from collections.abc import Iterator


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
