"""The worked example on the page about fits prints the output on the page."""

from __future__ import annotations

import re

import pytest

from airflow_megatron.spec.documents.project import project_root

PAGE = (project_root() / "docs" / "fits.md").read_text()


@pytest.mark.slow
def test_the_worked_example_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/fits.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 3
    assert "\n".join(f"    {line}" for line in printed.splitlines()) in PAGE
