"""Assets of runs that end at the same moment, in a real Airflow database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow import settings
from airflow.assets.manager import AssetManager
from airflow.models.asset import AssetAliasModel, AssetModel, alias_association_table
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.serialization.definitions.assets import SerializedAsset
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.sqlalchemy import prohibit_commit
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from airflow_database import empty_database
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from airflow_megatron.assets.sweep_assets import announced_asset
from airflow_megatron.dag_factory import announced_assets
from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.ui.run_listener import on_dag_run_running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy.orm import Session

SPEC = """\
name: twins
point: p{{ lr }}
sweep: {params: {lr: [1, 2]}}
stages:
  prepare: {kind: command, scope: sweep, command: [a]}
  pretrain: {kind: train, parent: prepare}
  convert: {kind: convert, parent: pretrain}
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SerializedDAG]]:
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        built = build_dags(SweepOutline.of(load_sweep_text(SPEC, "s.yaml")))
        yield {
            dag.dag_id: DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)) for dag in built
        }


@pytest.fixture
def session(dags: dict[str, SerializedDAG]) -> Iterator[Session]:
    with settings.Session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        for dag_id, kind in (("twins", "sweep"), ("twins.point", "point")):
            tags = [DagTag(name=name, dag_id=dag_id) for name in ("megatron", kind)]
            session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", tags=tags))
        # the dag processor creates those of the DAGs that it has read
        for stage in ("prepare", "pretrain", "pretrain.convert"):
            session.add(AssetAliasModel(name=f"megatron://twins/{stage}", group="megatron"))
        session.flush()
        yield session
        session.rollback()


def start(session: Session, dag: SerializedDAG, run_id: str, **conf: Any) -> DagRun:
    run = DagRun(
        dag_id=dag.dag_id,
        run_id=run_id,
        run_type=DagRunType.MANUAL,
        state=DagRunState.RUNNING,
        conf=conf,
        triggered_by=DagRunTriggeredByType.TEST,
    )
    session.add(run)
    session.flush()
    run.dag = dag
    with prohibit_commit(session):  # as the scheduler does
        on_dag_run_running(dag_run=run, msg="started")
    return run


def names(session: Session) -> list[str]:
    return sorted(session.scalars(select(AssetModel.name)))


@pytest.mark.slow
def test_two_runs_of_a_point_find_the_assets_that_both_announce(
    dags: dict[str, SerializedDAG], session: Session
) -> None:
    for run_id in ("p1", "p1~2"):
        start(session, dags["twins.point"], run_id, point="p1")
    stages = ["prepare", "pretrain.convert", "pretrain"]
    assert names(session) == [f"megatron://twins/{stage}/p1" for stage in stages]
    pairs = select(func.count()).select_from(alias_association_table)
    assert session.scalar(pairs) == 3
    own = announced_asset("megatron://twins/pretrain", "p1")
    given = SerializedAsset(name=own.name, uri=own.uri, group="asset", extra={}, watchers=[])
    event = AssetManager.register_asset_change(
        asset=given, source_alias_names=["megatron://twins/pretrain"], session=session
    )
    assert event is not None  # without the asset it returns None, and Airflow creates the asset then
    assert session.scalar(pairs) == 3


def test_an_asset_on_which_a_users_dag_is_scheduled_gets_its_alias(
    dags: dict[str, SerializedDAG], session: Session
) -> None:
    own = announced_asset("megatron://twins/pretrain", "p1")
    session.add(AssetModel(name=own.name, uri=own.uri, group="mine"))
    start(session, dags["twins.point"], "p1", point="p1")
    asset = session.scalars(select(AssetModel).where(AssetModel.name == own.name)).one()
    assert (asset.group, [alias.name for alias in asset.aliases]) == ("mine", ["megatron://twins/pretrain"])


def test_a_run_of_the_sweep_has_the_assets_of_shared_stages_and_of_the_report(
    dags: dict[str, SerializedDAG], session: Session
) -> None:
    start(session, dags["twins"], "manual__1")
    assert names(session) == ["megatron://twins", "megatron://twins/prepare"]
    uris = set(session.scalars(select(AssetModel.uri)))
    assert uris == {announced_asset("megatron://twins").uri, announced_asset("megatron://twins/prepare").uri}
    start(session, dags["twins.point"], "p1", point="p1")
    assert "megatron://twins/prepare/p1" not in names(session)  # the point passes over the job
    assert "megatron://twins/pretrain/p1" in names(session)


@pytest.mark.parametrize(
    "conf",
    [
        {},
        *(
            {"point": point}
            for point in ("", 7, ["p1"], {"p1": 1}, "a b", "é", "../p1", "p1?x=1", "\n", "x" * 1_600)
        ),
        *({"point": point} for point in ("a\0b", "\ud800")),  # no database stores them
    ],
    ids=ascii,
)
def test_a_run_without_a_possible_point_announces_nothing(
    conf: dict[str, Any], dags: dict[str, SerializedDAG], session: Session
) -> None:
    start(session, dags["twins.point"], "manual__1", **conf)
    assert names(session) == []


def test_a_point_of_a_sweeps_run_is_no_part_of_its_assets(
    dags: dict[str, SerializedDAG], session: Session
) -> None:
    """``plan`` refuses the key."""
    start(session, dags["twins"], "manual__1", point="p1")
    assert names(session) == ["megatron://twins", "megatron://twins/prepare"]


def test_an_error_of_the_database_leaves_the_transaction(
    dags: dict[str, SerializedDAG], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(dag: SerializedDAG, point: str, session: Session) -> None:
        session.execute(text("INSERT INTO asset (name) VALUES ('half')"))

    monkeypatch.setattr(announced_assets, "create_announced_assets", wrong)
    with pytest.raises(IntegrityError):
        start(session, dags["twins.point"], "p1", point="p1")
    assert session.scalar(select(DagRun.run_id)) == "p1"
