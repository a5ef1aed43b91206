"""Fixtures of the tests of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents import project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a store of plans that is separate from that of the machine's runs."""
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
