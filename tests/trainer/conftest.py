"""Fixtures of the tests of ``Megatron-LM/``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trainer_harness import REPOSITORY, SMALL_DATA, UPSTREAM_RELEASE, Data, Outcome, Trainer, pretrain_args

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(REPOSITORY / "tests" / "studies"))

from upstream import UpstreamMissingError, find_upstream


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this directory."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.trainer)


@pytest.fixture(scope="session")
def trainer() -> Iterator[Trainer]:
    """The scripts, in the environment that AIRFLOW_MEGATRON_TRAINER_PYTHON or .local/venv-trainer names."""
    named = os.environ.get("AIRFLOW_MEGATRON_TRAINER_PYTHON")
    python = Path(named) if named else REPOSITORY / ".local" / "venv-trainer" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"no trainer environment at {python}: run Megatron-LM/install.sh .local/venv-trainer")
    trainer = Trainer(python)
    yield trainer
    trainer.warm.close()


@pytest.fixture(scope="session")
def data(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """A little of the standard library's text."""
    directory = tmp_path_factory.mktemp("data") / "text"
    outcome = trainer.run("prepare_data.py", "--output", directory, *SMALL_DATA)
    assert outcome.status == 0, outcome.stderr
    return Data(directory)


@pytest.fixture(scope="session")
def reference(trainer: Trainer, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """An uninterrupted run of twelve iterations and its checkpoints."""
    save = tmp_path_factory.mktemp("reference") / "checkpoints"
    outcome = trainer.run("pretrain_gpt.py", *pretrain_args(data, save))
    assert outcome.status == 0, outcome.stderr
    return outcome, save


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The unmodified Megatron-LM."""
    try:
        return find_upstream(UPSTREAM_RELEASE)
    except UpstreamMissingError as error:
        pytest.skip(str(error))
