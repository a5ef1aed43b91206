"""The signatures of a cluster profile, as triggers use them."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.verdicts.signatures import shipped_signatures
from airflow_megatron.spec.documents import project
from airflow_megatron.task_runtime.site_signatures import site_signatures

if TYPE_CHECKING:
    from pathlib import Path

LOG = logging.getLogger(__name__)
OWN = "signatures:\n  - {name: fabric, pattern: fabric down, outcome: retryable, reason: the fabric failed}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clusters = tmp_path / "sbatch" / "clusters"
    clusters.mkdir(parents=True)
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    return clusters


def test_read_again_when_the_file_changes(folder: Path) -> None:
    path = folder / "own.yaml"
    path.write_text(OWN)
    assert site_signatures(("own.yaml",), LOG)[0].reason == "the fabric failed"
    path.write_text(OWN.replace("the fabric failed", "the network failed"))
    os.utime(path, (1, 1))
    assert site_signatures(("own.yaml",), LOG)[0].reason == "the network failed"
    assert site_signatures((), LOG) == shipped_signatures()


@pytest.mark.parametrize("text", [None, "signatures: [{name: x}]\n"])
def test_a_broken_file_does_not_end_the_wait(
    folder: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if text is not None:
        (folder / "own.yaml").write_text(text)
    assert site_signatures(("own.yaml",), LOG) == shipped_signatures()
    assert "only the shipped ones" in caplog.text
