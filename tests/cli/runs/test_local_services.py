"""The start and the end of the local cluster and Airflow."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.local.local_airflow import LocalAirflow
from airflow_megatron.cli.runs import quickstart
from airflow_megatron.cli.runs.quickstart import local_services

if TYPE_CHECKING:
    from pathlib import Path


class InterruptedAirflow(LocalAirflow):
    """An Airflow without processes, whose user presses Ctrl-C again while it stops."""

    stopped = False

    def environment(self) -> dict[str, str]:
        return {}

    def prepare_database(self) -> None:
        pass

    def start(self) -> None:
        pass

    def connect(self, cluster: object) -> None:
        pass

    def stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.05)
        super().stop()
        self.stopped = True


@pytest.mark.usefixtures("process_as_before")
def test_a_second_interrupt_does_not_leave_daemons_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def control(command: str, *, quiet: bool = False) -> int:
        commands.append(command)
        return command == "status"

    monkeypatch.setattr(quickstart, "run_local_cluster", control)
    monkeypatch.setattr(quickstart, "cluster_description", dict)
    monkeypatch.setattr(quickstart, "local_dir", lambda: tmp_path)
    airflow = InterruptedAirflow(tmp_path / "airflow")
    with pytest.raises(KeyboardInterrupt), local_services(airflow):
        signal.raise_signal(signal.SIGINT)
    assert airflow.stopped
    assert commands == ["status", "up", "down"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
