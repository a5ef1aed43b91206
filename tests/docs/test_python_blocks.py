"""The Python code of the documentation runs, and the example DAGs are short and can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

import airflow_megatron.example_dags
from airflow_megatron.spec.documents.project import project_root

PAGE = project_root() / "docs" / "operators.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
EXAMPLES = sorted(Path(airflow_megatron.example_dags.__file__).parent.glob("example_*.py"))


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(block: str) -> None:
    with DAG("documentation", schedule=None):
        exec(compile(block, str(PAGE), "exec"), {})


def test_there_are_five_examples() -> None:
    assert len(EXAMPLES) == 5
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_builds_the_dag_of_its_name(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 30
    found = DagBag(path, collect_dags=False)
    found.process_file(str(path))
    assert not found.import_errors
    assert list(found.dags) == [path.stem]
