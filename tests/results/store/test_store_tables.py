"""The documentation describes every stored column."""

from __future__ import annotations

from airflow_megatron.results.store.frames import TYPES, empty
from airflow_megatron.results.store.tables import TABLES, markdown
from airflow_megatron.spec.documents.project import project_root


def test_the_documentation_shows_the_tables() -> None:
    page = (project_root() / "docs" / "results-store.md").read_text(encoding="utf-8")
    assert page.endswith(markdown()), (
        "run markdown() of results/store/tables.py and put it at the end of the page"
    )


def test_columns_have_types_and_meanings() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.all_columns]
        assert len(set(names)) == len(names)
        assert {*table.key, *table.source_key} <= set(names)
        assert all(column.kind in TYPES and column.meaning for column in table.all_columns)
        assert empty(table).columns == names
