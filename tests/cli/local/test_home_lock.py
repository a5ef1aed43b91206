"""Only one local Airflow uses a home."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.local.home_lock import HomeLock
from airflow_megatron.cli.local.local_airflow import LocalAirflow, LocalAirflowError
from airflow_megatron.cli.runs.quickstart import local_services

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("process_as_before")


def test_second_process_is_told_who_has_the_home(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path), HomeLock(tmp_path)
    assert first.take() is None
    assert second.take() == "unknown process"
    first.describe("a longer description")
    first.describe("process 7")
    assert first.take() is None
    assert second.take() == "process 7"
    first.release()
    first.release()
    assert second.take() is None


def test_lock_lasts_as_long_as_a_child_has_its_descriptor(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path), HomeLock(tmp_path)
    first.take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, pass_fds=first.descriptors) as child:
        first.release()
        assert second.take() is not None
        child.communicate(b"\n")
    assert second.take() is None


def test_second_airflow_of_a_home_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = LocalAirflow(tmp_path)
    first.claim()
    with pytest.raises(LocalAirflowError) as error, local_services(LocalAirflow(tmp_path)):
        pass
    assert str(error.value) == (
        f"Airflow already runs in {tmp_path}: use it, or stop it first (process {os.getpid()}, {first.address})"
    )
    assert capsys.readouterr().out == ""
    first.stop()
    second = LocalAirflow(tmp_path)
    second.claim()
    second.stop()


def test_port_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__API__PORT", "http")
    with pytest.raises(LocalAirflowError, match="not a port"), local_services(LocalAirflow(tmp_path)):
        pass
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("AIRFLOW__API__PORT")
    LocalAirflow(tmp_path).claim()
