"""A sweep with a stored plan, a run and a running point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow import settings
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from example_specs import CHAIN
from live_sweep import RUN, add_dags, add_run
from sqlalchemy import delete

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session

FIRST = {"pretrain.submit": "success", "pretrain.watch": "deferred"}


@pytest.fixture
def session(airflow_database: None) -> Iterator[Session]:
    with settings.Session() as session:
        add_dags(session, chain="sweep", other="sweep", **{"chain.point": "point"})
        yield session
        session.rollback()
        session.execute(delete(TaskInstance))
        session.execute(delete(DagRun))
        session.commit()


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store with the plan of a run."""
    place = tmp_path_factory.mktemp("plan")
    file, store = place / "chain.yaml", PinStore(place / "pins")
    file.write_text(CHAIN)
    sweep, around = load_sweep(file), PlanEnvironment.now("local")
    pinned = PinnedSweep.stored(sweep, CHAIN, plan_sweep(sweep, around.cluster), around, store)
    store.set_newest("chain", RUN, pinned.pin)
    return store.root


@pytest.fixture
def planned(session: Session, pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(pins))
    add_run(session, "chain", RUN, "running", {"launch": "success"})
    add_run(session, "chain.point", "lr0.001", "running", FIRST, run=RUN, point="lr0.001")
