"""Fixtures of the tests of the command line."""

from __future__ import annotations

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
