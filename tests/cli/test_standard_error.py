"""Log messages of Airflow do not appear before the output of a command."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from airflow_megatron.cli.console.verbosity import log_to_standard_error

if TYPE_CHECKING:
    import pytest


def test_a_log_that_goes_to_standard_output_is_turned_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler(sys.stdout)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        log_to_standard_error()
        logging.getLogger("airflow.models.crypto").warning("empty cryptography key")
    finally:
        root.removeHandler(handler)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "empty cryptography key" in captured.err
