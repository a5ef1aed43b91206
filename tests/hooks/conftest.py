"""Separate login state for each test of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def local_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this machine's state."""
    folder = tmp_path / "local"
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(folder))
    monkeypatch.delenv("AIRFLOW_MEGATRON_NOTICES", raising=False)
    return folder
