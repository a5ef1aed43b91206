"""The components of the local Airflow: they wait for its database, and one that ends is noticed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from sqlalchemy import create_engine, text

from airflow_megatron.cli.local.local_airflow import DATABASE_WAIT_S, LocalAirflow, LocalAirflowError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPONENTS = """
for words in scheduler dag-processor 'airflow api_server -- host:127.0.0.1' triggerer
do (exec -a "$words" sleep 600) &
done
wait
"""
"""As ``airflow standalone``: it waits on, although a component has ended."""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[LocalAirflow]:
    airflow = LocalAirflow(tmp_path)
    airflow.log_file.write_text("scheduler  | database is locked\ntriggerer  | 5 triggers\n")
    with subprocess.Popen(["bash", "-c", COMPONENTS], start_new_session=True) as process:
        airflow._process = process
        deadline = time.monotonic() + 20
        while len(components(process.pid)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        yield airflow
        with contextlib.suppress(ProcessLookupError):  # a test has ended all of them
            os.killpg(process.pid, signal.SIGKILL)


def components(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "600" in child.cmdline()]


@pytest.mark.slow
def test_a_component_that_ends_is_named_with_its_log(standalone: LocalAirflow) -> None:
    assert standalone._process is not None
    standalone.expect_alive()
    components(standalone._process.pid)[0].kill()
    time.sleep(0.2)
    with pytest.raises(LocalAirflowError) as error:
        standalone.expect_alive()
    assert str(error.value) == (
        "Airflow's scheduler has ended; start the command again, and the sweeps go on. "
        "Last lines of its log:\nscheduler  | database is locked"
    )
    os.killpg(standalone._process.pid, signal.SIGKILL)
    standalone._process.wait()
    with pytest.raises(LocalAirflowError, match="Airflow has ended; start the command again"):
        standalone.expect_alive()


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
def test_statements_wait_for_a_locked_database(tmp_path: Path, driver: str) -> None:
    address = LocalAirflow(tmp_path).environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    engine = create_engine(address.replace("sqlite", driver, 1))
    words, options = engine.dialect.create_connect_args(engine.url)
    assert (words, options["timeout"]) == ([str(tmp_path / "airflow.db")], DATABASE_WAIT_S)
    if driver == "sqlite":
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA busy_timeout")).scalar() == DATABASE_WAIT_S * 1000
    engine.dispose()
