"""Ids of Airflow's triggers in an SQLite database.

Airflow defines the ids so that SQLite gives the id of a deleted trigger to the next one. The triggerer may still run
the deleted trigger: then it does not start the new one, and delivers the event of the old one to the task that waits
for the new one. With ``AUTOINCREMENT``, SQLite never reuses an id (https://sqlite.org/autoinc.html).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

TABLE: Final = "trigger"


def never_reuse_trigger_ids(database: Path) -> None:
    """Change Airflow's table of triggers so that SQLite never reuses an id; keep its rows.

    :param database: the database, migrated; nothing is done if there is none, because Airflow uses another one
    """
    if not database.is_file():
        return
    with closing(sqlite3.connect(database)) as connection:
        sql = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
        definition = connection.execute(sql, (TABLE,)).fetchone()
    if definition is None or "AUTOINCREMENT" in definition[0]:
        return
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{database}", isolation_level="AUTOCOMMIT")
    with engine.connect() as changed:
        # sqlite3 would begin the transaction only after the new table was created
        changed.exec_driver_sql("BEGIN IMMEDIATE")
        operations = Operations(MigrationContext.configure(changed))
        with operations.batch_alter_table(
            TABLE, recreate="always", table_kwargs={"sqlite_autoincrement": True}
        ):
            pass
        changed.exec_driver_sql("COMMIT")
    engine.dispose()
