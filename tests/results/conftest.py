from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.results.readings.snapshot import SweepSnapshot


@pytest.fixture
def tree(tmp_path: Path) -> RunTree:
    """An empty sweep directory."""
    return RunTree(tmp_path / "scratch dir")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunTree, SweepSnapshot]:
    """Two sizes × three learning rates × two budgets, one point diverged, and its snapshot."""
    tree = RunTree(tmp_path_factory.mktemp("sweep"))
    for hidden, parameters in ((64, 120_000), (128, 700_000)):
        size = {"num_layers": hidden // 32, "hidden_size": hidden}
        for rate in (1e-3, 3e-3):
            tree.add_point(size, parameters, rate, budgets={"1M": 250, "1.6M": 400})
        tree.add_point(size, parameters, 1e-2, diverges_at=200 if hidden == 128 else None)
    return tree, take_snapshot(run_directories(read_jobs(tree.jobs)))
