"""Ids of triggers in the local Airflow's database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.models.team import Team
from airflow.models.trigger import Trigger
from sqlalchemy import create_engine, delete, inspect, select
from sqlalchemy.orm import Session

from airflow_megatron.cli.local.trigger_ids import never_reuse_trigger_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "airflow.db"


@pytest.fixture
def engine(database: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{database}")
    Team.metadata.create_all(engine, tables=[Team.__table__, Trigger.__table__])  # type: ignore[list-item]
    yield engine
    engine.dispose()


def added(engine: Engine) -> int:
    """Add a trigger and return its id."""
    with Session(engine) as session, session.begin():
        trigger = Trigger(classpath="module.Class", kwargs={})
        session.add(trigger)
        session.flush()
        return trigger.id


def deleted(engine: Engine, number: int) -> None:
    with Session(engine) as session, session.begin():
        session.execute(delete(Trigger).where(Trigger.id == number))


def test_airflow_reuses_the_id_of_a_deleted_trigger(engine: Engine) -> None:
    first = added(engine)
    deleted(engine, first)
    assert added(engine) == first


@pytest.mark.slow
def test_no_id_is_reused(engine: Engine, database: Path) -> None:
    never_reuse_trigger_ids(database)
    numbers = [added(engine)]
    for _ in range(3):
        deleted(engine, numbers[-1])
        numbers.append(added(engine))
    assert numbers == [1, 2, 3, 4]


def test_rows_columns_and_indexes_are_kept(engine: Engine, database: Path) -> None:
    def content() -> list[object]:
        found = inspect(engine)
        with engine.connect() as connection:
            return [
                [tuple(row) for row in connection.execute(select(Trigger.__table__))],
                [(one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns("trigger")],
                found.get_indexes("trigger"),
                found.get_foreign_keys("trigger"),
            ]

    added(engine)
    added(engine)
    before = content()
    never_reuse_trigger_ids(database)
    never_reuse_trigger_ids(database)
    assert content() == before
    assert added(engine) == 3


def test_a_database_without_the_table_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    never_reuse_trigger_ids(tmp_path / "empty.db")
    assert inspect(create_engine(f"sqlite:///{tmp_path / 'empty.db'}")).get_table_names() == []


def test_a_database_elsewhere_leaves_no_file(tmp_path: Path) -> None:
    """With such a file, the program would take the home's database as migrated."""
    never_reuse_trigger_ids(tmp_path / "airflow.db")
    assert not list(tmp_path.iterdir())
