"""Setup of all tests: hypothesis profiles, and a project that is independent of the user's environment."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from work_groups import GroupScheduling, in_order

from airflow_megatron.spec.documents.errors import begin_hints
from airflow_megatron.spec.expressions.bounds import begin_spec
from airflow_megatron.spec.model.cluster_profile import ClusterProfile

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# "fast" keeps the suite under a minute; HYPOTHESIS_PROFILE=thorough searches longer
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fast", max_examples=40, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

_UMASK = 0o022

# Airflow writes its configuration and logs when it is imported; keep them out of the user's home
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-megatron-tests-")
os.environ.setdefault("AIRFLOW_HOME", _AIRFLOW_HOME.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage seldom, and never what modules hold; this saves a tenth of the time of the fast tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()
        atexit.register(gc.freeze)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Show each failure at once: a run that is stopped at its time limit prints no summary."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(terminal))


class _FailuresAtOnce:
    """Prints the error of each failure below the progress."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.splitlines()
            error = next((line[1:].strip() for line in lines if line.startswith("E ")), "".join(lines[-1:]))
            self._terminal.write_line(f"\n{report.nodeid} ({report.when}): {error}", red=True)


@pytest.fixture(autouse=True)
def package_log() -> Iterator[None]:
    """Restore the package's logger after the test, because commands change it and later tests read it."""
    log = logging.getLogger("airflow_megatron")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask after the test: services change it, and files of later tests would become private."""
    os.umask(_UMASK)
    yield
    os.umask(_UMASK)


@pytest.fixture(autouse=True)
def accounts() -> None:
    """Reset the bounds on the work of a spec: the tests of a process are not one spec."""
    begin_spec()
    begin_hints()


@pytest.fixture
def cluster() -> ClusterProfile:
    """A cluster profile with only the required keys."""
    return ClusterProfile(
        name="alps",
        ssh_conn_id="slurm_alps",
        run_root="/scratch/runs",
        python="/opt/venv/bin/python",
        megatron_lm_dir="/opt/Megatron-LM",
    )
