"""The components of the local Airflow: they wait for its database, and one that ends is noticed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from sqlalchemy import create_engine, text

from airflow_megatron.cli.local.airflow_components import COMPONENTS as NAMES
from airflow_megatron.cli.local.local_airflow import DATABASE_WAIT_S, LocalAirflow, LocalAirflowError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[3]
COMPONENTS = """
for words in scheduler dag-processor 'airflow api_server -- host:127.0.0.1' triggerer
do (exec -a "$words" sleep 600) &
done
wait
"""
"""As ``airflow_components``: it waits on, although a component has ended."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LocalAirflow]:
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
def test_a_component_that_ends_is_named_with_its_log(running: LocalAirflow) -> None:
    assert running._process is not None
    running.expect_alive()
    components(running._process.pid)[0].kill()
    time.sleep(0.2)
    with pytest.raises(LocalAirflowError) as error:
        running.expect_alive()
    assert str(error.value) == (
        "Airflow's scheduler has ended; start the command again, and the sweeps go on. "
        "Last lines of its log:\nscheduler  | database is locked"
    )
    os.killpg(running._process.pid, signal.SIGKILL)
    running._process.wait()
    with pytest.raises(LocalAirflowError, match="Airflow has ended; start the command again"):
        running.expect_alive()


AIRFLOW = """
import signal, sys, time
def end(number, frame):
    print("ending", flush=True)
    sys.exit()
def main():
    signal.signal(signal.SIGTERM, end)
    print("running", *sys.argv[1:], flush=True)
    while True:
        time.sleep(0.1)
        print("working", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("output", ["file", "full disk"])
def test_components_log_until_they_have_ended(output: str, tmp_path: Path) -> None:
    package = tmp_path / "airflow"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(AIRFLOW)
    log = tmp_path / "components.log"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    words = [sys.executable, "-m", "airflow_megatron.cli.local.airflow_components"]
    with (
        (log if output == "file" else Path("/dev/full")).open("wb", buffering=0) as file,
        subprocess.Popen(words, env=environment, stdout=file, start_new_session=True) as process,
    ):
        try:
            deadline = time.monotonic() + 60
            while len(children(process.pid)) < 4 or (
                output == "file" and log.read_text().count("running") < 4
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1)
            running = children(process.pid)
            assert sorted(" ".join(child.cmdline()).split()[-1] for child in running) == sorted(NAMES)
            assert len({child.num_fds() for child in running}) == 1  # none holds the pipe of another
            assert {child.environ()["PYTHONPATH"] for child in running} == {environment["PYTHONPATH"]}
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if output == "file":
        lines = {line.replace(" ", "") for line in log.read_text().splitlines()}
        assert lines == {
            f"{name}|{text}" for name in NAMES for text in (f"running{name}", "working", "ending")
        }


TRIGGERER = """
import signal, subprocess, sys, time
def end(number, frame):
    sys.exit(f"the runner was {runner.poll()}")
signal.signal(signal.SIGTERM, end)
runner = subprocess.Popen(["sleep", "600"])
while sys.argv[2] == "stays" or runner.poll() is None:
    time.sleep(0.1)
time.sleep(1)
print("the runner has ended", file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("ends", "the runner has ended\n"), ("stays", f"the runner was {-signal.SIGTERM}\n")],
)
def test_triggerer_ends_with_its_runner(behaviour: str, said: str, tmp_path: Path) -> None:
    """Airflow's triggerer may wait 10 s if it gets SIGTERM while its runner ends."""
    seen = tmp_path / "seen"
    script = tmp_path / "triggerer.py"
    script.write_text(TRIGGERER)
    triggerer = f"{sys.executable} {script} triggerer {behaviour} 2>{seen}"
    airflow = LocalAirflow(tmp_path)
    airflow._process = subprocess.Popen(
        ["bash", "-c", f"bash -c 'sleep 600 & wait' scheduler & {triggerer} & wait"], start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(psutil.Process(airflow._process.pid).children(recursive=True)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    airflow.stop()
    assert seen.read_text() == said


def children(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]


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
