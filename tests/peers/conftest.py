"""The environments of ``make peers`` that a test needs, and the store of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from peer_servers import StoredSweep, peer_python


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            name = item.path.stem.removeprefix("test_").partition("_")[0]
            item.add_marker(pytest.mark.peers)
            if not peer_python(name).exists():
                item.add_marker(pytest.mark.skip(reason=f"`make peers` installs {name}"))


@pytest.fixture
def stored(tmp_path: Path) -> StoredSweep:
    return StoredSweep(tmp_path / "store")
