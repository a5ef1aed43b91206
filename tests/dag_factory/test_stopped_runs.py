"""Runs of points that are marked failed, in a real Airflow database, from a state of each task to that of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow import settings
from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.tasklog import LogTemplate
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils import timezone
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from airflow_database import empty_database
from example_specs import CHAIN

from airflow_megatron.dag_factory.point_dag import build_point_dag
from airflow_megatron.dag_factory.stopped_runs import stop_runs
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.ui.run_listener import on_dag_run_failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

pytestmark = pytest.mark.slow
LATER = ("cooldown_300k.submit", "cooldown_600k.convert.watch", "pretrain.evaluate.submit")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        yield


@pytest.fixture
def session(tmp_path: Path, database: None) -> Iterator[Session]:
    file = tmp_path / "stopped_chain.yaml"
    file.write_text(CHAIN.replace("name: chain\n", "name: stopped_chain\n"))
    dag = build_point_dag(SweepOutline.of(load_sweep(file)), {})
    with settings.Session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        session.add(LogTemplate(filename="{{ ti.task_id }}.log", elasticsearch_id="{{ ti.task_id }}"))
        tags = [DagTag(name=name, dag_id=dag.dag_id) for name in ("megatron", "point")]
        session.add(DagModel(dag_id=dag.dag_id, bundle_name="dags-folder", tags=tags))
        session.flush()
        SerializedDagModel.write_dag(
            LazyDeserializedDAG.from_dag(dag), bundle_name="dags-folder", session=session
        )
        session.flush()
        yield session
        session.rollback()


def run_with(session: Session, states: Mapping[str, str]) -> DagRun:
    """Return a running run of the point's DAG whose tasks have these states."""
    dag = DBDagBag().get_latest_version_of_dag("stopped_chain.point", session=session)
    assert dag is not None
    run = dag.create_dagrun(
        run_id="lr0.001",
        run_after=timezone.utcnow(),
        conf={"point": "lr0.001"},
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING,
        session=session,
    )
    run.dag = dag
    for task in run.get_task_instances(session=session):
        state = states.get(task.task_id)
        if state == "skipped":  # as if a condition had ended it
            task.start_date = timezone.utcnow()
        if state:
            task.set_state(state, session=session)
    session.flush()
    return run


def states_of(run: DagRun, session: Session) -> dict[str, Any]:
    return {task.task_id: task.state for task in run.get_task_instances(session=session)}


def stopped_by_command(run: DagRun, session: Session) -> None:
    assert stop_runs(run.dag_id, session, lambda _: True) == [run.run_id]


def marked_by_a_user(run: DagRun, session: Session) -> None:
    set_dag_run_state_to_failed(dag=run.dag, run_id=run.run_id, commit=True, session=session)
    on_dag_run_failed(dag_run=run, msg="Dag Run's state was manually set to `failed`.")


@pytest.mark.parametrize("stop", [stopped_by_command, marked_by_a_user])
@pytest.mark.parametrize("training", ["deferred", "success"])
@pytest.mark.parametrize("tag", ["", "sweep"])
def test_a_stopped_chain_ends_as_failed(stop: Any, training: str, tag: str, session: Session) -> None:
    if tag:  # in the spec
        session.add(DagTag(name=tag, dag_id="stopped_chain.point"))
    run = run_with(session, {"pretrain.submit": "success", "pretrain.watch": training})
    stop(run, session)
    states = states_of(run, session)
    assert states["pretrain.watch"] == ("failed" if training == "deferred" else "success")
    assert {states[name] for name in LATER} == {"upstream_failed"}
    for task in run.get_task_instances(session=session):
        if task.state is None:  # the teardowns
            task.set_state("success", session=session)
    run.update_state(session=session, execute_callbacks=False)
    assert run.state == "failed"


def test_stages_that_a_condition_had_skipped_stay_skipped(session: Session) -> None:
    run = run_with(session, {"pretrain.watch": "deferred", "cooldown_600k.submit": "skipped"})
    stopped_by_command(run, session)
    states = states_of(run, session)
    assert states["cooldown_600k.submit"] == states["cooldown_600k.convert.watch"] == "skipped"
    assert states["cooldown_300k.submit"] == "upstream_failed"
