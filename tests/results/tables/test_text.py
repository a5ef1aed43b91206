"""Tables of text cells as Markdown."""

from __future__ import annotations

import pytest

from airflow_megatron.results.tables.text import markdown_table


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("a\nb", "a b"),
        ("<img src=//elsewhere/x>/acc", r"\<img src=//elsewhere/x>/acc"),
        ("![x](//elsewhere/x)/acc", r"!\[x](//elsewhere/x)/acc"),
        ("lr_0.1*2", "lr_0.1*2"),
    ],
)
def test_a_cell_is_neither_a_column_nor_an_element_nor_a_link(cell: str, written: str) -> None:
    assert markdown_table([[cell], ["1"]]) == f"| {written} |\n| --- |\n| 1 |\n"
