"""The tests in docs/known-defects.md and the commands in the documentation exist."""

from __future__ import annotations

import re

import pytest

from airflow_megatron.cli.command_line import COMMANDS as PROVIDED
from airflow_megatron.spec.documents.project import project_root

DOCUMENT = project_root() / "docs" / "known-defects.md"
ROWS = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "---" not in line]
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row != "| defect | tests |"], ids=lambda row: row[2:50]
)
def test_every_defect_has_tests_that_exist(row: str) -> None:
    references = REFERENCE.findall(row)
    assert references
    for path, name in references:
        assert re.search(rf"^\s*(async )?def {name}\(", (project_root() / path).read_text(), re.MULTILINE), (
            name
        )


COMMANDS = sorted(
    {
        name
        for path in (project_root() / "README.md", *(project_root() / "docs").glob("*.md"))
        for name in re.findall(r"airflow-megatron ([a-z][a-z-]+)", path.read_text())
    }
)


def test_commands_of_the_documents_exist() -> None:
    assert len(COMMANDS) > 5
    assert set(COMMANDS) <= set(PROVIDED)
