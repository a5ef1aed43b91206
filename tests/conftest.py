"""What all tests share: hypothesis profiles, and a project that no user's environment changes."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from work_groups import GroupScheduling, in_order

from airflow_megatron.spec.model.cluster_profile import ClusterProfile

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# "fast" keeps the suite under a minute; HYPOTHESIS_PROFILE=thorough searches longer
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("fast", max_examples=40, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

_UMASK = 0o022

# Airflow writes its configuration and logs where it is imported first: not into the user's home
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="airflow-megatron-tests-")
os.environ.setdefault("AIRFLOW_HOME", _AIRFLOW_HOME.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, nor ever look at them again: 0.4 s a worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def package_log() -> Iterator[None]:
    """Undo what commands do to the package's log: a later test reads it."""
    log = logging.getLogger("airflow_megatron")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Undo what services started in this process do to the umask: files of later tests would be private too."""
    os.umask(_UMASK)
    yield
    os.umask(_UMASK)


@pytest.fixture
def cluster() -> ClusterProfile:
    """A cluster profile with nothing but what a profile must have."""
    return ClusterProfile(
        name="alps",
        ssh_conn_id="slurm_alps",
        run_root="/scratch/runs",
        python="/opt/venv/bin/python",
        megatron_lm_dir="/opt/Megatron-LM",
    )
