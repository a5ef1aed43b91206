"""What tests of operators share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents import project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pinned is kept apart from what the machine's own runs have pinned."""
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
