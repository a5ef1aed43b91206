"""Create the assets that the tasks of a run announce, before they end.

Airflow 3.3 creates the asset of an alias when the first task that announces it ends. If two tasks end at the same
moment, as those of two runs of a point that wait for the same job do, both create it, and Airflow fails the second task
(``TaskInstance.register_asset_changes_in_db`` with ``ti_update_state``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetAliasModel, AssetModel, alias_association_table
from airflow.serialization.definitions.assets import SerializedAssetAlias
from sqlalchemy import insert, select
from sqlalchemy.dialects import postgresql, sqlite

from airflow_megatron.assets.sweep_assets import announced_asset

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy import Table
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.dml import Insert

AIRFLOWS_GROUP = "asset"
"""Group of the assets that Airflow creates for an alias."""


def create_announced_assets(dag: SerializedDAG, point: str, session: Session) -> None:
    """Create the assets of the aliases that the tasks of a DAG have as outlets, unless they exist.

    :param dag: the DAG of a sweep or of its points
    :param point: name of the run's point; empty for a run of the sweep
    :param session: session of Airflow's database
    """
    aliases = {
        item.name for task in dag.tasks for item in task.outlets if isinstance(item, SerializedAssetAlias)
    }
    if point:
        # a stage that the sweep's run has done for all points has one asset, with the name of the alias
        aliases -= _existing(aliases, session).keys()
    assets = {alias: announced_asset(alias, point) for alias in sorted(aliases)}
    wanted = {asset.name for asset in assets.values()}
    paired = select(AssetModel.name).join(AssetModel.aliases).where(AssetModel.name.in_(wanted))
    if wanted.issubset(session.scalars(paired)):
        return
    rows = [
        {"name": asset.name, "uri": asset.uri, "group": AIRFLOWS_GROUP, "extra": {}}
        for asset in assets.values()
    ]
    session.execute(_unless_exists(AssetModel, session), rows)
    ids = _existing(wanted, session)
    known = select(AssetAliasModel).where(AssetAliasModel.name.in_(aliases)).order_by(AssetAliasModel.id)
    pairs = [
        {"alias_id": alias.id, "asset_id": ids[assets[alias.name].name]} for alias in session.scalars(known)
    ]
    if pairs:
        session.execute(_unless_exists(alias_association_table, session), pairs)


def _existing(names: Collection[str], session: Session) -> dict[str, int]:
    """Return the ids of the assets that exist, by name."""
    found = select(AssetModel.name, AssetModel.id).where(AssetModel.name.in_(names))
    return dict(session.execute(found).tuples().all())


def _unless_exists(table: type[AssetModel] | Table, session: Session) -> Insert:
    """Return a statement that inserts rows, and ignores those that exist or that another process inserts now."""
    dialect = session.get_bind().dialect.name
    if dialect == "mysql":
        return insert(table).prefix_with("IGNORE")
    inserts: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    return inserts[dialect](table).on_conflict_do_nothing()
