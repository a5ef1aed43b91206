"""Fixtures of the tests of the command line."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from command_line import runner
from login_site import LoginSite

from airflow_megatron.spec.documents import project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[LoginSite]:
    site = LoginSite(tmp_path, runner(monkeypatch, capsys))
    site.set_up()
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("AIRFLOW_CONN_SLURM_SITE", site.connection())
    monkeypatch.chdir(tmp_path)
    yield site
    site.server.stop()


@pytest.fixture
def process_as_before() -> Iterator[None]:
    """Undo what the local services change in their process: the umask, and the handlers of signals."""
    umask = os.umask(0o077)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell ignores it for a command in the background
    yield
    os.umask(umask)
    for number, handler in handlers.items():
        signal.signal(number, handler)
